"""Errors of measured points: by family, GPU and framework, and beside those of other predictions of the same points."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from simulator.errors import InputError

METRICS = ("tpot_ms", "ttft_ms", "output_tok_s_per_gpu")
BESIDE = {"tpot_ms": "tpot", "ttft_ms": "ttft", "output_tok_s_per_gpu": "tok_s_gpu"}
"""Names of the metrics in a file of other predictions."""
OURS = "braid"
Others = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Other predictions, by the point's id and who made them; times in ms."""


@dataclass(frozen=True)
class PointRow:
    """One metric of one point. of: family, GPU and framework; value: as measured; simulated: None, with a reason, where
    it cannot be."""

    id: str
    of: tuple[str, str, str]
    metric: str
    value: float
    simulated: float | None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Relative."""
        return None if self.simulated is None or not self.value else self.simulated / self.value - 1.0

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of what it is counted in."""
        return tuple(dict.fromkeys(("all", *(one for one in self.of if one), " ".join(self.of).strip())))

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        found = {"id": self.id, "metric": self.metric, "value": self.value, "simulated": self.simulated,
                 "error": self.error}  # fmt: skip
        return found | ({"reason": self.reason} if self.reason else {})


class Errors(NamedTuple):
    """Of a metric of a group of points. signed: median; median, mean, decile: of the size, the ninth decile; within:
    share within 25%."""

    metric: str
    group: str
    points: int
    signed: float
    median: float
    mean: float
    decile: float
    within: float


def summary(rows: Sequence[PointRow]) -> list[Errors]:
    """Of all, of families, of GPUs, of frameworks, and of each three of them, metric by metric."""
    found = []
    for metric, group, those in _grouped(rows, lambda row: row.error is not None):
        errors = [row.error for row in those if row.error is not None]
        sizes = sorted(map(abs, errors))
        found.append(Errors(metric, group, len(sizes), median(errors), median(sizes), fmean(sizes),
                            sizes[ceil(0.9 * len(sizes)) - 1], fmean(size <= 0.25 for size in sizes)))  # fmt: skip
    return found


def _grouped(rows: Sequence[PointRow],
             counts: Callable[[PointRow], bool]) -> list[tuple[str, str, list[PointRow]]]:  # fmt: skip
    """(metric, group, rows that count), all rows first, then groups as they come, the smaller ones after the larger."""
    found: dict[tuple[int, int, str], list[PointRow]] = {}
    for row in rows:
        if row.metric and counts(row):
            for group in row.groups:
                depth = 0 if group == "all" else 2 if group == row.groups[-1] else 1
                found.setdefault((METRICS.index(row.metric), depth, group), []).append(row)
    return [(METRICS[metric], group, those) for (metric, _, group), those in sorted(found.items())]


def reasons(rows: Sequence[PointRow]) -> list[tuple[str, int, str]]:
    """(reason, points, the first one's id) of those that cannot be simulated, the most frequent first."""
    ids: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.reason:
            ids.setdefault(row.reason, {})[row.id] = None
    counted = Counter({reason: len(those) for reason, those in ids.items()})
    return [(reason, count, next(iter(ids[reason]))) for reason, count in counted.most_common()]


def read_others(path: Path) -> Others:
    """Other predictions, by the point's id and who made them: a JSON line {"id": "a", "formula": {"tpot": 9.1, "ttft":
    80, "tok_s_gpu": 210}, ...}, times in ms. InputError names file and line of what is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read predictions from '{path}': {why}") from None
    found: dict[str, dict[str, dict[str, float]]] = {}
    for number, line in enumerate(lines, 1):
        try:
            one = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            why = getattr(error, "msg", "") or str(error)
            raise InputError(f"{path}, line {number}: {why}: a line is one JSON object") from None
        if one is None:
            continue
        if not isinstance(one, dict) or "id" not in one:
            raise InputError(f"{path}, line {number}: a prediction is a JSON object with the id of a point")
        found[str(one["id"])] = {name: value for name, value in one.items() if isinstance(value, dict)}
    return found


def names_of(others: Others) -> list[str]:
    """Who made them, in their order in the file."""
    return list(dict.fromkeys(name for one in others.values() for name in one))


def said(row: PointRow, others: Others, name: str) -> float | None:
    """What a prediction says of the metric of a point; None: nothing."""
    if name == OURS:
        return row.simulated
    value = others.get(row.id, {}).get(name, {}).get(BESIDE[row.metric])
    return value if isinstance(value, int | float) else None


def beside(rows: Sequence[PointRow], others: Others) -> list[tuple[str, str, int, dict[str, Any]]]:
    """(metric, group, points, {name: (median, mean) of the size of the error}), Braid first, on the points of which
    all of them say something."""
    names = names_of(others)
    if not names:
        return []
    table = []
    shared = _grouped(rows, lambda row: None not in [said(row, others, one) for one in (OURS, *names)])
    for metric, group, those in shared:
        sizes = {name: [abs((said(row, others, name) or 0.0) / row.value - 1.0) for row in those]
                 for name in (OURS, *names)}  # fmt: skip
        table.append((metric, group, len(those), {name: (median(size), fmean(size)) for name, size in sizes.items()}))
    return table
