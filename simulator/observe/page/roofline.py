"""The roofline of a run's kernels: what each does for a byte of HBM, and how fast it does it."""

from __future__ import annotations

from typing import NamedTuple

from simulator import np
from simulator.observe.columns import Columns, codes
from simulator.observe.recorded import Peaks
from simulator.units import PS_PER_S

MOST = 2000  # names


class KernelPoint(NamedTuple):
    """All tasks of a name together. flops_per_byte: of HBM; flops_per_s: on one rank, while it is at work; time_ps: at
    work, on an average rank."""

    name: str
    kind: str
    flops_per_byte: float
    flops_per_s: float
    time_ps: float
    bound_by: str


def kernel_points(columns: Columns) -> list[KernelPoint]:
    """Of names that have operations and move bytes in HBM the MOST that take longest, the longest first."""
    name, names = codes(columns["name"])
    weight = columns["multiplicity"]
    ranks = _ranks(columns)

    def total(amount: np.Array) -> np.Array:
        return np.bincount(name, weights=amount * weight, minlength=len(names))

    length = columns["end_ps"] - columns["start_ps"]
    flops, moved, time_ps = total(columns["flops"]), total(columns["hbm_bytes"]), total(length)
    there = np.flatnonzero((flops > 0) & (moved > 0) & (time_ps > 0))
    chosen = there[np.argsort(-time_ps[there], kind="stable")][:MOST]
    longest = _longest_rows(name, length)[chosen]
    return [KernelPoint(names[code], str(kind), float(flops[code] / moved[code]),
                        float(flops[code] / time_ps[code] * PS_PER_S), float(time_ps[code] / ranks), str(bound_by))
            for code, kind, bound_by in zip(chosen.tolist(), columns["kind"][longest], columns["bound_by"][longest],
                                            strict=True)]  # fmt: skip


def _longest_rows(name: np.Array, length: np.Array) -> np.Array:
    """Of each name its longest row, of several the first. name: numbers from 0 on, all of which there are."""
    order = np.lexsort((-length, name))
    named = name[order]
    return order[np.flatnonzero(np.diff(named, prepend=-1))]


def roofs(peaks: Peaks) -> dict[str, float]:
    """FLOP/s by "pool, type", the highest first."""
    found = {f"{pool}, {dtype}": flops for pool, by_type in peaks.flops.items() for dtype, flops in by_type.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _ranks(columns: Columns) -> int:
    rank, first = np.unique(columns["rank"], return_index=True)
    return int(columns["multiplicity"][first].sum()) if len(rank) else 1
