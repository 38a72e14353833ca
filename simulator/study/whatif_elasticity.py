"""Elasticities: by how many percent a metric changes where a number of the machine is one percent larger.

    elasticity = ln(metric above / metric below) / ln(number above / number below)

by two runs, DELTA below and above; a whole number goes to its neighbours, and one that cannot go further on one side (a
share of 1) stays there. A metric that is inversely proportional to a number has -1, one that does not depend on it 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log

from simulator.study.whatif import AS_IS, Answers, Base, Settings

DELTA = 0.05


@dataclass(frozen=True)
class Ends:
    """A number at both ends: what is changed there, and its values; share: of the critical path that it bounds."""

    parameter: str
    share: float
    low: Settings
    high: Settings
    values: tuple[float, float]


@dataclass(frozen=True)
class Elasticity:
    """A number of the machine with its value as text, how it is known, what it bounds of the critical path, and the
    elasticity of the metric. reason: why there is none."""

    parameter: str
    value: str
    kind: str
    confidence: str
    share: float
    elasticity: float | None
    reason: str


def ends(base: Base, every: bool = False) -> Iterator[Ends]:
    """Of each number that bounds more than 1% of the critical path; every: of all that the run reads."""
    shares = {row["name"]: row["share"] for row in base.result.parameters} if base.result.makespan_ps else {}
    chosen = [key for key in base.numbers if key in base.read] if every else list(shares)
    for key in chosen:
        value = base.numbers[key].value if key in base.numbers else 0.0
        if value > 0:
            (low, below), (high, above) = (_end(base, key, value, sign) for sign in (-1, 1))
            yield Ends(key, shares.get(key, 0.0), low, high, (below, above))


def _end(base: Base, key: str, value: float, sign: int) -> tuple[Settings, float]:
    """What is changed at one end, and the value there: as it is, where nothing else can be set."""
    near = value * (1.0 + sign * DELTA)
    if base.is_count(key):
        near = max(float(floor(near) if sign < 0 else ceil(near)), 1.0)
    if base.is_share(key):
        near = min(near, 1.0)
    return (AS_IS, value) if near == value else (base.of_machine({key: near}), near)


def elasticities(base: Base, asked: Sequence[Ends], answers: Answers) -> list[Elasticity]:
    """The largest first, whatever their sign; those that there are none of last."""
    rows = [_row(base, one, answers) for one in asked]
    return sorted(rows, key=lambda row: (-abs(row.elasticity) if row.elasticity is not None else 1.0, row.parameter))


def _row(base: Base, one: Ends, answers: Answers) -> Elasticity:
    known = base.numbers[one.parameter]
    outcomes = [answers[one.low], answers[one.high]]
    found, reason = None, next((outcome.reason for outcome in outcomes if outcome.reason), "")
    below, above = (outcome.value(base.metric) for outcome in outcomes)
    if not reason and one.values[0] == one.values[1]:
        reason = "it can be neither more nor less"
    elif not reason and (not below or not above or below < 0.0 or above < 0.0):
        reason = f"{base.metric} is not positive at both ends"
    elif not reason and below and above:
        found = log(above / below) / log(one.values[1] / one.values[0])
    return Elasticity(one.parameter, str(known), known.kind, known.confidence or "", one.share, found, reason)
