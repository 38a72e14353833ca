"""How much of what a rank has is in use over time: HBM, L2, cores, links.

Each task is taken to move its bytes evenly between its start and its end; its cores it holds for as long.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from simulator import np
from simulator.np import Array
from simulator.observe.columns import Columns, select
from simulator.observe.counters import series, steps
from simulator.observe.recorded import Peaks


class Use(NamedTuple):
    """Of one thing in each bin of time, its mean. name: as of its counter; peak: in its unit; 0: none."""

    name: str
    unit: str
    peak: float
    mean: Array


def use_over_time(columns: Columns, peaks: Peaks, rank: int, edges_ps: Array) -> list[Use]:
    """Of one rank, between each two edges (ps, ascending); what it never uses is left out."""
    mine = select(columns, columns["rank"] == rank)
    found = []
    for name, amounts, per_second in series(mine, peaks):
        title, _, unit = name.rpartition(" ")
        mean = _means(*steps(mine, amounts, per_second), edges_ps)
        found.append(Use(title, unit, _peak(title), mean))
    return found


def _peak(title: str) -> float:
    """What a counter's name says in brackets, "(peak 1224)" or "(of 24)"; 0: nothing."""
    said = re.search(r"\((?:peak|of) ([\d.e+]+)\)", title)
    return float(said[1]) if said else 0.0


def _means(times_ps: Array, value: Array, edges_ps: Array) -> Array:
    """Between each two edges the mean of values, each of which holds from its time to the next."""
    if not len(times_ps):
        return np.zeros(len(edges_ps) - 1)
    area = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(times_ps))])
    means: Array = np.diff(np.interp(edges_ps, times_ps, area)) / np.diff(edges_ps)
    return means
