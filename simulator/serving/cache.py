"""Blocks of KV cache in the HBM of one engine: who holds them, what prompts share, which go when room is needed.

What a block contains is named by a hash of its tokens and of all before them, so a chain of hashes is a path of the
prefix tree and one table of hashes is the whole tree. The order of eviction is that of vLLM's block pool
(vllm/v1/core/block_pool.py and single_type_kv_cache_manager.py): unused blocks and those without a hash go first, then
the least recently released ones; a request gives its blocks back from the tail, so that heads of prompts, which more
requests share, stay longest. Blocks are shared as soon as they are taken: a step computes a prefix before a request
that was scheduled after it reads it. What is generated is not shared: traces do not say what it hashes to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from simulator import np
from simulator.errors import InputError
from simulator.np import Array


class _Holding:
    """What one request holds: `blocks` in all; `hashed` of them are in the table, the others its own. chain: hashes of
    its prompt, of which `covered` have blocks."""

    __slots__ = ("blocks", "chain", "covered", "hashed")

    def __init__(self, chain: list[int], hashed: list[int], blocks: int) -> None:
        self.chain = chain
        self.hashed = hashed
        self.covered = len(hashed)
        self.blocks = blocks


class BlockCache:
    """Blocks of a paged KV cache with prefix caching.

    blocks: in all; block_tokens: tokens of each; prefix_caching: False shares nothing. hash_tokens: tokens that one
    hash stands for (0: those of a block). Where a hash stands for several blocks these are shared and evicted together,
    and only once all of them are there; where a block has several hashes the last of them names it.

    Counted: used, blocks that running requests hold; looked_up, hit and evicted, blocks since the beginning.
    InputError unless block_tokens and hash_tokens are one a whole number of times the other.
    """

    def __init__(self, blocks: int, block_tokens: int, prefix_caching: bool, hash_tokens: int = 0) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.prefix_caching = prefix_caching
        self.hash_blocks, self._hashes_of_block = _sizes(block_tokens, hash_tokens or block_tokens)
        self.used = self.looked_up = self.hit = self.evicted = 0
        self._holders: dict[int, int] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._held: dict[int, _Holding] = {}

    @property
    def free(self) -> int:
        """Blocks that can be had: unused ones and those that can be evicted."""
        return self.blocks - self.used

    @property
    def evictable(self) -> int:
        """Blocks that no request holds, kept for prompts that begin like theirs."""
        return len(self._evictable) * self.hash_blocks

    def chain(self, hashes: Sequence[int] | Array) -> list[int]:
        """The hashes of a prompt by which this cache can share, each `hash_blocks` blocks."""
        if not self.prefix_caching:
            return []
        found: list[int] = hashes if isinstance(hashes, list) else np.asarray(hashes).tolist()
        every = self._hashes_of_block
        return found if every == 1 else found[every - 1 :: every]

    def hit_blocks(self, hashes: Sequence[int] | Array) -> int:
        """Leading blocks of a prompt that are there now; nothing is taken."""
        return self._leading(self.chain(hashes)) * self.hash_blocks

    def take(self, request: int, hashes: Sequence[int] | Array, blocks: int, spare: int = 0) -> int | None:
        """Hold so many blocks for a request, the leading ones shared where they are present: how many were.

        None, and nothing changed, if there is no room for them with `spare` others still free. ValueError if the
        request holds blocks already.
        """
        if request in self._held:
            raise ValueError(f"request {request} holds blocks already: release them first")
        chain = self.chain(hashes)
        wanted = chain[: blocks // self.hash_blocks]
        hashed = wanted[: self._leading(wanted)]
        holders, evictable = self._holders, self._evictable
        revived = {one for one in hashed if not holders[one]}
        hit, came_back = len(hashed) * self.hash_blocks, len(revived) * self.hash_blocks
        if self.used + came_back + blocks - hit + spare > self.blocks:
            return None
        for one in revived:
            del evictable[one]
        for one in hashed:
            holders[one] += 1
        self.used += came_back
        self._make_room(blocks - hit)
        self.looked_up += len(wanted) * self.hash_blocks
        self.hit += hit
        held = self._held[request] = _Holding(chain, hashed, blocks)
        self._cover(held)
        return hit

    def grow(self, request: int, blocks: int) -> bool:
        """So many more blocks for a request, hashed as far as its prompt's chain goes; False, and nothing changed, if
        there is no room."""
        if self.used + blocks > self.blocks:
            return False
        self._make_room(blocks)
        held = self._held[request]
        held.blocks += blocks
        if held.covered < len(held.chain):
            self._cover(held)
        return True

    def give(self, request: int, blocks: int) -> None:
        """A request gives back so many blocks of its own. ValueError if it has not as many."""
        held = self._held[request]
        if blocks > held.blocks - len(held.hashed) * self.hash_blocks:
            raise ValueError(f"request {request} has no {blocks} blocks of its own")
        held.blocks -= blocks
        self.used -= blocks

    def release(self, request: int) -> None:
        """A request gives back what it holds, from the tail: hashed blocks can be evicted once none holds them, the
        others are unused."""
        held = self._held.pop(request)
        holders, evictable, freed = self._holders, self._evictable, 0
        for one in reversed(held.hashed):
            left = holders[one] - 1
            holders[one] = left
            if not left:
                evictable[one] = None
                freed += 1
        self.used -= held.blocks - (len(held.hashed) - freed) * self.hash_blocks

    def _leading(self, chain: list[int]) -> int:
        """Hashes of a chain that are present, before the first one that is not."""
        holders = self._holders
        for number, one in enumerate(chain):
            if one not in holders:
                return number
        return len(chain)

    def _make_room(self, blocks: int) -> None:
        """So many blocks become used, evicting as many as are not unused."""
        short = blocks - (self.blocks - self.used - self.evictable)
        self.used += blocks
        if short <= 0:
            return
        holders, first = self._holders, self._evictable.popitem
        for _ in range(-(-short // self.hash_blocks)):
            one, _none = first(last=False)
            del holders[one]
            self.evicted += self.hash_blocks

    def _cover(self, held: _Holding) -> None:
        """The hashes whose blocks a request has now are in the table; what is there already it has a copy of."""
        holders = self._holders
        end = min(held.blocks // self.hash_blocks, len(held.chain))
        for one in held.chain[held.covered : end]:
            if one not in holders:
                holders[one] = 1
                held.hashed.append(one)
        held.covered = end


def _sizes(block_tokens: int, hash_tokens: int) -> tuple[int, int]:
    """Blocks of a hash, and hashes of a block: one of them is 1."""
    if hash_tokens % block_tokens and block_tokens % hash_tokens:
        raise InputError(f"blocks of {block_tokens} tokens cannot be shared by hashes of {hash_tokens} tokens: "
                         "one must be a whole number of times the other")
    return max(1, hash_tokens // block_tokens), max(1, block_tokens // hash_tokens)
