"""The bars of a timeline as a page carries them: a few whole numbers for each task, packed.

A number is 32 bits. Of a column the first bytes of all numbers come first, then the second ones and so on; columns
follow each other; the whole is compressed (zlib) and written in base64. A browser has it unpacked in milliseconds.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

from simulator import np
from simulator.observe.columns import Array, Columns, causes, codes, select, waits
from simulator.observe.critical import CriticalPath
from simulator.observe.shown import USUAL, shown
from simulator.observe.waiting import WHY, waiting

PS_PER_NS = 1_000
PACKED = ("start", "length", "waited", "what", "bound", "layer", "micro_batch", "awaited", "critical", "task", "why",
          "by", "event", "host")
"""start: after that of the row before; waited: from ready to start; awaited: place of the task that ended last of those
waited for, and one; why, by: of that wait, its place in WHY and the rank that ended it, and one; event, host: how long
its stream stood still before it was ready, for a task of another stream and for the host. 0: none."""
_MOST = 2**32 - 1


def unit_ps(makespan_ps: int) -> int:
    """Of times in a page (ps): a nanosecond, or more where the run is too long for that."""
    return PS_PER_NS * max(1, -(-makespan_ps // (PS_PER_NS * _MOST)))


def timeline_data(columns: Columns, path: CriticalPath, unit: int) -> list[dict[str, Any]]:
    """For each rank that is shown its bars, and the texts that they refer to. unit: of times (ps)."""
    on_path = {(one.rank, one.task) for one in path.segments}
    waited = _waits(columns)
    made = []
    for rank, label in ranks_shown(columns).items():
        rows = np.flatnonzero(columns["rank"] == rank)
        critical = {task for its, task in on_path if its == rank}
        of_rank = {name: column[rows] for name, column in waited.items()}
        made.append({"rank": rank, "label": label} | _of_rank(select(columns, rows), of_rank, critical, unit))
    return made


def ranks_shown(columns: Columns) -> dict[int, str]:
    """The ranks that a trace shows too, the slowest first: the words for each, "rank 3, slowest"."""
    found = shown(columns, USUAL)
    return {rank: f"rank {rank}, {why}" for rank, why in sorted(found.items(), key=lambda one: "slowest" not in one[1])}


def _waits(columns: Columns) -> dict[str, Array]:
    """For every row why, by, event and host of PACKED (event and host in ps)."""
    found = waiting(columns)
    length, size = found.to_ps - found.from_ps, len(columns["rank"])
    made = {}
    for reason in ("event", "host"):
        some = found.why == WHY.index(reason)
        made[reason] = np.bincount(found.row[some], length[some], minlength=size).astype(np.int64)
    ready = found.from_ps == columns["ready_ps"][found.row]
    some = ready & (found.why != WHY.index("event")) & (found.why != WHY.index("host"))
    made["why"], made["by"] = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    made["why"][found.row[some]] = found.why[some] + 1
    by = found.ended_by[some]
    made["by"][found.row[some]] = np.where(by >= 0, columns["rank"][by] + 1, 0)
    return made


def _of_rank(mine: Columns, waited: dict[str, Array], critical: set[int], unit: int) -> dict[str, Any]:
    stream, streams = _in_order(mine["stream"])
    order = np.lexsort((mine["task"], mine["start_ps"], stream))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    what, texts = _kernels(mine)
    bound, bounds = codes(mine["bound_by"])
    start, end, ready = ((mine[name] + unit // 2) // unit for name in ("start_ps", "end_ps", "ready_ps"))
    packed = {"start": start, "length": end - start, "waited": start - ready, "what": what, "bound": bound,
              "layer": mine["layer"], "micro_batch": mine["micro_batch"], "awaited": _awaited(mine, place) + 1,
              "critical": np.isin(mine["task"], list(critical)), "task": mine["task"], "why": waited["why"],
              "by": waited["by"], "event": waited["event"] // unit, "host": waited["host"] // unit}
    table = {name: column[order].astype(np.int64) for name, column in packed.items()}
    table["start"] = np.diff(table["start"], prepend=0)
    counts = np.bincount(stream, minlength=len(streams)).tolist()
    return {"rows": len(order), "streams": [*zip(streams, counts, strict=True)], "texts": texts, "bounds": bounds,
            "layers": _layers(mine, unit), "packed": _packed([table[name] for name in PACKED])}


def _in_order(column: Array) -> tuple[Array, list[str]]:
    """A column as numbers by the first appearance of each text."""
    values = column.tolist()
    number = {value: place for place, value in enumerate(dict.fromkeys(values))}
    return np.fromiter(map(number.__getitem__, values), dtype=np.int64, count=len(values)), [*number]


def _kernels(mine: Columns) -> tuple[Array, list[tuple[str, str, str]]]:
    """For each row the number of its name, kind and engine."""
    rows = list(zip(*(mine[name].tolist() for name in ("name", "kind", "engine")), strict=True))
    number = {row: place for place, row in enumerate(dict.fromkeys(rows))}
    return np.fromiter(map(number.__getitem__, rows), dtype=np.int64, count=len(rows)), [*number]


def _awaited(mine: Columns, place: Array) -> Array:
    """For each row the place of the task of its rank that it waited for longest; -1: of none."""
    found = np.full(len(mine["rank"]), -1, dtype=np.int64)
    pairs = [waits(mine), causes(mine)]
    waiting, awaited = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    order = np.argsort(mine["end_ps"][awaited], kind="stable")
    found[waiting[order]] = place[awaited[order]]  # the last assignment counts
    return found


def _layers(mine: Columns, unit: int) -> list[tuple[int, int, int]]:
    """(layer, from, to), from its first start to its last end."""
    rows = np.flatnonzero(mine["layer"] >= 0)
    layers, place = np.unique(mine["layer"][rows], return_inverse=True)
    start, end = np.full(len(layers), np.iinfo(np.int64).max), np.zeros(len(layers), dtype=np.int64)
    np.minimum.at(start, place, mine["start_ps"][rows])
    np.maximum.at(end, place, mine["end_ps"][rows])
    return [*zip(layers.tolist(), (start // unit).tolist(), (-(-end // unit)).tolist(), strict=True)]


def _packed(table: Sequence[Array]) -> str:
    planes = [column.astype("<i8").astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes() for column in table]
    return compressed(b"".join(planes))


def compressed(data: bytes) -> str:
    """Bytes as text that a page unpacks."""
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")
