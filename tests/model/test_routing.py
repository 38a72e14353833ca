"""Expert load: drawn rows are conserved; sizes of an exchange follow from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.model.routing import Drawn, check_skew


def drawn(skew: float, seed: int = 0, tokens: int = 512) -> Drawn:
    return Drawn((tokens,) * 8, 64, 8, skew, (seed,))


def test_a_skew_that_chooses_an_expert_more_than_once_is_refused() -> None:
    """Of 256 experts and 8 choices the most popular one is in every token's at 0.89."""
    check_skew(256, 8, 0.88)
    with pytest.raises(ValueError, match=r"routing.skew is 1.0: .* most popular of 256 experts 1.31 times"):
        check_skew(256, 8, 1.0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 1.5), st.lists(st.integers(0, 200), min_size=4, max_size=4))
def test_every_row_that_is_sent_arrives(seed: int, skew: float, tokens: list[int]) -> None:
    routing = Drawn(tuple(tokens), 16, 4, skew, (seed, 7))
    sizes = np.array(routing.sizes(3))
    assert sizes.sum(axis=1).tolist() == [3 * 4 * count for count in tokens]
    assert sizes.sum(axis=0).tolist() == [3 * int(rows.sum()) for rows in np.split(routing.counts.sum(axis=0), 4)]


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    assert drawn(0.5, 1).sizes(1) == drawn(0.5, 1).sizes(1)
    assert drawn(0.5, 1).sizes(1) != drawn(0.5, 2).sizes(1)


def test_without_skew_ranks_differ_by_chance_alone() -> None:
    rows = np.array([local.sum() for local in np.split(drawn(0.0).counts.sum(axis=0), 8)])
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
