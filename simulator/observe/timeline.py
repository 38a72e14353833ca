"""Timeline: what happened in a run, one row per finished task, recorded leanly and read as columns."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from itertools import accumulate, groupby
from operator import itemgetter
from os import PathLike
from typing import Any

from simulator import np
from simulator.observe.columns import COLUMNS, Array, StaticTasks, Table

__all__ = ["StaticTasks", "Timeline", "Unrecorded"]

_ROW = [
    ("rank", "<i4"), ("task", "<i4"), ("issued_ps", "<i8"), ("ready_ps", "<i8"), ("start_ps", "<i8"), ("end_ps", "<i8"),
    ("solo_ps", "<i8"), ("bound_by", "<u2"), ("units", "<u2"),
]  # fmt: skip
_PACKER = struct.Struct("<iiqqqqqHH")
_PACK, _PACK_BYTES = _PACKER.pack, _PACKER.size
_FOUND = [("key", "<i8"), ("in_l2_bytes", "<f8")]  # key: rank, then task
_PACK_FOUND = struct.Struct("<iid").pack
_LATE = [("key", "<i8"), ("late_rank", "<i4"), ("late_task", "<i4")]
_PACK_LATE = struct.Struct("<iiii").pack
_TIMES = ("rank", "task", "issued_ps", "ready_ps", "start_ps", "end_ps", "solo_ps")  # columns as they are recorded
_OBJECTS = ("link_bytes", "cores", "cause_rank", "cause_task")  # columns made row by row
_NOTED = ("offset", "multiplicity", "found", "late")
ROWS_PER_GROUP = 131_072


class Timeline:
    """The rows of one run. `record` is the hot path: 52 bytes and a quarter of a microsecond per row."""

    __slots__ = ("_bounds", "_causes", "_found", "_late", "_ranks", "_rows", "run", "sent_by")

    def __init__(self, run: str = "") -> None:
        self.run = run
        self._ranks: dict[int, tuple[StaticTasks, int]] = {}
        self._bounds: dict[str, int] = {}
        self._rows = bytearray()
        self._causes: dict[tuple[int, int], tuple[int, int]] = {}
        self._found = bytearray()
        self._late = bytearray()
        self.sent_by: Callable[[int], Mapping[int, tuple[float, ...]]] = lambda rank: {}  # link_bytes by task

    def __len__(self) -> int:
        return len(self._rows) // _PACK_BYTES

    def add_rank(self, rank: int, static: StaticTasks, multiplicity: int = 1) -> None:
        """Announces a rank (standing for `multiplicity` identical ones) before its first task is recorded."""
        if rank in self._ranks:
            raise ValueError(f"rank {rank} is in the timeline already")
        if rank < 0 or multiplicity < 1:
            raise ValueError(f"rank {rank} with multiplicity {multiplicity}: wanted rank >= 0 and multiplicity >= 1")
        self._ranks[rank] = (static, multiplicity)

    def add_task(self, rank: int, name: str, stream: str, kind: str, engine: str, layer: int, micro_batch: int,
                 wire_bytes: float) -> int:
        """A task that was not known before the run; the rank's StaticTasks must be its own. Returns its number."""
        return self._ranks[rank][0].append(name, stream, kind, engine, layer, micro_batch, wire_bytes)

    def record(self, rank: int, task: int, issued_ps: int, ready_ps: int, start_ps: int, end_ps: int,
               solo_ps: int, bound_by: str, units: int) -> None:
        """Adds a finished task: times in integer picoseconds, `bound_by` what limited it longest, `units` (below
        65,536) on how many units of cores it ran (a collective: on 1).

        Order does not matter. Nothing is checked here; `columns` refuses unknown ranks and tasks.
        """
        try:
            bound = self._bounds[bound_by]
        except KeyError:
            bound = self._bounds.setdefault(bound_by, len(self._bounds))
        self._rows += _PACK(rank, task, issued_ps, ready_ps, start_ps, end_ps, solo_ps, bound, units)

    def found(self, rank: int, task: int, in_l2_bytes: float) -> None:
        """Notes that a task found so many of its bytes in L2, and does not move them in HBM."""
        self._found += _PACK_FOUND(task, rank, in_l2_bytes)

    def late(self, rank: int, task: int, late_rank: int, late_task: int) -> None:
        """Notes that an exchange had to wait for that of another rank, or for what that one puts."""
        self._late += _PACK_LATE(task, rank, late_rank, late_task)

    def follow(self, rank: int, task: int, cause_rank: int, cause_task: int) -> None:
        """Notes that a task followed from another one, which its program does not say (columns cause_*)."""
        self._causes[rank, task] = cause_rank, cause_task

    def columns(self) -> Mapping[str, Array]:
        """The table, sorted by (rank, task) whatever the order of recording; see `columns.COLUMNS`. A column is made
        when it is first asked for.

        Raises ValueError for a row of an unknown rank or task and for a task recorded twice.
        """
        order = self._order()
        return self._columns(order, self._tables())

    def groups(self, tell: Callable[[float], None] = lambda share: None) -> Iterator[Mapping[str, Array]]:
        """The same table in groups of rows, of which one at a time is in memory beside what was recorded. tell: told
        the share that was given before each."""
        order, tables = self._order(), self._tables()
        for first in range(0, len(order), ROWS_PER_GROUP):
            tell(first / len(order))
            yield self._columns(order[first : first + ROWS_PER_GROUP], tables)

    def write_parquet(self, path: str | PathLike[str], about: Mapping[str, Any] | None = None,
                      tell: Callable[[float], None] = lambda share: None) -> None:  # fmt: skip
        """Writes the table; the same run gives the same bytes. A file half-written is never left behind. about: how the
        run was made, as JSON under `braid` in the file's metadata. tell: as of `groups`."""
        from simulator.observe.arrow import write_parquet

        write_parquet(self.groups(tell), path, about=about)

    def _recorded(self) -> Array:
        return np.frombuffer(self._rows, dtype=np.dtype(_ROW))

    def _order(self) -> Array:
        """Numbers of the recorded rows by (rank, task), all of which are known.

        Every task has a place of its own, so nothing is sorted: four bytes a row are needed beside what was recorded.
        """
        rows = self._recorded()
        size = self._per_rank(lambda static, _: len(static), absent=-1)
        ends = np.cumsum(np.maximum(size, 0))
        first = ends - np.maximum(size, 0)
        kind = np.uint32 if len(rows) < 2**32 - 1 else np.uint64
        place: Array = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=kind)  # 0: no row
        for start in range(0, len(rows), ROWS_PER_GROUP):
            some = rows[start : start + ROWS_PER_GROUP]
            self._check(some["rank"], some["task"], size)
            at = first[some["rank"]] + some["task"]
            place[at] = np.arange(start + 1, start + 1 + len(some))
        order = place if np.count_nonzero(place) == len(place) else place[place > 0]
        if len(order) < len(rows):
            self._refuse_twins(rows, first, place)
        order -= 1
        return order

    def _check(self, rank: Array, task: Array, size: Array) -> None:
        """ValueError for a rank or task that was not announced. size: tasks of every rank, -1 for unknown ones."""
        known = (rank >= 0) & (rank < len(size))
        known[known] = size[rank[known]] >= 0
        if not known.all():
            raise ValueError(f"rank {rank[~known][0]} has rows but was never added to the timeline")
        wrong = np.flatnonzero((task < 0) | (task >= size[rank]))
        if len(wrong):
            row = wrong[0]
            raise ValueError(f"rank {rank[row]} has no task {task[row]}: its program has {size[rank[row]]} tasks")

    def _refuse_twins(self, rows: Array, first: Array, place: Array) -> None:
        """ValueError: a task has two rows, of which only the later one found its place."""
        at = first[rows["rank"]] + rows["task"]
        lost = np.flatnonzero(place[at] != np.arange(1, len(rows) + 1))[0]
        raise ValueError(f"rank {rows['rank'][lost]} recorded task {rows['task'][lost]} twice")

    def _columns(self, order: Array, tables: Mapping[str, Array]) -> Mapping[str, Array]:
        """Some recorded rows as columns. tables: what is known of all tasks of all programs, one behind the other."""
        return Table(COLUMNS, partial(self._column, order, tables), lambda rows: self._columns(order[rows], tables))

    def _column(self, order: Array, tables: Mapping[str, Array], name: str, made: Mapping[str, Array]) -> Array:
        """One of them. made: the others."""
        if name in _OBJECTS and len(order) > ROWS_PER_GROUP:  # each row takes objects on the way
            parts = (order[low : low + ROWS_PER_GROUP] for low in range(0, len(order), ROWS_PER_GROUP))
            return np.concatenate([self._columns(part, tables)[name] for part in parts])
        if name == "run":
            return np.full(len(order), self.run, dtype=object)
        if name in _TIMES:
            return self._recorded()[name][order]
        if name == "bound_by":
            return _objects(list(self._bounds))[self._recorded()[name][order]]
        rank, task = made["rank"], made["task"]
        if name == "multiplicity":
            return tables[name][rank]
        if name == "link_bytes":
            return self._sent(rank, task)
        if name in ("cause_rank", "cause_task"):
            return self._caused(rank, task, name == "cause_task")
        if name in ("late_rank", "late_task"):
            return _of_keys(tables["late"], name, rank, task, np.full(len(rank), -1, dtype=np.int32))
        row = task + tables["offset"][rank]
        if name == "cores":
            return _times(tables["unit_cores"][row], self._recorded()["units"][order])
        found = tables[name][row]
        if name == "hbm_bytes":
            found -= _of_keys(tables["found"], "in_l2_bytes", rank, task, np.zeros(len(rank)))
        return found

    def _sent(self, rank: Array, task: Array) -> Array:
        """link_bytes of each row; rows are sorted by rank."""
        sent: list[tuple[float, ...]] = []
        for one, rows in groupby(zip(rank.tolist(), task.tolist(), strict=True), itemgetter(0)):
            by_task = self.sent_by(one)
            sent += [by_task.get(number, ()) for _, number in rows]
        return _objects(sent)

    def _caused(self, rank: Array, task: Array, place: int) -> Array:
        """Rank (place 0) or task (1) of what each row followed from."""
        causes = np.full(len(rank), -1, dtype=np.int32)
        if self._causes:
            rows = zip(rank.tolist(), task.tolist(), strict=True)
            causes[:] = [self._causes.get(row, (-1, -1))[place] for row in rows]
        return causes

    def _tables(self) -> Mapping[str, Array]:
        """offset, multiplicity: by rank; found, late: what lay in L2 and who was late, by (rank, task). The rest was
        known before the run: of every task, program by program."""
        programs = list({id(static): static for static, _ in self._ranks.values()}.values())
        return Table((*_NOTED, *(field.name for field in fields(StaticTasks))), partial(self._table, programs))

    def _table(self, programs: list[StaticTasks], name: str, _: Mapping[str, Array]) -> Array:
        """One of them. programs: what differs of the ranks."""
        if name == "offset":
            ends = list(accumulate(map(len, programs)))
            offsets = {id(program): ends[number] - len(program) for number, program in enumerate(programs)}
            return self._per_rank(lambda static, _: offsets[id(static)])
        if name == "multiplicity":
            return self._per_rank(lambda _, multiplicity: multiplicity).astype(np.int32)
        if name == "found":
            return np.sort(np.frombuffer(self._found, dtype=np.dtype(_FOUND)), order="key")
        if name == "late":
            return np.sort(np.frombuffer(self._late, dtype=np.dtype(_LATE)), order="key")
        lists = [getattr(program, name) for program in programs]
        kind = COLUMNS[name][0] if name in COLUMNS else "counts"
        array_of = _objects if kind in ("text", "tasks", "counts") else partial(np.array, dtype=kind)
        made = {key: array_of(values) for key, values in {id(values): values for values in lists}.items()}
        # programs that differ in their numbers alone share all other lists
        return np.concatenate([made[id(values)] for values in lists] or [array_of([])])

    def _per_rank(self, value: Any, absent: int = 0) -> Array:
        """Array indexed by rank number of value(static, multiplicity)."""
        table = np.full(max(self._ranks, default=-1) + 1, absent, dtype=np.int64)
        for rank, given in self._ranks.items():
            table[rank] = value(*given)
        return table


class Unrecorded:
    """Takes the place of a timeline where nothing is kept."""

    def record(self, *_: Any) -> None:
        """Forgets a finished task."""

    def found(self, *_: Any) -> None:
        """Forgets what lay in L2."""

    def late(self, *_: Any) -> None:
        """Forgets who was waited for."""

    def add_task(self, *_: Any) -> int:
        """Forgets a task that was not known before the run."""
        return -1

    def follow(self, *_: Any) -> None:
        """Forgets what a task followed from."""


def _of_keys(noted: Array, name: str, rank: Array, task: Array, values: Array) -> Array:
    """The values, with what was noted for some of the tasks in their place."""
    if len(noted):
        keys = (rank.astype(np.int64) << 32) + task
        place = np.minimum(np.searchsorted(noted["key"], keys), len(noted) - 1)
        hit = noted["key"][place] == keys
        values[hit] = noted[name][place[hit]]
    return values


def _times(of_unit: Array, units: Array) -> Array:
    """Cores of each task, from those of a unit and the number of units."""
    pairs = list(zip(of_unit.tolist(), units.tolist(), strict=True))
    cores = {(each, count): tuple(one * count for one in each) for each, count in set(pairs)}
    return _objects([cores[pair] for pair in pairs])


def _objects(values: list[Any]) -> Array:
    """A one-dimensional object array, even of tuples of one length."""
    return np.fromiter(values, dtype=object, count=len(values))
