"""Layouts of measured points in order of their throughput, and whether a prediction puts them in the measured order.

A case is all points of one family of models on one kind of GPU, with prompts and outputs of one length, under one load
(requests in flight, or a second, of the whole system), of at least LEAST layouts. A layout is how GPUs are shared out
(`measured.parts_of`), with framework, precision, drafts and settings: all of that is what a search chooses. In two
stricter readings the layouts of a case have one software stack (framework, precision and drafts are alike), or as many
GPUs. Output tokens a second and GPU decide: of a layout measured several times the median, on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import fmean, median
from typing import Any, NamedTuple

from simulator import np
from simulator.errors import InputError
from simulator.serving.launches import framework_of
from simulator.serving.measured import gpus_of, parts_of, precision_of
from simulator.serving.point_errors import OURS, Others, PointRow, names_of, said

METRIC = "output_tok_s_per_gpu"
LEAST = 4
"""Layouts of a case."""
FIRST = 2
"""Places of an order that a person looks at."""
TIE = 0.01
"""Layouts whose measured throughput is within this share of the best are the best, too: the TPOT of one layout repeats
within 0.6% (median of repeated points)."""
READINGS: Mapping[str, tuple[str, ...]] = {
    "layout, stack": (),
    "layout, one stack": ("framework", "precision", "drafts"),
    "layout, stack, as many GPUs": ("gpus",),
}
"""What a case is told apart by, beside family, GPU, lengths and load, by what its layouts then differ in."""


class Layout(NamedTuple):
    """words: GPUs, axes, framework, precision, drafts; rates: output tokens a second and GPU, by who predicts them."""

    words: str
    measured: float
    rates: dict[str, float]


class Case(NamedTuple):
    """of: family and kind of GPU; load: lengths and load, in words."""

    of: str
    load: str
    layouts: list[Layout]


class Score(NamedTuple):
    """Of one prediction of a group of cases. first: share of cases whose best measured layout is among its first FIRST;
    correlation: Spearman's, the median of cases; kept: measured throughput of its first layout as a share of the best
    measured one, the mean of cases."""

    first: float
    correlation: float
    kept: float


class Ranks(NamedTuple):
    """reading: of READINGS; layouts: of all cases together; scores: by who predicts."""

    reading: str
    group: str
    cases: int
    layouts: int
    scores: dict[str, Score]


def ranks(points: Sequence[Mapping[str, Any]], rows: Sequence[PointRow], others: Others) -> list[Ranks]:
    """By reading: all cases, then those of each family and GPU. Layouts count of which Braid and all others say
    something; a case of fewer than LEAST of them does not count."""
    found = []
    for reading, alike in READINGS.items():
        those = cases(points, rows, others, alike)
        groups = {group: [case for case in those if group in ("all", case.of)]
                  for group in ("all", *sorted({case.of for case in those}))}  # fmt: skip
        found += [Ranks(reading, group, len(some), sum(len(case.layouts) for case in some),
                        {name: _score(some, name) for name in (OURS, *names_of(others))})
                  for group, some in groups.items() if some]
    return found


def cases(points: Sequence[Mapping[str, Any]], rows: Sequence[PointRow], others: Others,
          alike: Sequence[str] = ()) -> list[Case]:
    """alike: what layouts of a case have in common beside their load, of READINGS."""
    rated = {row.id: row for row in rows if row.metric == METRIC}
    names = (OURS, *names_of(others))
    found: dict[tuple[str, ...], dict[str, list[tuple[float, dict[str, float]]]]] = {}
    for point in points:
        row = rated.get(str(point["id"]))
        rates = {name: rate for name in names if row and (rate := said(row, others, name)) is not None}
        if row is None or len(rates) < len(names):
            continue
        with suppress(InputError):  # what cannot be said in Braid's words is in no order
            deployed = _deployed(point)
            key = (" ".join(row.of[:2]), _load(point), *(deployed[name] for name in alike))
            found.setdefault(key, {}).setdefault(" ".join(deployed.values()), []).append((row.value, rates))
    return [Case(key[0], " ".join(key[1:]), [_layout(words, measured) for words, measured in layouts.items()])
            for key, layouts in found.items() if len(layouts) >= LEAST]  # fmt: skip


def _layout(words: str, measured: Sequence[tuple[float, dict[str, float]]]) -> Layout:
    rates = {name: median(one[name] for _, one in measured) for name in measured[0][1]}
    return Layout(words, median(value for value, _ in measured), rates)


def _deployed(point: Mapping[str, Any]) -> dict[str, str]:
    """What tells the layouts of one load apart, in words."""
    ranks, replicas = gpus_of(point)
    axes = "+".join(f"{part.workers} x {part.words}" for part in parts_of(point).values())
    return {"gpus": f"{ranks * replicas} GPUs", "axes": axes, "framework": framework_of(point),
            "precision": precision_of(point) or "as published", "drafts": str(point.get("speculative") or "none"),
            "settings": json.dumps(point.get("settings") or {}, sort_keys=True)}  # fmt: skip


def _load(point: Mapping[str, Any]) -> str:
    """Of the whole system."""
    inside, replicas = point.get("replica_concurrency"), gpus_of(point)[1]
    inside = inside * replicas if isinstance(inside, int) else point.get("concurrency")
    load = f"{inside} in flight" if inside else f"{point.get('request_rate')} a second"
    return f"{point.get('isl')}/{point.get('osl')} tokens, {load}"


def _score(those: Sequence[Case], name: str) -> Score:
    return Score(fmean(among_first(case, name) for case in those),
                 median(correlation([one.measured for one in case.layouts], [one.rates[name] for one in case.layouts])
                        for case in those),
                 fmean(kept(case, name) for case in those))  # fmt: skip


def among_first(case: Case, name: str) -> bool:
    """Whether one of the best measured layouts, which are within TIE, is among the first FIRST of a prediction, where
    of layouts that are predicted alike the best measured one comes last."""
    best = max(one.measured for one in case.layouts)
    return any(sum(other.rates[name] >= one.rates[name] for other in case.layouts) <= FIRST
               for one in case.layouts if one.measured >= (1.0 - TIE) * best)  # fmt: skip


def kept(case: Case, name: str) -> float:
    """Measured throughput of the layout that a prediction puts first (of several alike, the slowest), as a share of the
    best measured one."""
    highest = max(one.rates[name] for one in case.layouts)
    chosen = min(one.measured for one in case.layouts if one.rates[name] == highest)
    return chosen / max(one.measured for one in case.layouts)


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation: rho = cov(R, S) / (sd(R) sd(S)) of the ranks R and S of the two, where values alike
    have the mean of their ranks. 0 where all of one are alike, which is no order."""
    first, second = (ranked - ranked.mean() for ranked in (_average_ranks(one), _average_ranks(other)))
    size = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / size if size else 0.0


def _average_ranks(values: Sequence[float]) -> np.Array:
    """From 1; of values alike, the mean."""
    _, place, count = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return (ends - (count - 1) / 2.0)[place]
