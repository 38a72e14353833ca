"""A tier of memory behind HBM: what a cache evicts lies here, in the host's memory or in a pool on the fabric.

One tier is given to one engine's cache (its host's memory) or to those of several (a shared pool). What is fetched
stays here too, so that evicting it again moves nothing. It is written when it is evicted, as write-back of SGLang's
HiCache does; what the transfers cost is for the caller to say.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from simulator.np import Array
from simulator.serving.cache import BlockCache


class LowerTier:
    """Blocks by hash, of which the least recently used go when it is full.

    blocks: cache blocks that fit; hash_blocks: blocks of a hash, as the caches before it have them. Counted in blocks
    since the beginning: looked_up, hit (fetched), written and evicted.
    """

    def __init__(self, blocks: int, hash_blocks: int = 1) -> None:
        self.blocks = blocks
        self.hash_blocks = hash_blocks
        self.looked_up = self.hit = self.written = self.evicted = 0
        self._there: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks that lie here."""
        return len(self._there) * self.hash_blocks

    def put(self, one: int) -> None:
        """The blocks of a hash come, or are used again if they are here; pass this to a cache as `evicting`."""
        there, size = self._there, self.hash_blocks
        if one in there:
            there.move_to_end(one)
        elif size <= self.blocks:
            there[one] = None
            self.written += size
            if len(there) * size > self.blocks:
                there.popitem(last=False)
                self.evicted += size

    def leading(self, chain: Sequence[int]) -> int:
        """Hashes of a chain that are here, before the first one that is not."""
        for number, one in enumerate(chain):
            if one not in self._there:
                return number
        return len(chain)

    def fetch(self, chain: Sequence[int], count: int) -> None:
        """The first `count` hashes of what was looked for are read: used again, from the tail as a request releases."""
        self.looked_up += len(chain) * self.hash_blocks
        self.hit += count * self.hash_blocks
        for one in reversed(chain[:count]):
            if one in self._there:
                self._there.move_to_end(one)


def take_tiers(cache: BlockCache, below: LowerTier, request: int, hashes: Sequence[int] | Array,
               blocks: int) -> tuple[int, int] | None:  # fmt: skip
    """As `cache.take`, and what HBM lacks is looked for below: leading blocks that were in HBM, and those after them
    that must be fetched. None, and nothing changed, if there is no room in HBM."""
    wanted = cache.chain(hashes)[: blocks // cache.hash_blocks]
    missing = wanted[cache.hit_blocks(hashes) // cache.hash_blocks :]
    found = below.leading(missing)
    hit = cache.take(request, hashes, blocks)
    if hit is None:
        return None
    below.fetch(missing, found)
    return hit, found * cache.hash_blocks
