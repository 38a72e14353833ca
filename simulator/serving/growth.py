"""How requests that decode grow step by step: by a token each, or by as many as their drafts yield.

A group counts decode steps; what its requests have generated, and blocks they have begun, follows from the count.

* `OneToken`: everything is exact. (length - count) modulo the block size stays the same as long as one decodes, so
  requests are counted by it (`_classes`), and how many blocks any number of steps begins is a sum over classes.
* `Drafted`: a step yields a token, and of so many drafts those that are accepted, each with a probability given that
  the one before it was. How many steps a request takes is drawn, step by step, when it joins; in between it is taken to
  grow evenly, and so are the blocks of all of them together.
"""

from __future__ import annotations

from math import ceil
from typing import Protocol

from simulator import np
from simulator.serving.draws import stream_of
from simulator.serving.sequences import Sequence


class Growth(Protocol):
    """Of the requests of one group, by the number of decode steps that it has done so far."""

    queries: int
    """Tokens of a request that a step verifies."""

    def join(self, one: Sequence, count: int) -> None:
        """A request decodes from now on; sets how many `steps` it takes."""

    def leave(self, one: Sequence, count: int) -> int:
        """It does not any more; gives the blocks that go with it, beside those that it had when it joined."""

    def grown(self, one: Sequence, steps: int) -> int:
        """Tokens that a request has generated so many steps after it joined."""

    def cached(self, count: int) -> int:
        """Tokens that all of them have cached."""

    def pace(self) -> float:
        """Tokens that all of them generate in a step."""

    def begun(self, count: int, steps: int) -> int:
        """Blocks that the next so many steps begin."""


class OneToken:
    """A token a step. block: tokens of a block."""

    queries = 1

    def __init__(self, block: int) -> None:
        self._block, self._requests, self._base = block, 0, 0  # cached tokens are _base + _requests x count
        self._classes = [0] * block

    def join(self, one: Sequence, count: int) -> None:
        one.steps = one.output - one.emitted
        self._requests += 1
        self._base += one.prompt - count
        self._classes[(one.prompt - count) % self._block] += 1

    def leave(self, one: Sequence, count: int) -> int:
        self._requests -= 1
        self._base -= one.prompt - one.joined
        self._classes[(one.prompt - one.joined) % self._block] -= 1
        return -(-(one.prompt + count - one.joined) // self._block) - one.blocks

    def grown(self, one: Sequence, steps: int) -> int:
        return steps

    def cached(self, count: int) -> int:
        return self._base + self._requests * count

    def pace(self) -> float:
        return float(self._requests)

    def begun(self, count: int, steps: int) -> int:
        rounds, rest = divmod(steps, self._block)
        return rounds * self._requests + sum(self._classes[-(count + step) % self._block] for step in range(rest))


class Drafted:
    """drafts: tokens drafted for a step; acceptance: of one of them, given the one before it."""

    def __init__(self, block: int, drafts: int, acceptance: float, seed: int) -> None:
        self.queries = 1 + drafts
        self._block, self._acceptance, self._seed = block, acceptance, seed
        self._prompts = 0
        self._paces: dict[int, float] = {}
        self._pace = self._base = 0.0  # generated tokens are _base + _pace x count

    def join(self, one: Sequence, count: int) -> None:
        one.steps = self._drawn(one)
        pace = self._paces[one.request] = (one.output - one.emitted) / one.steps
        self._prompts += one.prompt
        self._pace += pace
        self._base -= pace * count

    def leave(self, one: Sequence, count: int) -> int:
        before, pace = self._blocks(count), self._paces.pop(one.request)
        self._prompts -= one.prompt
        self._pace -= pace
        self._base += pace * one.joined
        if not self._paces:
            self._pace = self._base = 0.0
        return before - self._blocks(count)

    def grown(self, one: Sequence, steps: int) -> int:
        return one.output - one.emitted if steps >= one.steps else int(steps * self._paces[one.request])

    def cached(self, count: int) -> int:
        return self._prompts + round(self._base + self._pace * count)

    def pace(self) -> float:
        return self._pace

    def begun(self, count: int, steps: int) -> int:
        return self._blocks(count + steps) - self._blocks(count)

    def _blocks(self, count: int) -> int:
        """That all of them have begun; what is empty in a last block is about as much as when they joined."""
        return ceil(round((self._base + self._pace * count) / self._block, 6))

    def _drawn(self, one: Sequence) -> int:
        """Steps until a request has generated what it has to."""
        tokens = one.output - one.emitted
        random = stream_of(self._seed, "drafts", one.request, one.emitted)
        accepted = (random.random((tokens, self.queries - 1)) < self._acceptance).cumprod(axis=1).sum(axis=1)
        return int(np.searchsorted(np.cumsum(1 + accepted), tokens)) + 1
