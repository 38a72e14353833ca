"""What there was over time: the sum of values that each hold for a while, exact between any two times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from simulator import np
from simulator.serving.record import NEVER, REFUSED, Served
from simulator.units import PS_PER_S

Level = Callable[[np.Array], np.Array]
"""Edges in ps, ascending -> means over time between each two of them."""

LEVELS = {
    "in_flight": "requests sent and not ended",
    "queue": "requests that wait at an engine to be scheduled for the first time",
    "decoding": "requests that decode, in steps",
    "cached_tokens": "tokens that these have cached",
    "used_blocks": "blocks of KV cache that running requests hold, in steps",
}
BALANCEDNESS = "balancedness"
"""Beside them, where experts change over time: mean load of the places of experts over the largest, mean of the time in
steps of engines that have it; 0 where there is no step."""


def level(start_ps: np.Array, end_ps: np.Array, value: np.Array | None = None) -> Level:
    """Of values (default 1) that hold from a time to a time. The integral from edge to edge is that of the values to
    rounding: the sum of stays that lie between them (Little's law on this very path)."""
    return _levels(start_ps, end_ps, {"": np.ones(len(start_ps)) if value is None else value})[""]


def _levels(start_ps: np.Array, end_ps: np.Array, values: Mapping[str, np.Array]) -> dict[str, Level]:
    """Of several values that hold for the same times."""
    times = np.concatenate([start_ps, end_ps])
    order = np.argsort(times, kind="stable")
    times = (times[order] / PS_PER_S).astype(np.float64)
    lengths = np.diff(times)

    def area_of(value: np.Array) -> np.Array:
        now = np.cumsum(np.concatenate([value, -value.astype(np.float64)])[order])
        return np.concatenate([[0.0], np.cumsum(now[:-1] * lengths)]) if len(times) else times

    return {name: partial(_means, times, area_of(value)) for name, value in values.items()}


def _means(times: np.Array, area: np.Array, edges_ps: np.Array) -> np.Array:
    edges = np.asarray(edges_ps) / PS_PER_S
    if not len(times):
        return np.zeros(len(edges) - 1)
    found: np.Array = np.diff(np.interp(edges, times, area)) / np.diff(edges)
    return found


def levels(served: Served) -> dict[str, Level]:
    """By the names of LEVELS, and BALANCEDNESS. Steps hold until they end: between them nothing decodes."""
    times, steps, end = served.times, served.steps, served.end_ps
    ends = steps["start_ps"] + steps["duration_ps"]
    found = {"in_flight": level(*_stays(times["arrival"], times["last_token"], served.status, end)),
             "queue": level(*_stays(times["routed"], times["admitted"], served.status, end))}
    found |= _levels(steps["start_ps"], ends, {name: steps[name] for name in LEVELS if name not in found})
    return found | ({BALANCEDNESS: _balancedness(served)} if BALANCEDNESS in steps else {})


def _balancedness(served: Served) -> Level:
    """Mean of the engines that have it, in steps."""
    there = ~np.isnan(served.steps[BALANCEDNESS])
    start, value = served.steps["start_ps"][there], served.steps[BALANCEDNESS][there]
    end = start + served.steps["duration_ps"][there]
    total, engines = level(start, end, value), level(start, end)

    def mean(edges_ps: np.Array) -> np.Array:
        count = engines(edges_ps)
        return np.divide(total(edges_ps), count, out=np.zeros(len(count)), where=count > 0)

    return mean


def _stays(start_ps: np.Array, end_ps: np.Array, status: np.Array, until_ps: int) -> tuple[np.Array, np.Array]:
    """From and to when; to the end of the record, where it has not ended; none of what was refused."""
    there = (start_ps != NEVER) & (status != REFUSED)
    return start_ps[there], np.where(end_ps[there] == NEVER, until_ps, end_ps[there])
