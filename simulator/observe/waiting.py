"""What every stream waited for, stretch by stretch, between the end of one task and the start of the next.

A task that begins at `start` behind one of its stream that ended at `before` waited, in this order and as far as each
lasted longer than what came before it:

    before .. awaited    event    for the task of another stream that ended last of those that it waits for
    awaited .. issued    host     for the host to launch it, which was blocked on a task, or at work
    ready .. start       peers    for the last rank to come to its exchange, or for what that one puts
                         flag     for what a host, a card or another rank sets or writes
                         cores    for cores, which the task that ended at its start gave back

Worked example: `gemm` ends at 10; its stream's `dispatch` waits for `sort` of another stream, which ends at 14, is
launched at 12 and has its last peer at 20: 10..14 event (sort), 14..20 peers (that rank's dispatch).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from simulator import np
from simulator.np import Array
from simulator.observe.columns import Columns, codes, find_rows, host_free_ps, waits

Why: TypeAlias = Literal["event", "host", "peers", "flag", "cores"]
WHY: tuple[Why, ...] = get_args(Why)
LIVE_ENGINES = ("host thread", "nic")  # of live hosts: nothing of theirs is launched, and they poll between


@dataclass(frozen=True)
class Waiting:
    """Stretches of waiting, ascending in row and time, as arrays of equal length.

    row: of the task that waited. from_ps, to_ps: since and until when. why: place in WHY. ended_by: row of what ended
    it (event: the task; host: what the host was blocked on until then; peers: the last one's task; flag: what it
    followed from; cores: the task that gave them back), -1 where no task did (host: it was launching).
    """

    row: Array
    from_ps: Array
    to_ps: Array
    why: Array
    ended_by: Array

    def __len__(self) -> int:
        return len(self.row)

    def some(self, chosen: Array) -> Waiting:
        """Those of a boolean mask, or of numbers in ascending order."""
        return Waiting(self.row[chosen], self.from_ps[chosen], self.to_ps[chosen], self.why[chosen],
                       self.ended_by[chosen])  # fmt: skip


def waiting(columns: Columns) -> Waiting:
    """All stretches of waiting of a timeline."""
    engine, engines = codes(columns["engine"])
    waits = ~np.isin(engines, LIVE_ENGINES)[engine]  # between what live ones do, they wait for nothing known
    found = [(rows, begins[rows], ends[rows], *(np.broadcast_to(each, ends.shape)[rows] for each in (why, by)))
             for begins, ends, why, by in _stretches(columns) for rows in [np.flatnonzero((ends > begins) & waits)]]
    row, from_ps, to_ps, why, ended_by = (np.concatenate(each) for each in zip(*found, strict=True))
    del found
    order = np.lexsort((from_ps, row))
    return Waiting(row[order], from_ps[order], to_ps[order], why[order], ended_by[order])


def _stretches(columns: Columns) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Of every row since when and until when it waited (not at all where that is no later), why, and what ended it: for
    an event, for its host, and for the rest. Each of ten million rows is 80 MB: they come in turn."""
    before_row = previous_rows(columns)
    before = np.where(before_row >= 0, columns["end_ps"][before_row], 0) if len(before_row) else before_row
    del before_row
    awaited, awaited_row = _awaited(columns)
    awaited = np.maximum(awaited, before)
    yield before, awaited, np.array(WHY.index("event")), awaited_row
    del before, awaited_row
    issued, ready, start = (columns[name] for name in ("issued_ps", "ready_ps", "start_ps"))
    host_row = find_rows(columns, columns["rank"], columns["host_after"])
    blocked = np.where(host_free_ps(columns) > awaited, host_row, -1)
    del host_row
    yield awaited, np.minimum(issued, ready), np.array(WHY.index("host")), blocked
    del awaited, blocked
    late = find_rows(columns, columns["late_rank"], columns["late_task"])
    cause = find_rows(columns, columns["cause_rank"], columns["cause_task"])
    reason = np.select([late >= 0, cause >= 0], [WHY.index("peers"), WHY.index("flag")], WHY.index("cores"))
    named = np.where(late >= 0, late, cause)
    del late, cause
    yield ready, start, reason, np.where(named >= 0, named, _gave_back(columns, (named < 0) & (start > ready)))


def previous_rows(columns: Columns) -> Array:
    """For every row the one before it on its stream; -1 for the first."""
    stream, _ = codes(columns["stream"])
    order = np.lexsort((columns["task"], stream, columns["rank"]))
    before = np.full(len(order), -1, dtype=np.int64)
    same = (np.diff(columns["rank"][order]) == 0) & (np.diff(stream[order]) == 0)
    before[order[1:][same]] = order[:-1][same]
    return before


def _awaited(columns: Columns) -> tuple[Array, Array]:
    """For every row when the last task that it waits for ended (ps), 0 for none, and the row of that one, or -1."""
    row, awaited = waits(columns)
    order = np.lexsort((awaited, columns["end_ps"][awaited], row))
    row, awaited = row[order], awaited[order]
    last = np.append(row[1:] != row[:-1], True) if len(row) else np.zeros(0, dtype=bool)
    end = np.zeros(len(columns["rank"]), dtype=np.int64)
    found = np.full(len(end), -1, dtype=np.int64)
    end[row[last]], found[row[last]] = columns["end_ps"][awaited[last]], awaited[last]
    return end, found


def _gave_back(columns: Columns, wanted: Array) -> Array:
    """For rows that waited for cores the row of their rank that ended when they started, the one issued last; or -1."""
    found = np.full(len(wanted), -1, dtype=np.int64)
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return found
    _, rank = np.unique(columns["rank"], return_inverse=True)
    span = int(columns["end_ps"].max()) + 1
    by_end = np.lexsort((columns["task"], columns["end_ps"], rank))
    ends = (rank * span + columns["end_ps"])[by_end]
    key = rank[rows] * span + columns["start_ps"][rows]
    place = np.searchsorted(ends, key, side="right") - 1
    hit = (place >= 0) & (ends[place] == key)
    found[rows[hit]] = by_end[place[hit]]
    return found
