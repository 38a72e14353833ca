"""The band of uncertainty: the numbers of a machine drawn within what is known of them, all at once, many times.

Each number that the run reads is drawn evenly between its two plausible ends, 3%, 10% or 30% off by its confidence (H,
M, L), independently of the others: value x (1 + range x u), u even in -1..1. An assumed number without a confidence
is as one of L, as in `braid influence`. Published counts (cores, dies, sizes of a mesh) stay, other whole numbers are
rounded, and a share is at most 1. A draw is made of seed, number of the draw and key alone: more draws, or a number
more on the machine, change none of those that were there.

Which numbers make the band wide is told twice: to first order by elasticities (even in +-r has a variance of r^2 / 3),

    share of variance = (elasticity x range)^2 / sum over all numbers that bound the path

and by the rank correlation of what was drawn with what came of it, which N draws tell to about 1 / sqrt(N).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from statistics import correlation

from simulator import np
from simulator.study.influence import RANGES
from simulator.study.whatif import Answers, Base, Outcome, Settings
from simulator.study.whatif_elasticity import Elasticity
from simulator.units import Quantity

DRAWS = 30
_SHOWN = (10, 50, 90)  # percentiles


@dataclass(frozen=True)
class Drawn:
    """A number that is drawn. spread: how far it may be off, as a share. whole: it is rounded. most: if not endless."""

    parameter: str
    value: float
    spread: float
    whole: bool
    most: float | None

    def at(self, even: float) -> float:
        """Its value at a place in -1..1 between its ends."""
        value = self.value * (1.0 + self.spread * even)
        if self.whole:
            value = float(max(round(value), 1))
        return value if self.most is None else min(value, self.most)


@dataclass(frozen=True)
class Spread:
    """A metric over all draws that ran, beside its value as it is; percentiles are linear between draws."""

    metric: str
    point: float
    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class Cause:
    """A number that makes the band wide. range: how far it may be off, as a share; moves: the metric by so much at the
    end of its range, to first order; variance: its share of that of all; rank: correlation of ranks."""

    parameter: str
    range: float
    moves: float
    variance: float
    rank: float | None


@dataclass(frozen=True)
class Band:
    """What the draws gave. draws: how many ran; reasons: why others did not; drawn: how many numbers were drawn."""

    draws: int
    drawn: int
    metrics: tuple[Spread, ...]
    causes: tuple[Cause, ...]
    reasons: tuple[str, ...]


def drawn_of(base: Base, ranges: Mapping[str, float] = RANGES) -> list[Drawn]:
    """The numbers that are drawn: all that the run reads, but for those that are known."""
    found = []
    for key, quantity in base.numbers.items():
        spread = _spread(quantity, ranges) if key in base.read else None
        if spread is None or not quantity.value:
            continue
        found.append(Drawn(key, quantity.value, spread, base.is_count(key), 1.0 if base.is_share(key) else None))
    return found


def _spread(quantity: Quantity, ranges: Mapping[str, float]) -> float | None:
    """How far a number may be off; None for one that is known."""
    counted = quantity.unit == "1" and quantity.value == round(quantity.value)
    if quantity.kind == "published" and counted:
        return None
    confidence = quantity.confidence or ("L" if quantity.kind == "assumed" else None)
    return ranges[confidence] if confidence else None


def draw(base: Base, drawn: Sequence[Drawn], number: int) -> Settings:
    """The what-if of one draw."""
    return base.of_machine({one.parameter: one.at(even(base.seed, number, one.parameter)) for one in drawn})


def even(seed: int, number: int, key: str) -> float:
    """A number drawn evenly in -1..1, which depends on these three alone."""
    bits = int.from_bytes(sha256(f"{seed}/{number}/{key}".encode()).digest()[:8])
    return (bits >> 11) / 2.0**52 - 1.0


def band_of(base: Base, drawn: Sequence[Drawn], asked: Sequence[Settings], answers: Answers,
            elasticities: Sequence[Elasticity]) -> Band:
    """What came of all draws."""
    outcomes = [answers[one] for one in asked]
    ran = [number for number, one in enumerate(outcomes) if not one.reason]
    metrics = dict.fromkeys((base.metric, *(name for name in base.measures if name in base.outcome.metrics)))
    there = [outcomes[number] for number in ran]
    spreads = tuple(_spread_of(base, name, there) for name in metrics) if ran else ()
    values = [one.value(base.metric) or 0.0 for one in there]
    known = {one.parameter: one for one in drawn}
    reach = {one.parameter: one.elasticity * known[one.parameter].spread for one in elasticities
             if one.parameter in known and one.elasticity is not None}  # fmt: skip
    whole = sum(part**2 for part in reach.values()) or 1.0
    places = _places(values)
    causes = [Cause(key, known[key].spread, part, part**2 / whole,
                    _rank_correlation(_places([even(base.seed, number, key) for number in ran]), places))
              for key, part in reach.items()]  # fmt: skip
    reasons = tuple(dict.fromkeys(one.reason for one in outcomes if one.reason))
    return Band(len(ran), len(drawn), spreads,
                tuple(sorted(causes, key=lambda one: (-one.variance, one.parameter))), reasons)  # fmt: skip


def _spread_of(base: Base, metric: str, there: Sequence[Outcome]) -> Spread:
    values = [value for one in there if (value := one.value(metric)) is not None]
    p10, p50, p90 = (float(one) for one in np.percentile(values, _SHOWN))
    return Spread(metric, base.outcome.value(metric) or 0.0, p10, p50, p90)


def _places(values: Sequence[float]) -> list[int]:
    """How many of the values are less than each: its rank, the lowest of those that are equal."""
    found: list[int] = np.searchsorted(np.sort(values), values).tolist()
    return found


def _rank_correlation(one: Sequence[int], other: Sequence[int]) -> float | None:
    """Of Spearman, from the ranks; None where there is nothing to rank."""
    if len(one) < 3 or len(set(other)) < 2 or len(set(one)) < 2:
        return None
    return correlation(one, other)
