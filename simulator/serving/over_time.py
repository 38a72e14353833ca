"""What there was over time: the sum of values that each hold for a while, exact between any two times."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator import np
from simulator.serving.record import LOST, NEVER, REFUSED, Served
from simulator.units import PS_PER_S

PART = 1 << 20  # stays that are sorted at a time
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
    def means(edges_ps: np.Array) -> np.Array:
        return _means(start_ps, end_ps, np.ones(len(start_ps)) if value is None else value, edges_ps)

    return means


def _of_steps(served: Served, name: str) -> Level:
    """As `level` of a column of steps, which hold until they end; of columns nothing is kept."""
    def means(edges_ps: np.Array) -> np.Array:
        start_ps = served.steps["start_ps"]
        return _means(start_ps, start_ps + served.steps["duration_ps"], served.steps[name], edges_ps)

    return means


def _means(start_ps: np.Array, end_ps: np.Array, value: np.Array, edges_ps: np.Array) -> np.Array:
    """Means between edges, from the integral up to the two changes about each edge."""
    edges = np.asarray(edges_ps) / PS_PER_S
    times, areas = _about(edges, _integrals(start_ps, end_ps, value))
    if not len(times):
        return np.zeros(len(edges) - 1)
    found: np.Array = np.diff(np.interp(edges, times, areas)) / np.diff(edges)
    return found


def _about(edges: np.Array, parts: Iterator[tuple[np.Array, np.Array]]) -> tuple[np.Array, np.Array]:
    """Of points that come in parts, each of which begins with the last one of the part before: the two about each
    edge, the first and the last."""
    times, areas = [np.zeros(0)], [np.zeros(0)]
    for time, area in parts:
        at = np.searchsorted(time, edges, side="right")
        kept = np.unique(np.clip(np.concatenate([at - 1, at, [0, len(time) - 1]]), 0, len(time) - 1))
        times.append(time[kept])
        areas.append(area[kept])
    return np.concatenate(times), np.concatenate(areas)


def _integrals(start_ps: np.Array, end_ps: np.Array, value: np.Array) -> Iterator[tuple[np.Array, np.Array]]:
    """When the sum of values changes (s), and its integral up to then, PART stays at a time where they are by start:
    what goes on into the next part is carried over."""
    size = PART if len(start_ps) > PART and not (start_ps[1:] < start_ps[:-1]).any() else len(start_ps)
    open_ps, of_open = end_ps[:0], value[:0].astype(np.float64)  # ends that are still to come
    before = now = area = None
    for low in range(0, len(start_ps), max(size, 1)):
        begun, of_begun = start_ps[low : low + size], value[low : low + size]
        open_ps = np.concatenate([open_ps, end_ps[low : low + size]])
        of_open = np.concatenate([of_open, -of_begun.astype(np.float64)])
        past = open_ps < start_ps[low + size] if low + size < len(start_ps) else np.ones(len(open_ps), dtype=bool)
        times_ps = np.concatenate([begun, open_ps[past]])
        order = np.argsort(times_ps, kind="stable")
        times = (times_ps[order] / PS_PER_S).astype(np.float64)
        change = np.concatenate([of_begun, of_open[past]])[order].astype(np.float64)
        open_ps, of_open = open_ps[~past], of_open[~past]
        if before is not None:
            times, change = np.concatenate([[before], times]), np.concatenate([[now], change])
        sums = np.cumsum(change)
        areas = np.cumsum(np.concatenate([[0.0 if area is None else area], sums[:-1] * np.diff(times)]))
        before, now, area = times[-1], sums[-1], areas[-1]
        yield times, areas


def levels(served: Served) -> dict[str, Level]:
    """By the names of LEVELS, and BALANCEDNESS. Steps hold until they end: between them nothing decodes."""
    times, end = served.times, served.end_ps
    found = {"in_flight": level(*_stays(times["arrival"], times["last_token"], served.status, end)),
             "queue": level(*_stays(times["routed"], times["admitted"], served.status, end))}
    found |= {name: _of_steps(served, name) for name in LEVELS if name not in found}
    return found | ({BALANCEDNESS: _balancedness(served)} if BALANCEDNESS in served.steps else {})


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
    """From and to when; to the end of the record, where it has not ended; none of what was refused or lost."""
    there = (start_ps != NEVER) & (status != REFUSED) & (status != LOST)
    return start_ps[there], np.where(end_ps[there] == NEVER, until_ps, end_ps[there])
