"""The critical path: what the end of the run was waiting for, walked back to time 0 without a gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from simulator import np
from simulator.np import Array
from simulator.observe.columns import Columns, host_free_ps, row_keys

KeyT = TypeVar("KeyT")
What: TypeAlias = Literal["work", "latency", "host", "wait"]


@dataclass(frozen=True)
class Segment:
    """A stretch of the critical path (ps), due to one task.

    what: work; latency (work that was mostly fixed delay); host (the host had not issued the task yet); wait (for cores
    or peers, where no task can be named that held them up, or for bytes of a put that have left and are under way).
    bound_by: of the task; "host", "cores", "peers", "arrivals" or "unknown" where it did not work.
    """

    rank: int
    task: int
    name: str
    kind: str
    from_ps: int
    to_ps: int
    what: What
    bound_by: str


@dataclass(frozen=True)
class CriticalPath:
    """Segments from time 0 to the makespan, in order of time, each beginning where the previous one ends."""

    segments: list[Segment]
    makespan_ps: int

    def shares(self, key: Callable[[Segment], KeyT]) -> dict[KeyT, float]:
        """Share of the makespan by any key of a segment, largest first."""
        total: Counter[KeyT] = Counter()
        for segment in self.segments:
            total[key(segment)] += segment.to_ps - segment.from_ps
        return {one: length / self.makespan_ps for one, length in total.most_common()}

    def by_kind_and_bound(self, least: float = 0.0) -> dict[tuple[str, str], float]:
        """Shares of more than `least` by `kind_and_bound`."""
        return {pair: share for pair, share in self.shares(kind_and_bound).items() if share > least}


def kind_and_bound(segment: Segment) -> tuple[str, str]:
    """The kind of a segment and what bound it; the kind is "host" or "wait" where the path has no work."""
    return segment.what if segment.what in ("host", "wait") else segment.kind, segment.bound_by


def critical_path(columns: Columns) -> CriticalPath:
    """Walks back from the task that ends last.

    The predecessor of a task that started later than it was ready is its last peer to arrive (communication) or the
    task of its rank that freed cores at that instant; else it is the awaited task that ended when it became ready; else
    the host, back to what the host was last blocked on. Ties go to the task issued last.
    """
    if not len(columns["rank"]):
        return CriticalPath([], 0)
    walk = _Walk(columns)
    row: int | None = int(columns["end_ps"].argmax())
    while row is not None:
        row = walk.step(row)
    return CriticalPath(walk.segments[::-1], int(columns["end_ps"].max()))


class _Walk:
    """The state of the walk: rows indexed by when they start and end, the segments so far (latest first)."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.segments: list[Segment] = []
        self.keys = row_keys(columns["rank"], columns["task"])
        self.by_end = np.argsort(columns["end_ps"], kind="stable")
        self.ends = columns["end_ps"][self.by_end]
        self.host_free = host_free_ps(columns)
        self.passed: set[int] = set()

    def step(self, row: int) -> int | None:
        """Adds the segments of a task's row; returns the row that it was waiting for, None at time 0."""
        self.passed.add(row)
        bound = str(self.columns["bound_by"][row])
        cause = self._cause(row)
        left = self._at(cause, "end_ps") if cause is not None else 0
        self._add(row, max(self._at(row, "start_ps"), left), self._at(row, "end_ps"),
                  "latency" if bound == "latency" else "work", bound)
        if cause is not None:
            self._add(row, left, self._at(row, "start_ps"), "latency", bound)
            return cause
        return self._before_start(row) if self._at(row, "ready_ps") < self._at(row, "start_ps") else self._ready(row)

    def _cause(self, row: int) -> int | None:
        """What a row followed from, of whatever rank: a flag, a post, a write, a count."""
        rank = self._at(row, "cause_rank")
        found = self._rows_of(rank, (self._at(row, "cause_task"),)) if rank >= 0 else []
        return found[0] if found else None

    def _before_start(self, row: int) -> int | None:
        """Who held up a task that was ready."""
        start, late = self._at(row, "start_ps"), self._late(row)
        if self._at(late, "end_ps") <= start and late != row:  # it put what this one collects
            self._add(row, self._at(late, "end_ps"), start, "wait", "arrivals")
            return late
        ready = self._at(late, "ready_ps")
        if ready < start:
            freed = self._ended(start, int(self.columns["rank"][late]))
            if freed is not None:
                return freed
            self._add(late, ready, start, "wait", "peers" if self.columns["communication"][late] else "cores")
        return self._ready(late)

    def _ready(self, row: int) -> int | None:
        """What made a task ready: an awaited task, or the host."""
        if self._at(row, "ready_ps") == 0:
            return None
        ready, issued = self._at(row, "ready_ps"), self._at(row, "issued_ps")
        awaited = self._rows_of(self._at(row, "rank"), self.columns["after"][row])
        on_time = [one for one in awaited if self._at(one, "end_ps") == ready]
        if on_time:
            return on_time[-1]
        if issued == ready:
            return self._host(row, issued)
        last = max(awaited, key=lambda one: self._at(one, "end_ps"), default=None)
        since = max(issued, self._at(last, "end_ps") if last is not None else 0)
        self._add(row, since, ready, "wait", "unknown")
        return last if last is not None and since > issued else self._host(row, issued)

    def _host(self, row: int, issued: int) -> int | None:
        """The host was at work since it was last blocked, or since time 0."""
        free = min(int(self.host_free[row]), issued)
        self._add(row, free, issued, "host", "host")
        blocked_on = self._ended(free, int(self.columns["rank"][row])) if free else None
        if blocked_on is None:
            self._add(row, 0, free, "wait", "unknown")
        return blocked_on

    def _late(self, row: int) -> int:
        """The row of the same exchange that came last, or of what was put last; the row itself where none did."""
        rank = self._at(row, "late_rank")
        found = self._rows_of(rank, (self._at(row, "late_task"),)) if rank >= 0 else []
        return found[0] if found else row

    def _ended(self, time_ps: int, rank: int) -> int | None:
        """The task of a rank that ended at an instant, the one issued last if several did; None if there is none."""
        rows = self.by_end[_equal(self.ends, time_ps)]
        rows = rows[self.columns["rank"][rows] == rank]
        fresh = [one for one in rows.tolist() if one not in self.passed]
        return max(fresh, default=None)

    def _rows_of(self, rank: int, tasks: tuple[int, ...]) -> list[int]:
        """The rows of these tasks of a rank that the walk has not passed yet, in order."""
        wanted = row_keys(np.full(len(tasks), rank), np.array(sorted(tasks), dtype=np.int64))
        found = np.minimum(self.keys.searchsorted(wanted), len(self.keys) - 1)
        return [one for one in found[self.keys[found] == wanted].tolist() if one not in self.passed]

    def _at(self, row: int, column: str) -> int:
        return int(self.columns[column][row])

    def _add(self, row: int, from_ps: int, to_ps: int, what: What, bound_by: str) -> None:
        if to_ps <= from_ps:
            return
        columns = self.columns
        self.segments.append(Segment(int(columns["rank"][row]), int(columns["task"][row]), str(columns["name"][row]),
                                     str(columns["kind"][row]), from_ps, to_ps, what, bound_by))


def _equal(ascending: Array, value: int) -> slice:
    """Where an ascending array has a value."""
    return slice(*np.searchsorted(ascending, (value, value + 1)))
