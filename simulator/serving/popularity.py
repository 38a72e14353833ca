"""Popularity of experts that drifts: it is the same power law at all times, and who is popular changes.

Every expert of every layer has a score that is normally distributed and correlated over time with exp(-dt / drift_s)
(an Ornstein-Uhlenbeck process); the expert with the i-th highest score has a popularity proportional to (i + 1) **
-skew. After one time constant the scores have a correlation of 0.37 with what they were, after three of 0.05. Time goes
in epochs, EPOCHS to a time constant, within which nothing changes; with drift_s 0 there is one epoch for ever.

Which process the popularity of experts in service follows is not published: this one is assumed, for it has one number
and no direction, and leaves the load of the whole as uneven as `routing.skew` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt

from simulator import np
from simulator.serving.draws import stream_of
from simulator.units import to_ps

EPOCHS = 16  # in a time constant


class Popularity:
    """layers: how many, with so many experts each. InputError for a seed below 0."""

    def __init__(self, layers: int, experts: int, skew: float, drift_s: float, seed: int) -> None:
        self._shape, self._seed, self._skew = (layers, experts), seed, skew
        self.name = f"experts of seed {seed}"
        self._epoch_ps = to_ps(drift_s / EPOCHS)
        self._epoch = 0
        self._scores = self._normal(0)
        self._now = by_score(self._scores, skew)

    def epoch(self, at_ps: int) -> int:
        """The number of the epoch at a time."""
        return at_ps // self._epoch_ps if self._epoch_ps else 0

    def until_ps(self, epoch: int) -> int | None:
        """When an epoch ends; None: never."""
        return (epoch + 1) * self._epoch_ps if self._epoch_ps else None

    def at(self, epoch: int) -> np.Array:
        """[layer, expert], of each layer they add up to 1; the same array for the same epoch. ValueError for one that
        is over."""
        if epoch < self._epoch:
            raise ValueError(f"epoch {epoch} is over: it is {self._epoch}")
        if epoch > self._epoch:
            for number in range(self._epoch + 1, epoch + 1):
                self._scores = drifted(self._scores, self._normal(number), exp(-1.0 / EPOCHS))
            self._epoch, self._now = epoch, by_score(self._scores, self._skew)
        return self._now

    def _normal(self, epoch: int) -> np.Array:
        return stream_of(self._seed, "experts", epoch).standard_normal(self._shape)


def drifted(scores: np.Array, new: np.Array, correlation: float) -> np.Array:
    """Scores that have so much in common with what they were; new: drawn for what they have not."""
    return correlation * scores + sqrt(1.0 - correlation**2) * new


def by_score(scores: np.Array, skew: float) -> np.Array:
    """[layer, expert] popularity: a power law of the order of the scores."""
    law = np.arange(1, scores.shape[1] + 1, dtype=float) ** -skew
    popularity = np.empty_like(scores)
    np.put_along_axis(popularity, np.argsort(-scores, axis=1, kind="stable"), law[None, :] / law.sum(), axis=1)
    return popularity


def counted(steps: Sequence[tuple[float, np.Array]]) -> np.Array:
    """[layer, expert] load of steps with so many tokens each, at a popularity each, as shares of a layer; tokens are
    counted as they are expected. Exact where popularity was the same in all of them."""
    first = steps[0][1]
    if all(popularity is first for _, popularity in steps):
        return first
    total = sum(tokens for tokens, _ in steps)
    return np.sum([tokens / total * popularity for tokens, popularity in steps], axis=0)
