"""Steps drawn at random are simulated as they are, and what they take corrects what the lattice says.

The first audit falls on one of the first steps of its kind, each later one on a step between two and four times as far:
few are enough, because what the lattice does not know (waiting for uneven ranks, lengths that differ within a group) is
alike from step to step. The correction is the mean of exact over interpolated of all audits so far, of steps with and
without prompts apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

from simulator import np
from simulator.model.micro_batch import MicroBatch
from simulator.serving.draws import stream_of
from simulator.serving.levels import Levels
from simulator.serving.steps import Load, StepTimes

Mode = Literal["exact", "audit", "lattice"]
FIRST, LEAST, MOST = 8, 2.0, 4.0  # steps until the first audit at most; how many times as far the next one is


class Audit:
    """Of one engine's steps. mode: "audit"; "lattice" takes steps as interpolated, "exact" simulates every one.

    found: (exact, interpolated) seconds of every audit. interpolated: steps that were not simulated themselves.
    """

    def __init__(self, times: StepTimes | Levels, mode: Mode, seed: int) -> None:
        self._times, self.mode = times, mode
        self._random = stream_of(seed, "audits")
        self.found: list[tuple[float, float]] = []
        self.interpolated = self.exact = 0
        self._kinds = {prompts: _Kind(int(self._random.integers(1, FIRST + 1))) for prompts in (False, True)}

    def steps_together(self) -> int:
        """How many steps without prompts may be asked for at once: an audited one is asked for alone."""
        if self.mode == "lattice":
            return sys.maxsize
        kind = self._kinds[False]
        return 1 if self.mode == "exact" else max(kind.next - kind.steps - 1, 1)

    def mixed_seconds(self, load: Load, batch: Callable[[], Sequence[MicroBatch]]) -> Any:
        """What a step with prompts takes, alone in an array."""
        return self._seconds(self._kinds[True], lambda: np.array([self._times.seconds(load)]),
                             lambda: self._times.exact(batch(), load.experts))  # fmt: skip

    def decode_seconds(self, load: Load, cached: Any, batch: Callable[[], Sequence[MicroBatch]]) -> Any:
        """What steps without prompts take that follow each other; cached: as of `StepTimes.decode_seconds`; batch: of
        the first of them."""
        return self._seconds(self._kinds[False], lambda: self._times.decode_seconds(load, cached),
                             lambda: self._times.exact(batch(), load.experts))  # fmt: skip

    def took_place(self, prompts: bool, steps: int) -> None:
        """So many steps, with prompts or without, have been."""
        self._kinds[prompts].steps += steps
        if self.mode == "exact":
            self.exact += steps
        else:
            self.interpolated += steps

    def _is_audited(self, kind: _Kind) -> bool:
        return self.mode == "exact" or (self.mode == "audit" and kind.next <= kind.steps + 1)

    def _seconds(self, kind: _Kind, interpolated: Callable[[], Any], simulated: Callable[[], float]) -> Any:
        if self.mode == "exact":
            return np.array([simulated()])
        seconds = interpolated()
        if self._is_audited(kind):
            exact, said = simulated(), float(seconds[0])
            self.found.append((exact, said))
            kind.ratios.append(exact / said)
            kind.next = round(kind.next * self._random.uniform(LEAST, MOST)) + 1
        return seconds * kind.correction


class _Kind:
    """Steps with, or without, prompts."""

    def __init__(self, first: int) -> None:
        self.steps, self.next = 0, first
        self.ratios: list[float] = []

    @property
    def correction(self) -> float:
        """Of what the lattice says."""
        return sum(self.ratios) / len(self.ratios) if self.ratios else 1.0
