"""What a rank's streams do, seen from further away: iteration, layers of each micro-batch, launches of the host.

A layer lasts from the first start of its tasks to the first start of the next one, or to its own last end if that comes
sooner, so that the layers of a micro-batch follow each other without overlap. A launch lasts from the one before it, or
from what the host was blocked on, until it has issued its tasks; those of a captured graph have one launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simulator import np
from simulator.np import Array
from simulator.observe.columns import Columns, find_rows, host_free_ps
from simulator.observe.metrics import AUXILIARY_KINDS
from simulator.observe.waiting import LIVE_ENGINES

HOST_LANE = "host launches"


class Stretch(NamedTuple):
    """A named stretch of a rank's lane (ps). tasks: rows of a launch, in issue order; on: row that the host was blocked
    on; both may be empty (-1)."""

    lane: str
    name: str
    start_ps: int
    end_ps: int
    tasks: tuple[int, ...] = ()
    on: int = -1


def letter(micro_batch: int) -> str:
    """Of a micro-batch: A, B, ..."""
    return chr(ord("A") + micro_batch % 26)


def layer_lanes(columns: Columns) -> Iterator[Stretch]:
    """Iteration and layers of one rank, whose rows these are."""
    yield Stretch("iteration", "iteration", 0, int(columns["end_ps"].max()))
    auxiliary = np.isin(columns["kind"].astype(str), list(AUXILIARY_KINDS))
    batches = sorted(set(columns["micro_batch"].tolist()))
    several = max(batches) > 0
    for batch in batches:
        rows = np.flatnonzero((columns["layer"] >= 0) & (columns["micro_batch"] == batch) & ~auxiliary)
        own = f"micro-batch {letter(batch)}" if several and batch >= 0 else ""
        for layer, start, end in _layers(columns, rows):
            name = f"layer {layer} ({letter(batch)})" if own else f"layer {layer}"
            yield Stretch(f"layers, {own}" if own else "layers", name, start, end)


def _layers(columns: Columns, rows: Array) -> list[tuple[int, int, int]]:
    """(layer, start, end) in order of time, without overlap (ps)."""
    layers, place = np.unique(columns["layer"][rows], return_inverse=True)
    start = np.full(len(layers), np.iinfo(np.int64).max)
    end = np.zeros(len(layers), dtype=np.int64)
    np.minimum.at(start, place, columns["start_ps"][rows])
    np.maximum.at(end, place, columns["end_ps"][rows])
    order = np.argsort(start, kind="stable")
    layers, start, end = layers[order], start[order], end[order]
    end[:-1] = np.minimum(end[:-1], start[1:])
    return list(zip(layers.tolist(), start.tolist(), end.tolist(), strict=True))


def host_lane(columns: Columns) -> Iterator[Stretch]:
    """Launches of one rank's host, and how long it was blocked before them; `columns` are all rows of that rank."""
    launched = np.flatnonzero(~np.isin(columns["engine"].astype(str), LIVE_ENGINES))
    order = launched[np.lexsort((columns["task"][launched], columns["issued_ps"][launched]))]
    issued, free = columns["issued_ps"][order], host_free_ps(columns)[order]
    on = find_rows(columns, columns["rank"], columns["host_after"])[order]
    firsts = np.flatnonzero(np.append(True, issued[1:] != issued[:-1])) if len(order) else np.zeros(0, dtype=int)
    before = 0
    for first, last in zip(firsts.tolist(), [*firsts[1:].tolist(), len(order)], strict=True):
        at, until = int(issued[first]), min(int(free[first]), int(issued[first]))
        if until > before and on[first] >= 0:
            yield Stretch(HOST_LANE, "wait: host is blocked", before, until, on=int(on[first]))
        begin = max(before, until)
        tasks = tuple(order[first:last].tolist())
        if at > begin:
            name = str(columns["name"][tasks[0]])
            yield Stretch(HOST_LANE, f"launch {name}" if len(tasks) == 1 else f"launch {len(tasks)} tasks", begin, at,
                          tasks)  # fmt: skip
        before = at
