"""Expert load: rows are conserved, balanced or drawn; sizes of an exchange follow from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.model.routing import Balanced, Drawn, routing_of


def drawn(skew: float, seed: int = 0, tokens: int = 512) -> Drawn:
    return Drawn((tokens,) * 8, 64, 8, skew, (seed,))


def test_a_skew_that_chooses_an_expert_more_than_once_is_refused() -> None:
    """Of 256 experts and 8 choices the most popular one is in every token's at 0.89."""
    assert routing_of((64,) * 8, 256, 8, 0.88, (1,)).drawn
    with pytest.raises(ValueError, match=r"routing.skew is 1.0: .* most popular of 256 experts 1.31 times"):
        routing_of((64,) * 8, 256, 8, 1.0, (1,))


def test_balanced_load_by_hand() -> None:
    routing = Balanced((128,) * 4, 32, 8)
    assert routing.rows(3) == (4 * 128 * 8 // 32,) * 8
    assert routing.arriving(3) == 128 * 8  # as many rows as each rank sends
    assert routing.pair_bytes(10) == 128 * 8 * 10 // 4
    assert routing.sizes(10) == ((2560,) * 4,) * 4


def test_balanced_load_of_uneven_tokens() -> None:
    routing = Balanced((100, 0, 300, 0), 8, 2)
    assert routing.rows() == (100, 100)
    assert routing.pair_bytes(1) is None
    assert routing.sizes(1) == ((50,) * 4, (0,) * 4, (150,) * 4, (0,) * 4)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 1.5), st.lists(st.integers(0, 200), min_size=4, max_size=4))
def test_every_row_that_is_sent_arrives(seed: int, skew: float, tokens: list[int]) -> None:
    routing = Drawn(tuple(tokens), 16, 4, skew, (seed, 7))
    sizes = np.array(routing.sizes(3))
    assert sizes.sum(axis=1).tolist() == [3 * 4 * count for count in tokens]
    assert sizes.sum(axis=0).tolist() == [3 * routing.arriving(rank) for rank in range(4)]
    assert all(len(routing.rows(rank)) == 4 for rank in range(4))
    assert routing.pair_bytes(3) is None


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    assert drawn(0.5, 1).sizes(1) == drawn(0.5, 1).sizes(1)
    assert drawn(0.5, 1).sizes(1) != drawn(0.5, 2).sizes(1)


def test_without_skew_ranks_differ_by_chance_alone() -> None:
    rows = np.array([drawn(0.0).arriving(rank) for rank in range(8)])
    mean = 512 * 8
    assert rows.mean() == mean
    assert len(set(rows)) > 1
    assert abs(rows - mean).max() < 5 * mean**0.5


def test_popularity_is_a_power_law() -> None:
    """The most popular of 64 experts gets 1 / H of all rows, H the sum of i ** -skew."""
    counts = drawn(1.0, tokens=20_000).counts.sum(axis=0)
    harmonic = sum(1 / place for place in range(1, 65))
    assert counts.max() / counts.sum() == pytest.approx(1 / harmonic, rel=0.02)
    assert np.sort(counts)[-2] / counts.max() == pytest.approx(0.5, rel=0.05)
    assert drawn(1.0, 5).counts.sum(axis=0).argmax() != drawn(1.0, 6).counts.sum(axis=0).argmax()


def test_skew_chooses_the_kind() -> None:
    assert isinstance(routing_of([1, 1], 4, 2, None, (0,)), Balanced)
    assert isinstance(routing_of([1, 1], 4, 2, 0.0, (0,)), Drawn)
    with pytest.raises(ValueError, match="5 experts do not divide over 2 ranks"):
        routing_of([1, 1], 5, 2, None, (0,))
