"""Groups of ranks, and requests on ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.model.layout import blocks, deal, shard_size, split, strides


def test_neighbours_and_strides() -> None:
    assert blocks(6, 2) == [(0, 1), (2, 3), (4, 5)]
    assert strides(6, 2) == [(0, 3), (1, 4), (2, 5)]
    assert blocks(4, 4) == strides(4, 4) == [(0, 1, 2, 3)]


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([blocks, strides]))
def test_every_rank_is_in_one_group(groups: int, size: int, how: Callable[[int, int], list[tuple[int, ...]]]) -> None:
    found = how(groups * size, size)
    assert sorted(rank for group in found for rank in group) == list(range(groups * size))
    assert {len(group) for group in found} == {size}


@given(st.integers(1, 6).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, 6))))
def test_blocks_and_strides_cross_in_one_rank(shape: tuple[int, int]) -> None:
    size, groups = shape
    for block in blocks(size * groups, size):
        for stride in strides(size * groups, groups):
            assert len(set(block) & set(stride)) == 1


def test_a_dimension_that_does_not_divide_is_refused() -> None:
    assert shard_size(128, 8, "heads") == 16
    with pytest.raises(ValueError, match="128 heads do not divide over 48 ranks"):
        shard_size(128, 48, "heads")


def test_a_refusal_names_the_setting() -> None:
    with pytest.raises(ValueError, match=r"128 ranks do not divide into groups of 288 \(layout.expert_parallel\)"):
        blocks(128, 288, "layout.expert_parallel")


@pytest.mark.parametrize("how", [blocks, strides])
@pytest.mark.parametrize(("ranks", "size"), [(6, 4), (4, 0), (2, 4), (4, -1)])
def test_what_does_not_divide_is_refused(how: Callable[[int, int], object], ranks: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"{ranks} ranks do not divide into groups of {size}"):
        how(ranks, size)


def test_requests_go_to_the_rank_with_the_fewest_tokens() -> None:
    assert deal([4, 4, 4, 4], 2) == [(4, 4), (4, 4)]
    assert deal([1, 9, 3, 4], 2) == [(9,), (4, 3, 1)]
    assert deal([5], 3) == [(5,), (), ()]


@given(st.lists(st.integers(1, 100), max_size=20), st.integers(1, 5))
def test_nothing_is_lost_and_no_rank_is_ahead_by_more_than_a_request(lengths: list[int], ranks: int) -> None:
    hands = deal(lengths, ranks)
    assert sorted(length for hand in hands for length in hand) == sorted(lengths)
    loads = [sum(hand) for hand in hands]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@given(st.integers(0, 1000), st.integers(1, 40))
def test_parts_are_nearly_equal(total: int, parts: int) -> None:
    shares = split(total, parts)
    assert sum(shares) == total
    assert shares == sorted(shares, reverse=True)
    assert shares[0] - shares[-1] <= 1
