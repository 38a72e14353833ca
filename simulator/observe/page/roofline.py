"""The roofline of a run's kernels: what each does for a byte of HBM, and how fast it does it."""

from __future__ import annotations

from typing import NamedTuple

from simulator import np
from simulator.observe.columns import Columns, codes
from simulator.observe.recorded import Peaks
from simulator.units import PS_PER_S


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
    """Of every name that has operations and moves bytes in HBM, the longest first."""
    name, names = codes(columns["name"])
    weight = columns["multiplicity"]
    ranks = _ranks(columns)

    def total(amount: np.Array) -> np.Array:
        return np.bincount(name, weights=amount * weight, minlength=len(names))

    length = columns["end_ps"] - columns["start_ps"]
    flops, moved, time_ps = total(columns["flops"]), total(columns["hbm_bytes"]), total(length)
    made = []
    for code in np.flatnonzero((flops > 0) & (moved > 0) & (time_ps > 0)).tolist():
        rows = np.flatnonzero(name == code)
        longest = rows[length[rows].argmax()]
        made.append(KernelPoint(names[code], str(columns["kind"][longest]), float(flops[code] / moved[code]),
                                float(flops[code] / time_ps[code] * PS_PER_S), float(time_ps[code] / ranks),
                                str(columns["bound_by"][longest])))
    return sorted(made, key=lambda point: -point.time_ps)


def roofs(peaks: Peaks) -> dict[str, float]:
    """FLOP/s by "pool, type", the highest first."""
    found = {f"{pool}, {dtype}": flops for pool, by_type in peaks.flops.items() for dtype, flops in by_type.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _ranks(columns: Columns) -> int:
    rank, first = np.unique(columns["rank"], return_index=True)
    return int(columns["multiplicity"][first].sum()) if len(rank) else 1
