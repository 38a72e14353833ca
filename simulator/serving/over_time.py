"""What there was over time: the sum of values that each hold for a while, exact between any two times."""

from __future__ import annotations

from collections.abc import Callable

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


def level(start_ps: np.Array, end_ps: np.Array, value: np.Array | None = None) -> Level:
    """Of values (default 1) that hold from a time to a time. The integral from edge to edge is that of the values to
    rounding: the sum of stays that lie between them (Little's law on this very path)."""
    values = np.ones(len(start_ps)) if value is None else value.astype(np.float64)
    times = np.concatenate([start_ps, end_ps])
    order = np.argsort(times, kind="stable")
    now = np.cumsum(np.concatenate([values, -values])[order])
    times = (times[order] / PS_PER_S).astype(np.float64)
    area = np.concatenate([[0.0], np.cumsum(now[:-1] * np.diff(times))]) if len(times) else times

    def means(edges_ps: np.Array) -> np.Array:
        edges = np.asarray(edges_ps) / PS_PER_S
        if not len(times):
            return np.zeros(len(edges) - 1)
        return np.diff(np.interp(edges, times, area)) / np.diff(edges)

    return means


def levels(served: Served) -> dict[str, Level]:
    """By the names of LEVELS. Steps hold until they end: between them nothing decodes."""
    times, steps, end = served.times, served.steps, served.end_ps
    ends = steps["start_ps"] + steps["duration_ps"]
    found = {"in_flight": level(*_stays(times["arrival"], times["last_token"], served.status, end)),
             "queue": level(*_stays(times["routed"], times["admitted"], served.status, end))}
    return found | {name: level(steps["start_ps"], ends, steps[name]) for name in LEVELS if name not in found}


def _stays(start_ps: np.Array, end_ps: np.Array, status: np.Array, until_ps: int) -> tuple[np.Array, np.Array]:
    """From and to when; to the end of the record, where it has not ended; none of what was refused."""
    there = (start_ps != NEVER) & (status != REFUSED)
    return start_ps[there], np.where(end_ps[there] == NEVER, until_ps, end_ps[there])
