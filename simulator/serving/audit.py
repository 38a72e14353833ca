"""Steps drawn at random are simulated as they are, and what they take corrects what the lattice says.

The first audit falls on one of the first steps of its kind, each later one on a step between two and four times as far:
few are enough, because what the lattice does not know (waiting for uneven ranks, lengths that differ within a group) is
alike from step to step. The correction is the mean of exact over interpolated of all audits so far, of steps with and
without prompts apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from simulator import np
from simulator.model.micro_batch import MicroBatch
from simulator.serving.steps import Load, StepTimes

Mode = Literal["exact", "audit", "lattice"]
FIRST, LEAST, MOST = 8, 2.0, 4.0  # steps until the first audit at most; how many times as far the next one is


class Audit:
    """Of one engine's steps. mode: "audit"; "lattice" takes steps as interpolated, "exact" simulates every one.

    found: (exact, interpolated) seconds of every audit. interpolated: steps that were not simulated themselves.
    """

    def __init__(self, times: StepTimes, mode: Mode, seed: int) -> None:
        self._times, self.mode = times, mode
        self._random = np.random.default_rng((seed, 7))
        self.found: list[tuple[float, float]] = []
        self.interpolated = self.exact = 0
        self._kinds = {prompts: _Kind(int(self._random.integers(1, FIRST + 1))) for prompts in (False, True)}

    def corrected(self, load: Load, seconds: float, batch: Callable[[], Sequence[MicroBatch]]) -> float:
        """What one step takes, which the lattice says takes so many seconds."""
        return float(self._corrected(self._kinds[bool(load.new)], np.array([seconds]), lambda _: batch())[0])

    def corrected_stretch(self, load: Load, seconds: Any, batch: Callable[[int], Sequence[MicroBatch]]) -> Any:
        """The same of steps that follow each other; batch: of the step of a number."""
        return self._corrected(self._kinds[bool(load.new)], seconds, batch)

    def _corrected(self, kind: _Kind, seconds: Any, batch: Callable[[int], Sequence[MicroBatch]]) -> Any:
        if self.mode == "exact":
            self.exact += len(seconds)
            return np.array([self._times.exact(batch(number)) for number in range(len(seconds))])
        self.interpolated += len(seconds)
        if self.mode == "audit" and kind.next <= kind.steps + len(seconds):
            number = max(kind.next - kind.steps - 1, 0)
            exact = self._times.exact(batch(number))
            self.found.append((exact, float(seconds[number])))
            kind.ratios.append(exact / float(seconds[number]))
            kind.next = round(kind.next * self._random.uniform(LEAST, MOST)) + 1
        kind.steps += len(seconds)
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
