"""Laws of the KV cache: blocks are conserved, who holds keeps, and eviction goes as in vLLM's block pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.serving.cache import BlockCache

Events = list[tuple[int, int, int]]
EVENTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 3)), max_size=60)


def _chain(path: int, length: int) -> list[int]:
    """Hashes of a prompt: the path's digits in base 2 choose children, so that prompts share their beginnings."""
    chain, node = [], 1
    for depth in range(length):
        node = node * 2 + (path >> depth & 1)
        chain.append(node)
    return chain


def _conserved(cache: BlockCache) -> None:
    holders, held = cache._holders, cache._held
    assert cache.used + cache.evictable + (unused := cache.blocks - cache.used - cache.evictable) == cache.blocks
    assert unused >= 0
    own = sum(one.blocks - len(one.hashed) * cache.hash_blocks for one in held.values())
    assert cache.used == own + cache.hash_blocks * sum(count > 0 for count in holders.values())
    assert set(cache._evictable) == {one for one, count in holders.items() if not count}
    counts: dict[int, int] = {}
    for one in held.values():
        for name in one.hashed:
            counts[name] = counts.get(name, 0) + 1
    assert counts == {one: count for one, count in holders.items() if count}


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.integers(1, 24), st.sampled_from([0, 16, 64]))
def test_blocks_are_conserved_and_refcounts_return_to_zero(events: Events, blocks: int, hash_tokens: int) -> None:
    cache = BlockCache(blocks, 16, True, hash_tokens)
    for request, length, more in events:
        before = cache.used, dict(cache._holders), list(cache._evictable)
        if request not in cache._held:
            if cache.take(request, _chain(request, length), length * cache.hash_blocks + more) is None:
                assert before == (cache.used, dict(cache._holders), list(cache._evictable))
        elif more and not cache.grow(request, more):
            assert before == (cache.used, dict(cache._holders), list(cache._evictable))
        elif not more:
            cache.release(request)
        _conserved(cache)
    for request in list(cache._held):
        cache.release(request)
    assert cache.used == 0
    assert cache.free == blocks
    assert not any(cache._holders.values())


@settings(max_examples=100, deadline=None)
@given(EVENTS, st.integers(1, 16))
def test_what_a_request_holds_is_not_evicted_and_no_block_is_without_its_head(events: Events, blocks: int) -> None:
    cache = BlockCache(blocks, 16, True)
    for request, length, more in events:
        if request in cache._held:
            cache.release(request)
        else:
            cache.take(request, _chain(request, length), length + more)
        held = {one for each in cache._held.values() for one in each.hashed}
        assert held <= set(cache._holders), "a block that is evicted leaves the table"
        assert all(one // 2 in cache._holders for one in cache._holders if one > 3), "a tail outlived its head"


@dataclass
class _Pool:
    """vLLM's pool as its source says, block by block: a queue of free blocks, hashes on them until they are reused."""

    blocks: int
    queue: list[int] = field(default_factory=list)
    hashes: dict[int, int] = field(default_factory=dict)  # of a block
    count: dict[int, int] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = list(range(self.blocks))
        self.count = dict.fromkeys(self.queue, 0)

    def take(self, request: int, chain: Sequence[int], blocks: int) -> int | None:
        there = {one: block for block, one in self.hashes.items()}
        table = []
        for one in chain[:blocks]:
            if one not in there:
                break
            table.append(there[one])
        hit = len(table)
        if blocks - hit > len(self.queue) - sum(not self.count[block] for block in table):
            return None
        self.queue = [block for block in self.queue if block not in table]
        for _ in range(blocks - hit):
            self.hashes.pop(self.queue[0], None)
            table.append(self.queue.pop(0))
        for block, one in zip(table, chain, strict=False):
            self.hashes[block] = one
        for block in table:
            self.count[block] += 1
        self.tables[request] = table
        return hit

    def release(self, request: int) -> None:
        plain, hashed = [], []
        for block in reversed(self.tables.pop(request)):
            self.count[block] -= 1
            if not self.count[block]:
                (hashed if block in self.hashes else plain).append(block)
        self.queue = [*plain, *self.queue, *hashed]


@settings(max_examples=200, deadline=None)
@given(EVENTS, st.integers(1, 14))
def test_hits_and_evictions_are_those_of_vllms_pool(events: Events, blocks: int) -> None:
    cache, pool = BlockCache(blocks, 16, True), _Pool(blocks)
    for request, length, more in events:
        if request in pool.tables:
            cache.release(request)
            pool.release(request)
        else:
            chain, size = _chain(request, length + 1), length + more
            assert cache.take(request, chain, size) == pool.take(request, chain, size)
        assert cache.free == len(pool.queue)
        assert set(cache._holders) == set(pool.hashes.values())


def test_an_unlimited_cache_hits_all_that_came_before() -> None:
    random = np.random.default_rng(7)
    cache, seen, hits = BlockCache(10**9, 512, True), set[int](), 0
    for request, path in enumerate(random.integers(0, 64, 400).tolist()):
        chain = _chain(path, 1 + path % 9)
        want = next((number for number, one in enumerate(chain) if one not in seen), len(chain))
        assert cache.take(request, np.array(chain), len(chain)) == want
        seen |= set(chain)
        hits += want
        cache.release(request)
    assert (cache.hit, cache.evicted) == (hits, 0)


def test_the_tail_of_a_prompt_goes_before_its_head() -> None:
    cache = BlockCache(4, 16, True)
    cache.take(0, [1, 2, 3], 3)
    cache.release(0)
    assert cache.take(1, [9, 8], 2) == 0
    assert cache.hit_blocks([1, 2, 3]) == 2
    assert cache.evicted == 1


def test_a_hash_of_many_blocks_is_shared_when_all_of_them_are_there() -> None:
    cache = BlockCache(100, 16, True, hash_tokens=512)
    assert cache.take(0, [1, 2], 40) == 0
    assert cache.hit_blocks([1, 2]) == 32, "the second hash has 8 of its 32 blocks"
    assert cache.grow(0, 24)
    assert cache.hit_blocks([1, 2]) == 64
    assert cache.take(1, [1, 2], 70) == 64
    assert cache.used == 70
    cache.release(0)
    assert (cache.used, cache.evictable) == (70, 0)


def test_a_block_of_many_hashes_is_named_by_the_last_of_them() -> None:
    cache = BlockCache(10, 64, True, hash_tokens=16)
    cache.take(0, [1, 2, 3, 4, 5, 6, 7, 8, 9], 3)
    assert cache.hit_blocks([1, 2, 3, 4, 5, 6, 7]) == 1
    assert cache.hit_blocks([1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13]) == 2


def test_without_prefix_caching_nothing_is_shared() -> None:
    cache = BlockCache(8, 16, False)
    assert cache.take(0, [1, 2], 4) == 0
    cache.release(0)
    assert cache.take(1, [1, 2], 4) == 0
    assert cache.evictable == cache.hit == cache.looked_up == 0
    assert cache.take(2, [1, 2], 5) is None
    assert not cache.grow(1, 5)
    assert cache.grow(1, 4)


def test_blocks_and_hashes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="blocks of 48 tokens cannot be shared by hashes of 512"):
        BlockCache(8, 48, True, hash_tokens=512)
    cache = BlockCache(8, 16, True)
    cache.take(0, [1], 1)
    with pytest.raises(ValueError, match="request 0 holds blocks already"):
        cache.take(0, [1], 1)
