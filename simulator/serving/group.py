"""A data-parallel group of an engine: who waits, who prefills, who decodes, and the cache that they share.

All requests that decode take part in every decode step of their group, so a group only counts these steps: a request
that joined at the count j and takes s steps ends at j + s. What they have generated meanwhile, and which blocks they
have begun, follows from the count (`growth.py`).
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from simulator.serving.cache import BlockCache
from simulator.serving.growth import Growth, OneToken
from simulator.serving.sequences import Sequence, queue_up

GROWN = -1  # holds in the cache what decode steps have begun


class Run(NamedTuple):
    """Hashes one after the other that lie in a tier below HBM."""

    tier: str
    chain: list[int]


class LowerTiers(Protocol):
    """What lies below the HBM of a group (`tiers.Below`)."""

    def found(self, one: Sequence) -> list[Run]:
        """Where the blocks of a prompt lie that come after those in HBM."""

    def load(self, one: Sequence, runs: list[Run], spare: int, whole: int) -> tuple[int, int] | None:
        """Holds blocks for them and begins to load them: tokens and blocks; None where there is no room."""

    def keep(self, one: Sequence) -> None:
        """A prompt is computed."""

    def forget(self) -> None:
        """What is in the memory of the engine's own host is gone."""


class Group:
    """cache: its blocks. waiting, prefilling, decoding: requests; waited: steps for which prompts were held back;
    coming, arrived: of those prefilled elsewhere, whose keys and values are on their way, or have come since the last
    step. below: what lies below HBM; loading: requests whose blocks come from there. decoded: decode steps so far.
    promised: blocks that running requests will need beside those that they hold. full: the first one that waits lacked
    room, and none has gone since. prompt_tokens: of all that are here. aligned: prompts are cut at ends of blocks.
    by_priority: who waits and who gives way goes by priorities first."""

    def __init__(self, cache: BlockCache, growth: Growth | None = None, aligned: bool = False,
                 by_priority: bool = False) -> None:
        self.cache, self.block, self.aligned, self.by_priority = cache, cache.block_tokens, aligned, by_priority
        self.growth = growth or OneToken(self.block)
        self.waiting: deque[Sequence] = deque()
        self.waited = 0
        self.coming: dict[int, Sequence] = {}
        self.below: LowerTiers | None = None
        self.loading: dict[int, Sequence] = {}
        self.arrived: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.decoding: dict[int, Sequence] = {}
        self.decoded = 0
        self.full = False
        self.promised = self.prompt_tokens = 0
        self._queued = self._came = 0  # tokens of prompts that wait: not computed, and computed
        self._finals = 0  # tokens that those who decode will have cached in the end
        self._ends: list[tuple[int, int]] = []
        cache.take(GROWN, [], 0)

    @property
    def running(self) -> int:
        """Requests that were scheduled and have not ended."""
        return (len(self.prefilling) + len(self.decoding) + len(self.coming) + len(self.arrived)
                + len(self.loading))  # fmt: skip

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that are not computed."""
        return self._queued + sum(one.new for one in (*self.prefilling, *self.loading.values()))

    @property
    def begun_tokens(self) -> int:
        """Tokens cached, or on their way, for requests that do not decode yet."""
        begun = (*self.prefilling, *self.coming.values(), *self.arrived, *self.loading.values())
        return self._came + sum(one.computed for one in begun)

    @property
    def cached(self) -> int:
        """Tokens that those who decode have cached, in all."""
        return self.growth.cached(self.decoded)

    @property
    def to_come(self) -> int:
        """Tokens that they will still generate."""
        return self._finals - self.cached

    def length(self, one: Sequence, later: int = 0) -> int:
        """Tokens that a request which decodes has cached, now or so many steps later."""
        return one.prompt + self.growth.grown(one, self.decoded - one.joined + later)

    def add(self, one: Sequence, first: bool = False) -> None:
        """A request waits behind all others, or, where it gave way, before them; of its priority where that counts."""
        queue_up(self.waiting, one, first=first, by_priority=self.by_priority)
        self.prompt_tokens += one.input
        self._queued += one.new
        self._came += one.computed

    def begin(self, computed: int, blocks: int) -> Sequence:
        """The first request that waits is scheduled, and holds so many blocks; so many tokens of it are there."""
        one = self.waiting.popleft()
        self._queued -= one.new
        self._came -= one.computed
        one.computed, one.blocks = computed, blocks
        self.promised += self.most_blocks(one) - blocks
        return one

    def grow(self, one: Sequence, blocks: int) -> bool:
        """More blocks for a prompt that has begun; False if there is no room."""
        if blocks and not self.cache.grow(one.request, blocks):
            return False
        one.blocks += blocks
        self.promised -= blocks
        return True

    def most_blocks(self, one: Sequence) -> int:
        """That a request will have had in the end."""
        return -(-(one.input + one.output) // self.block)

    def join(self, one: Sequence) -> None:
        """A request whose prompt is computed decodes from the next step on; its first token is there."""
        one.joined = self.decoded
        self.decoding[one.request] = one
        self.growth.join(one, self.decoded)
        self._finals += one.prompt + one.output - one.emitted
        heappush(self._ends, (self.decoded + one.steps, one.request))

    def steps_to_end(self) -> int:
        """Decode steps until the first request ends; 0 if none decodes."""
        while self._ends and not self._is_end(*self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] - self.decoded if self._ends else 0

    def _is_end(self, at: int, request: int) -> bool:
        """Whether this is the end of a request that still decodes; one that was preempted has another."""
        one = self.decoding.get(request)
        return one is not None and one.joined + one.steps == at

    def blocks_of(self, steps: int) -> int:
        """Blocks that so many decode steps begin."""
        return self.growth.begun(self.decoded, steps)

    def decode(self, steps: int) -> list[Sequence]:
        """All that decode get so many tokens; gives those that have ended, which hold nothing any more."""
        if not self.decoding:
            return []
        begun = self.blocks_of(steps)
        if not self.cache.grow(GROWN, begun):
            raise ValueError(f"{begun} blocks are not there: {self.cache.free} are free")
        self.promised -= begun
        self.decoded += steps
        ended: dict[int, Sequence] = {}  # a request that was preempted may have the same end twice
        while self._ends and self._ends[0][0] <= self.decoded:
            at, request = heappop(self._ends)
            if self._is_end(at, request):
                ended[request] = self.decoding[request]
        for one in ended.values():
            self.leave(one)
        return list(ended.values())

    def finish(self, one: Sequence) -> None:
        """A request that does not decode gives back its blocks."""
        self.promised -= self.most_blocks(one) - one.blocks
        self.prompt_tokens -= one.input
        self.cache.release(one.request)
        self.full = False

    def lose(self) -> list[tuple[Sequence, int]]:
        """All that is here is gone: the requests, which hold nothing any more, each with the tokens of it that were
        cached."""
        found = [(one, 0) for one in self.waiting]
        self.prompt_tokens -= sum(one.input for one in self.waiting)
        self.waiting.clear()
        self._queued = self._came = self.waited = 0
        for one in [*self.decoding.values()]:
            found.append((one, self.length(one)))
            self.leave(one)
        for one in (*self.prefilling, *self.arrived, *self.coming.values(), *self.loading.values()):
            there = one.request not in self.coming and one.request not in self.loading
            found.append((one, one.computed if there else 0))
            self.finish(one)
        for some in (self.prefilling, self.arrived, self.coming, self.loading):
            some.clear()
        for one, _ in found:
            one.gone = True
        return found

    def withdraw(self, one: Sequence) -> bool:
        """A request that does not decode, and was to be prefilled elsewhere, goes; False: it is not here."""
        if one.request in self.coming:
            del self.coming[one.request]
            self.finish(one)
        elif one in self.waiting:
            self.waiting.remove(one)
            self.prompt_tokens -= one.input
            self._queued -= one.new
            self._came -= one.computed
        else:
            return False
        return True

    def forget(self) -> None:
        """What prompts that come could share is gone, here and in the memory of the host."""
        self.cache.forget()
        if self.below is not None:
            self.below.forget()

    def leave(self, one: Sequence) -> None:
        """A request stops decoding and gives back its blocks; `emitted` says how far it came."""
        final = one.prompt + one.output - one.emitted
        one.emitted += self.growth.grown(one, self.decoded - one.joined)
        del self.decoding[one.request]
        self._finals -= final
        begun = self.growth.leave(one, self.decoded)
        self.promised -= self.most_blocks(one) - one.blocks - begun
        self.prompt_tokens -= one.input
        self.cache.give(GROWN, begun)
        self.cache.release(one.request)
        self.full = False
