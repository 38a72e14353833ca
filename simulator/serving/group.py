"""A data-parallel group of an engine: who waits, who prefills, who decodes, and the cache that they share.

All requests that decode get a token in every decode step of their group, so a group only counts these steps: a request
that joined at the count j with o tokens to come ends at j + o, and has L + (count - j) tokens cached. What it needs of
blocks follows in the same way: a request writes the key and value of a token at every step, and begins a block when its
length is a multiple of a block; (length - count) modulo the block size stays the same as long as it decodes, so
requests are counted by it (`classes`), and how many blocks any number of steps begins is a sum over classes.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from simulator.serving.cache import BlockCache
from simulator.serving.sequences import Sequence

GROWN = -1  # holds in the cache what decode steps have begun


class Group:
    """cache: its blocks. waiting, prefilling, decoding: requests; unseen: those that came after the next step was
    decided; waited: steps for which prompts were held back; coming, arrived: of those prefilled elsewhere, whose keys
    and values are on their way, or have come since the last step. decoded: decode steps so far. cached: tokens that
    those who decode have, in all; to_come: that they will still generate. promised: blocks that running requests will
    need beside those that they hold."""

    def __init__(self, cache: BlockCache) -> None:
        self.cache, self.block = cache, cache.block_tokens
        self.waiting: deque[Sequence] = deque()
        self.unseen: list[Sequence] = []
        self.waited = 0
        self.coming: dict[int, Sequence] = {}
        self.arrived: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.decoding: dict[int, Sequence] = {}
        self.decoded = 0
        self.cached = self.to_come = self.promised = 0
        self.classes = [0] * self.block
        self._ends: list[tuple[int, int]] = []
        cache.take(GROWN, [], 0)

    @property
    def running(self) -> int:
        """Requests that were scheduled and have not ended."""
        return len(self.prefilling) + len(self.decoding) + len(self.coming) + len(self.arrived)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that are not computed."""
        return sum(one.new for one in self.waiting) + sum(one.new for one in self.prefilling)

    def length(self, one: Sequence) -> int:
        """Tokens that a request which decodes has cached."""
        return one.prompt + self.decoded - one.joined

    def begin(self, computed: int, blocks: int) -> Sequence:
        """The first request that waits is scheduled, and holds so many blocks; so many tokens of it are there."""
        one = self.waiting.popleft()
        one.computed, one.blocks = computed, blocks
        self.promised += self._most_blocks(one) - blocks
        return one

    def grow(self, one: Sequence, blocks: int) -> bool:
        """More blocks for a prompt that has begun; False if there is no room."""
        if blocks and not self.cache.grow(one.request, blocks):
            return False
        one.blocks += blocks
        self.promised -= blocks
        return True

    def _most_blocks(self, one: Sequence) -> int:
        """That a request will have had in the end."""
        return -(-(one.input + one.output) // self.block)

    def join(self, one: Sequence) -> None:
        """A request whose prompt is computed decodes from the next step on; its first token is there."""
        one.joined = self.decoded
        self.decoding[one.request] = one
        self.cached += one.prompt
        self.to_come += one.output - one.emitted
        self.classes[(one.prompt - self.decoded) % self.block] += 1
        heappush(self._ends, (self.decoded + one.output - one.emitted, one.request))

    def steps_to_end(self) -> int:
        """Decode steps until the first request ends; 0 if none decodes."""
        while self._ends and not self._is_end(*self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] - self.decoded if self._ends else 0

    def _is_end(self, at: int, request: int) -> bool:
        """Whether this is the end of a request that still decodes; one that was preempted has another."""
        one = self.decoding.get(request)
        return one is not None and one.joined + one.output - one.emitted == at

    def blocks_of(self, steps: int) -> int:
        """Blocks that so many decode steps begin."""
        rounds, rest = divmod(steps, self.block)
        begun = rounds * len(self.decoding)
        return begun + sum(self.classes[-(self.decoded + step) % self.block] for step in range(rest))

    def decode(self, steps: int) -> list[Sequence]:
        """All that decode get so many tokens; gives those that have ended, which hold nothing any more."""
        if not self.decoding:
            return []
        begun = self.blocks_of(steps)
        if not self.cache.grow(GROWN, begun):
            raise ValueError(f"{begun} blocks are not there: {self.cache.free} are free")
        self.promised -= begun
        self.decoded += steps
        self.cached += steps * len(self.decoding)
        self.to_come -= steps * len(self.decoding)
        ended = []
        while self._ends and self._ends[0][0] <= self.decoded:
            at, request = heappop(self._ends)
            if self._is_end(at, request):
                ended.append(self.decoding[request])
        for one in ended:
            self.leave(one)
        return ended

    def finish(self, one: Sequence) -> None:
        """A request that does not decode here gives back its blocks."""
        self.promised -= self._most_blocks(one) - one.blocks
        self.cache.release(one.request)

    def leave(self, one: Sequence) -> None:
        """A request stops decoding and gives back its blocks; `emitted` says how far it came."""
        length, most = self.length(one), self._most_blocks(one)
        one.emitted += self.decoded - one.joined
        del self.decoding[one.request]
        self.cached -= length
        self.to_come -= one.output - one.emitted
        self.promised -= most - -(-length // self.block)
        self.classes[(one.prompt - one.joined) % self.block] -= 1
        self.cache.give(GROWN, -(-length // self.block) - one.blocks)
        self.cache.release(one.request)
