"""How long kernels and collectives take, name by name, over all ranks and layers: at work, and waiting before it.

A task waits from when it is ready to when it starts: for cores, or for the last peer of its collective.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from simulator import np
from simulator.observe.columns import Array, Columns, codes, rank_weights


class Spread(NamedTuple):
    """Mean, shortest and longest, in ps."""

    mean: float
    shortest: int
    longest: int


class KernelTimes(NamedTuple):
    """All tasks of a name. per_rank: how many an average rank has. bound_by: what limited most of its time at work."""

    name: str
    kind: str
    per_rank: float
    work: Spread
    waiting: Spread
    bound_by: str


def kernel_times(columns: Columns) -> list[KernelTimes]:
    """Every name, the one with most time at work and waiting first; each of the ranks that a row stands for counts."""
    if not len(columns["rank"]):
        return []
    ranks = int(rank_weights(columns)[1].sum())
    name, names = codes(columns["name"])
    rows = np.split(np.argsort(name, kind="stable"), np.cumsum(np.bincount(name, minlength=len(names)))[:-1])
    found = [_times(columns, those, text, ranks) for those, text in zip(rows, names, strict=True)]
    return sorted(found, key=lambda one: -one.per_rank * (one.work.mean + one.waiting.mean))


def _times(columns: Columns, rows: Array, name: str, ranks: int) -> KernelTimes:
    weight, start = columns["multiplicity"][rows], columns["start_ps"][rows]
    work, waiting = columns["end_ps"][rows] - start, start - columns["ready_ps"][rows]
    bound: Counter[str] = Counter()
    for text, length in zip(columns["bound_by"][rows].tolist(), (work * weight).tolist(), strict=True):
        bound[text] += length
    return KernelTimes(name, str(columns["kind"][rows[0]]), float(weight.sum() / ranks), _spread(work, weight),
                       _spread(waiting, weight), bound.most_common(1)[0][0])  # fmt: skip


def _spread(times: Array, weight: Array) -> Spread:
    return Spread(float((times * weight).sum() / weight.sum()), int(times.min()), int(times.max()))
