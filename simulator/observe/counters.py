"""Counters for a trace: how fast a rank moves bytes in HBM and on the wire, from the rows of its timeline.

Each task is taken to move its bytes evenly between its start and its end, so a counter is a sum of steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.observe.columns import Columns, select
from simulator.observe.trace import Sample, some_ranks
from simulator.units import PS_PER_S

COUNTERS = {"HBM GB/s": "hbm_bytes", "wire GB/s": "wire_bytes"}


def samples(columns: Columns) -> Iterator[Sample]:
    """Every change of every counter, on the ranks that a trace shows."""
    for rank in some_ranks(columns):
        mine = select(columns, columns["rank"] == rank)
        for name, column in COUNTERS.items():
            yield from _steps(name, rank, mine, column)


def _steps(name: str, rank: int, columns: Columns, column: str) -> Iterator[Sample]:
    import numpy as np

    start, end, moved = columns["start_ps"], columns["end_ps"], columns[column]
    busy = (moved > 0) & (end > start)
    rate = moved[busy] / (end[busy] - start[busy]) * (PS_PER_S / 1e9)
    times, place = np.unique(np.concatenate([start[busy], end[busy]]), return_inverse=True)
    change = np.zeros(len(times))
    np.add.at(change, place, np.concatenate([rate, -rate]))
    value = np.cumsum(change)
    value[np.abs(value) < 1e-6 * max(1.0, float(np.max(value, initial=0.0)))] = 0.0  # what rounding leaves of nothing
    for time_ps, level in zip(times.tolist(), value.tolist(), strict=True):
        yield Sample(name, rank, time_ps, round(level, 3))
