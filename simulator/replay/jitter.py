"""Launches of a host that take now longer and now shorter: a rank's own draw of when its tape is issued.

Every launch takes its time times a log-normal factor of mean 1, so that a host is as fast as before in the mean. A
captured graph is one launch. Ranks draw apart, so a collective waits for the slowest of them, the longer the more there
are: the largest of n draws grows with n.
"""

from __future__ import annotations

from dataclasses import replace

from simulator import np
from simulator.die.tape import LaunchWindow, Tape, TapeStep

STREAM = 7  # of a run's draws, beside those of routing and lengths


def jittered(tape: Tape, sigma: float, seed: int, rank: int) -> Tape:
    """The tape of one rank with its launches drawn; sigma: of the logarithm of a launch's factor."""
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
