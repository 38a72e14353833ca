"""Replicas go to the hottest, dies end level, groups stay on their node, and no row is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.model.eplb import Placement, pack, rebalance, replicate, spread


def power_law(experts: int, skew: float, seed: int = 0) -> list[float]:
    loads = np.arange(1, experts + 1, dtype=float) ** -skew
    np.random.default_rng(seed).shuffle(loads)
    return [float(load) for load in loads]


def test_the_worked_example() -> None:
    assert replicate([6, 2, 2, 2], 6) == [3, 1, 1, 1]
    placed = rebalance([6, 2, 2, 2], dies=3)
    assert placed.loads([6, 2, 2, 2]) == [4, 4, 4]


def test_heaviest_first_to_the_lightest_bin_with_room() -> None:
    assert pack([5, 4, 3, 2], 2, 2) == [[0, 3], [1, 2]]
    assert pack([9, 1, 1, 1], 2, 2) == [[0, 3], [1, 2]]  # room counts before weight


def test_in_order_without_regard_to_load() -> None:
    assert spread(4, 2).slots == ((0, 1), (2, 3))
    assert spread(4, 3).slots == ((0, 1), (2, 3), (0, 1))


def test_redundant_experts_take_the_peak_off() -> None:
    loads = power_law(256, 0.5)
    mean = sum(loads) / 288
    before = max(spread(256, 256).loads(loads)) / (sum(loads) / 256)
    after = max(rebalance(loads, 288).loads(loads)) / mean
    assert before > 3 * after
    assert after >= 1


def test_several_slots_per_die_level_the_load_even_without_replicas() -> None:
    loads = power_law(256, 0.2)
    even, packed = spread(256, 32), rebalance(loads, 32)
    assert max(packed.loads(loads)) < 1.1 * sum(loads) / 32 < max(even.loads(loads))


def test_no_dies_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one die"):
        spread(8, 0)


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 20), st.sampled_from(["spread", "eplb"])
)
def test_no_row_is_lost_and_every_expert_has_a_slot(arriving: list[int], dies: int, how: str) -> None:
    placed: Placement = spread(len(arriving), dies) if how == "spread" else rebalance(arriving, dies)
    rows = placed.rows(arriving)
    assert sum(map(sum, rows)) == sum(arriving)
    assert set(placed.copies) == set(range(len(arriving)))
    assert len({len(die) for die in placed.slots}) == 1
