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
from collections.abc import Callable, Sequence

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
    and only once all of them are there; where a block has several hashes the last of them names it. state_blocks: that
    every request holds beside those of its tokens, from beginning to end.

    Counted: used, blocks that running requests hold; looked_up, hit and evicted, blocks since the beginning. evicting:
    called with every hash that goes.
    InputError unless block_tokens and hash_tokens are one a whole number of times the other.
    """

    def __init__(self, blocks: int, block_tokens: int, prefix_caching: bool, hash_tokens: int = 0,
                 state_blocks: int = 0) -> None:
        self.blocks = blocks
        self.state_blocks = state_blocks
        self.block_tokens = block_tokens
        self.prefix_caching = prefix_caching
        self.hash_blocks, self._hashes_of_block = sizes(block_tokens, hash_tokens or block_tokens)
        self.used = self.looked_up = self.hit = self.evicted = 0
        self.evicting: Callable[[int], None] | None = None
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

    def has_room(self, hashes: Sequence[int] | Array, blocks: int, spare: int = 0) -> bool:
        """Whether so many blocks could be held for a prompt, with `spare` others still free."""
        hashed, revived = self._present(self.chain(hashes)[: blocks // self.hash_blocks])
        shared = (len(hashed) - len(revived)) * self.hash_blocks
        return self.used + blocks - shared + self.state_blocks + spare <= self.blocks

    def take(self, request: int, hashes: Sequence[int] | Array, blocks: int, spare: int = 0) -> int | None:
        """Hold so many blocks for a request, the leading ones shared where they are present, and the others from now
        on: how many were present. Else as `hold`."""
        hit = self.hold(request, hashes, blocks, spare)
        if hit is not None:
            self.came(request)
        return hit

    def hold(self, request: int, hashes: Sequence[int] | Array, blocks: int, spare: int = 0) -> int | None:
        """Hold so many blocks for a request, the leading ones shared where they are present: how many were. What the
        others will contain comes later (`came`), and they are not shared until then.

        None, and nothing changed, if there is no room for them with `spare` others still free. A request below 0 has no
        states. ValueError if the request holds blocks already.
        """
        if request in self._held:
            raise ValueError(f"request {request} holds blocks already: release them first")
        chain = self.chain(hashes)
        wanted = chain[: blocks // self.hash_blocks]
        hashed, revived = self._present(wanted)
        holders, evictable = self._holders, self._evictable
        hit, came_back = len(hashed) * self.hash_blocks, len(revived) * self.hash_blocks
        states = self.state_blocks if request >= 0 else 0
        if self.used + came_back + blocks - hit + states + spare > self.blocks:
            return None
        for one in revived:
            del evictable[one]
        for one in hashed:
            holders[one] += 1
        self.used += came_back
        self._make_room(blocks - hit + states)
        self.looked_up += len(wanted) * self.hash_blocks
        self.hit += hit
        self._held[request] = _Holding(chain, hashed, blocks)
        return hit

    def came(self, request: int) -> None:
        """What a request's blocks should contain is there, or will be before another one reads it."""
        self._cover(self._held[request])

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
        self.used -= self.state_blocks if request >= 0 else 0

    def forget(self) -> None:
        """What is kept for prompts that begin alike, and no request holds, is gone."""
        for one in self._evictable:
            del self._holders[one]
        self._evictable.clear()

    def _present(self, wanted: list[int]) -> tuple[list[int], set[int]]:
        """Leading hashes that are present, and those of them that no request holds."""
        hashed = wanted[: self._leading(wanted)]
        return hashed, {one for one in hashed if not self._holders[one]}

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
            if self.evicting is not None:
                self.evicting(one)

    def _cover(self, held: _Holding) -> None:
        """The hashes whose blocks a request has now are in the table; what is there already it has a copy of."""
        holders = self._holders
        end = min(held.blocks // self.hash_blocks, len(held.chain))
        for one in held.chain[held.covered : end]:
            if one not in holders:
                holders[one] = 1
                held.hashed.append(one)
        held.covered = end


def sizes(block_tokens: int, hash_tokens: int) -> tuple[int, int]:
    """Blocks of a hash, and hashes of a block: one of them is 1. InputError where they do not fit together."""
    if hash_tokens % block_tokens and block_tokens % hash_tokens:
        raise InputError(f"blocks of {block_tokens} tokens cannot be shared by hashes of {hash_tokens} tokens: "
                         "one must be a whole number of times the other")
    return max(1, hash_tokens // block_tokens), max(1, block_tokens // hash_tokens)
