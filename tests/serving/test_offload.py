"""A tier behind HBM: what is evicted lies there, hits there follow those in HBM, and it holds what fits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.serving.cache import BlockCache
from simulator.serving.offload import LowerTier, take_tiers

Prompts = list[tuple[int, int]]
PROMPTS = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 5)), max_size=60)


def _chain(path: int, length: int) -> list[int]:
    return [(1 << depth) + path % (1 << depth) for depth in range(1, length + 1)]


def test_what_hbm_evicts_is_found_below() -> None:
    below = LowerTier(8)
    cache = BlockCache(3, 16, True, evicting=below.put)
    assert take_tiers(cache, below, 0, [1, 2, 3], 3) == (0, 0)
    cache.release(0)
    assert take_tiers(cache, below, 1, [7, 8], 2) == (0, 0)
    cache.release(1)
    assert (below.used, below.written) == (2, 2)
    assert take_tiers(cache, below, 2, [1, 2, 3], 3) == (1, 2)
    assert (below.looked_up, below.hit) == (3 + 2 + 2, 2)
    cache.release(2)
    assert take_tiers(cache, below, 3, [7, 8], 4) is None, "no room"
    assert take_tiers(cache, below, 3, [7, 8], 2) == (0, 2)
    assert below.written == 4, "what was fetched lay there still"


def test_what_is_read_or_written_again_stays_longest() -> None:
    below = LowerTier(3)
    for one in (1, 2, 3):
        below.put(one)
    below.fetch([1, 9], 1)
    below.put(2)
    below.put(4)
    assert [below.leading([one]) for one in (1, 2, 3, 4)] == [1, 1, 0, 1]
    below.fetch([2, 4], 2)
    below.put(5)
    below.put(6)
    assert [below.leading([one]) for one in (1, 2, 4)] == [0, 1, 0], "of a chain the head stays longest"


@settings(max_examples=100, deadline=None)
@given(PROMPTS, st.integers(5, 12))
def test_two_tiers_that_hold_everything_hit_as_an_unlimited_cache(prompts: Prompts, blocks: int) -> None:
    below, all_there = LowerTier(10**6), BlockCache(10**6, 16, True)
    cache = BlockCache(blocks, 16, True, evicting=below.put)
    for request, (path, length) in enumerate(prompts):
        chain = _chain(path, length)
        found = take_tiers(cache, below, request, chain, length)
        assert found is not None
        assert sum(found) == all_there.take(request, chain, length)
        cache.release(request)
        all_there.release(request)
    assert cache.hit + below.hit == all_there.hit
    assert below.evicted == 0


@settings(max_examples=100, deadline=None)
@given(PROMPTS, st.integers(5, 12), st.integers(0, 9), st.sampled_from([1, 2]))
def test_a_full_tier_keeps_what_was_used_last(prompts: Prompts, blocks: int, fit: int, hash_blocks: int) -> None:
    below = LowerTier(fit, hash_blocks)
    cache = BlockCache(blocks * hash_blocks, 16, True, 16 * hash_blocks, evicting=below.put)
    for request, (path, length) in enumerate(prompts):
        found = take_tiers(cache, below, request, _chain(path, length), length * hash_blocks)
        assert found is not None
        assert sum(found) <= length * hash_blocks
        cache.release(request)
        assert below.used <= fit
        assert below.written - below.evicted == below.used
