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


def test_whole_groups_are_packed_on_nodes_first() -> None:
    """The example of deepseek-ai/EPLB: 12 experts in 4 groups, 16 slots on 8 GPUs of 2 nodes; in its second layer two
    copies have the same load, and may stand for each other."""
    layers = [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
              [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]]  # fmt: skip
    first, second = (rebalance(loads, 8, nodes=2, groups=4) for loads in layers)
    assert first.slots == ((5, 6), (5, 7), (8, 4), (3, 4), (10, 9), (10, 2), (0, 1), (11, 1))
    published = Placement(((7, 10), (6, 8), (6, 11), (8, 9), (2, 4), (5, 1), (5, 0), (3, 1)))
    assert second.copies == published.copies
    assert second.loads(layers[1]) == pytest.approx(published.loads(layers[1]))


def test_where_nodes_do_not_divide_groups_all_dies_share_all_experts() -> None:
    loads = power_law(24, 0.8)
    assert rebalance(loads, 6, nodes=3, groups=4) == rebalance(loads, 6)
    assert rebalance(loads, 6, nodes=2, groups=4) != rebalance(loads, 6)


def test_in_order_with_spare_slots_begins_again() -> None:
    assert spread(4, 2, spare=1).slots == ((0, 1, 2), (3, 0, 1))
