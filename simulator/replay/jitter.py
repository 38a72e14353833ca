"""Launches and kernels that take now longer and now shorter: a rank's own draw of its tape.

Every launch, and every kernel, takes its time times a log-normal factor of mean 1, so that a rank is as fast as before
in the mean. A captured graph is one launch. Of a kernel latency, compute and the rates that are its own are drawn, and
neither its bytes nor what it shares. Ranks draw apart, so a collective waits for the slowest of them, the longer the
more there are: the largest of n draws grows with n.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import exp
from statistics import NormalDist
from typing import NamedTuple

from simulator import np
from simulator.die.kernels import Cost
from simulator.die.tape import LaunchWindow, Tape, TapeStep

STREAM, OF_KERNELS = 7, 13  # of a run's draws, beside those of routing and lengths
FACTORS = 64
"""Of kernels, which many ranks share: the middles of so many equally likely parts of the distribution."""


class Jitter(NamedTuple):
    """Of the logarithms of launches' and kernels' factors the sigmas, and the seed that they are drawn from."""

    launches: float = 0.0
    seed: int = 0
    kernels: float = 0.0

    @property
    def any(self) -> bool:
        """Whether ranks draw at all."""
        return bool(self.launches or self.kernels)


NONE = Jitter()


class Draws:
    """What ranks draw. Kernels that cost the same and drew the same factor share what they cost then."""

    def __init__(self, jitter: Jitter) -> None:
        self._jitter = jitter
        self._slower: dict[tuple[int, float], Cost] = {}

    def of(self, tape: Tape, rank: int) -> Tape:
        """The tape of one rank with what is drawn."""
        sigma, seed, of_kernels = self._jitter
        tape = _launched(tape, sigma, seed, rank) if sigma else tape
        return replace(tape, costs=self._costs(tape, rank)) if of_kernels else tape

    def _costs(self, tape: Tape, rank: int) -> list[Cost | None]:
        random = np.random.default_rng((self._jitter.seed, OF_KERNELS, rank))
        factors = factors_of(self._jitter.kernels)
        drawn = [factors[one] for one in random.integers(FACTORS, size=len(tape.costs)).tolist()]
        return [cost and self._times(cost, factor) for cost, factor in zip(tape.costs, drawn, strict=True)]

    def _times(self, cost: Cost, factor: float) -> Cost:
        key = id(cost), factor  # tapes keep the costs
        if key not in self._slower:
            self._slower[key] = replace(
                cost, latency_s=cost.latency_s * factor, tile_s=cost.tile_s * factor,
                prologue_s=cost.prologue_s * factor, unit_rate_bytes_per_s=cost.unit_rate_bytes_per_s / factor,
                hbm_rate_bytes_per_s=cost.hbm_rate_bytes_per_s / factor)  # fmt: skip
        return self._slower[key]


@cache
def factors_of(sigma: float) -> tuple[float, ...]:
    """FACTORS equally likely factors of mean 1, ascending; sigma: of their logarithm."""
    drawn = [exp(sigma * NormalDist().inv_cdf((one + 0.5) / FACTORS)) for one in range(FACTORS)]
    return tuple(factor * FACTORS / sum(drawn) for factor in drawn)


def _launched(tape: Tape, sigma: float, seed: int, rank: int) -> Tape:
    random = np.random.default_rng((seed, STREAM, rank))
    launched_ps = [0] * len(tape.windows)  # as the tape has it, and as drawn
    drawn_ps = [0] * len(tape.windows)
    steps: list[TapeStep] = []
    for step in tape.steps:
        drawn_ps[step.window] += _drawn(random, step.offset_ps - launched_ps[step.window], sigma)
        launched_ps[step.window] = step.offset_ps
        steps.append(replace(step, offset_ps=drawn_ps[step.window]))
    windows = [LaunchWindow(one.after, one.read_ps, one.length_ps - launched + drawn)
               for one, launched, drawn in zip(tape.windows, launched_ps, drawn_ps, strict=True)]  # fmt: skip
    return replace(tape, steps=steps, windows=windows)


def _drawn(random: np.random.Generator, length_ps: int, sigma: float) -> int:
    """A launch of this length in the mean; what takes no time is no launch."""
    return round(length_ps * random.lognormal(-sigma * sigma / 2.0, sigma)) if length_ps else 0
