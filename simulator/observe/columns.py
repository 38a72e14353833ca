"""The columns of a timeline: one row per task, numpy arrays of equal length, sorted by (rank, task).

Every function of this package that takes `columns` takes this table, from a run or read back from a file. Sets of its
times are `Intervals`: unions and overlaps without a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, Literal, TypeAlias

from simulator import np
from simulator.np import Array

Columns: TypeAlias = Mapping[str, Array]

# name -> (element type, what it says); text, `cores`,
# `link_bytes` and `after` are object arrays of str and tuples
COLUMNS: dict[str, tuple[str, str]] = {
    "run": ("text", "name of the run"),
    "rank": ("int32", "rank; of ranks that do the same thing one is recorded, with a multiplicity"),
    "multiplicity": ("int32", "how many identical ranks this row stands for"),
    "stream": ("text", "in-order stream of the rank that the task ran on"),
    "task": ("int32", "number of the task in its rank's program, in issue order"),
    "name": ("text", "what the task is called in the program"),
    "kind": ("text", "operation or collective: gemm, attention, vector, all_to_all, ..."),
    "engine": ("text", "what executes or drives the task: cube, vector, sdma, ..."),
    "communication": ("bool", "true for collectives and point-to-point transfers"),
    "layer": ("int32", "layer of the model; -1: none"),
    "micro_batch": ("int32", "micro-batch; -1: none"),
    "issued_ps": ("int64", "the host had issued the task (ps)"),
    "ready_ps": ("int64", "issued, its stream predecessor done and everything it waits for done (ps)"),
    "start_ps": ("int64", "cores granted and, in a collective, all peers there (ps); ready..start is waiting"),
    "end_ps": ("int64", "done (ps); start..end is work"),
    "solo_ps": ("int64", "how long start..end lasts alone on the machine, on the cores that it got (ps)"),
    "bound_by": ("text", "what limited it longest: HBM, L2, compute, latency, cores, a link, ..."),
    "cores": ("counts", "cores that it held of each pool in `engine`, in that order; none where it holds none"),
    "flops": ("float64", "floating-point or integer operations (1)"),
    "l2_bytes": ("float64", "bytes that it moves on chip, through L2 (B)"),
    "hbm_bytes": ("float64", "bytes that it moves in HBM (B)"),
    "wire_bytes": ("float64", "bytes that it sends to other ranks (B)"),
    "link_bytes": ("amounts", "bytes that it sends over links of each level of the fabric, from the inside out, where "
                              "they leave a die (B); none where it sends none"),
    "after": ("tasks", "numbers of the tasks of the same rank that it waits for, its stream predecessor included"),
    "cause_rank": ("int32", "rank of the task that this one followed from beside `after`, as a flag, a write or a "
                            "count that came from there; -1: none"),
    "cause_task": ("int32", "number of that task; -1: none"),
    "late_rank": ("int32", "rank whose exchange came last, or whose bytes, so that this exchange started later than it "
                           "was ready; -1: none"),
    "late_task": ("int32", "number of that task: the same exchange of that rank, or what it put; -1: none"),
    "host_after": ("int32", "task that the host was blocked on before it could issue this one; -1: none"),
}


@dataclass
class StaticTasks:
    """What is known of a rank's tasks before the run: one entry per task, in issue order, in every list.

    `COLUMNS` documents those of the same name; unit_cores: cores of each pool of the engine, for each unit that a task
    runs on. Ranks with the same program share one object. `made_by`: its lists are made when they are asked for.
    Raises ValueError if the lists differ in length.
    """

    name: list[str]
    stream: list[str]
    kind: list[str]
    engine: list[str]
    layer: list[int]
    micro_batch: list[int]
    flops: list[float]
    l2_bytes: list[float]
    hbm_bytes: list[float]
    wire_bytes: list[float]
    after: list[tuple[int, ...]]
    host_after: list[int]
    communication: list[bool]
    unit_cores: list[tuple[int, ...]]

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"every list of StaticTasks needs one entry per task; lengths are {lengths}")

    @classmethod
    def made_by(cls, make: Callable[[str], list[Any]]) -> StaticTasks:
        """Of which each list is made when it is first asked for. make: a list by its name; others may share it."""
        made = cls.__new__(cls)
        made.__dict__["_make"] = make
        return made

    def __getattr__(self, name: str) -> Any:
        """A list that has not been made yet."""
        make = self.__dict__.get("_make")
        if make is None or name not in self.__dataclass_fields__:
            raise AttributeError(name)
        made = self.__dict__[name] = make(name)
        return made

    def __len__(self) -> int:
        return len(self.name)

    def append(self, name: str, stream: str, kind: str, engine: str, layer: int, micro_batch: int,
               wire_bytes: float) -> int:
        """Adds a task that was not known before the run (a live process did it); returns its number."""
        row = name, stream, kind, engine, layer, micro_batch, 0.0, 0.0, 0.0, wire_bytes, (), -1, True, ()
        if "_make" in self.__dict__:  # lists of its own from here on
            self.__dict__.update({field.name: [*getattr(self, field.name)] for field in fields(self)})
            del self.__dict__["_make"]
        for field, value in zip(fields(self), row, strict=True):
            getattr(self, field.name).append(value)
        return len(self.name) - 1


class Table(Mapping[str, Array]):
    """Columns by name, each of which is made when it is first asked for. make: one by its name, and from others. part:
    the same of some rows, without making it of all (None: a part is cut from the whole)."""

    def __init__(self, names: Iterable[str], make: Callable[[str, Columns], Array],
                 part: Callable[[Array], Columns] | None = None) -> None:
        self._made: dict[str, Array | None] = dict.fromkeys(names)
        self._make, self._part = make, part

    def __getitem__(self, name: str) -> Array:
        made = self._made[name]
        if made is None:
            made = self._made[name] = self._make(name, self)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def some(self, rows: Array) -> Table:
        """Some rows, whose columns are made when they are asked for."""
        part = None if self._part is None else self._part(rows)
        return Table(self._made, lambda name, _: self[name][rows] if part is None or self._made[name] is not None
                     else part[name])  # fmt: skip


def select(columns: Columns, rows: Array) -> Columns:
    """Some rows of a table: `rows` is a boolean mask or row numbers in ascending order."""
    if isinstance(columns, Table):
        return columns.some(rows)
    return {name: column[rows] for name, column in columns.items()}


def codes(column: Array) -> tuple[Array, list[Any]]:
    """A column of objects as small integers: (codes, sorted values) with values[codes[row]] == column[row]."""
    values = column.tolist()
    distinct = sorted(set(values))
    number = {value: code for code, value in enumerate(distinct)}
    return np.fromiter(map(number.__getitem__, values), dtype=np.int32, count=len(values)), distinct


def block_of(name: str) -> str:
    """The block that a task belongs to, the first word of its name ("attention" of "attention.q_a", "attention 3")."""
    return name.partition(".")[0].partition(" ")[0]


def layer_of(columns: Columns, rank: int, layer: int | None) -> tuple[Columns, int, Array, int | None]:
    """A rank's rows, one of its layers (None: the middle; -1: none), its rows, how much later the next starts (ps)."""
    mine = select(columns, columns["rank"] == rank)
    if layer is None:
        layers = sorted(set(mine["layer"][mine["layer"] >= 0].tolist()))
        layer = layers[len(layers) // 2] if layers else -1
    here, start = mine["layer"] == layer, mine["start_ps"]
    following = start[mine["layer"] == layer + 1]
    later = int(following.min() - start[here].min()) if layer >= 0 and len(following) and here.any() else None
    return mine, layer, here, later


def rank_weights(columns: Columns) -> tuple[Array, Array, Array]:
    """(ranks ascending, their multiplicities, for every row the position of its rank in them)."""
    rank = columns["rank"]
    begins = np.ones(len(rank), dtype=bool)
    begins[1:] = rank[1:] != rank[:-1]
    first = np.flatnonzero(begins)
    return rank[first], columns["multiplicity"][first], np.cumsum(begins) - 1


def row_keys(rank: Array, task: Array) -> Array:
    """One integer per (rank, task), ascending over the rows of a table."""
    return (np.asarray(rank).astype(np.int64) << 32) + np.asarray(task).astype(np.int64)


def find_rows(columns: Columns, rank: Array, task: Array) -> Array:
    """Row number of each (rank, task) pair; -1 where the table has no such row."""
    table = row_keys(columns["rank"], columns["task"])
    wanted = row_keys(rank, task)
    if not len(table):
        return np.full(len(wanted), -1, dtype=np.int64)
    row = np.minimum(np.searchsorted(table, wanted), len(table) - 1)
    return np.where(table[row] == wanted, row, -1)


def waits(columns: Columns) -> tuple[Array, Array]:
    """Every (row, row it waits for) of the table as two arrays, ascending in the first; absent tasks are left out."""
    number, distinct = codes(columns["after"])  # ranks with the same program wait for the same tasks
    length = np.fromiter(map(len, distinct), dtype=np.int64, count=len(distinct))
    tasks = np.fromiter(chain.from_iterable(distinct), dtype=np.int64, count=int(length.sum()))
    count = length[number]
    waiting = np.repeat(np.arange(len(number)), count)
    place = np.arange(len(waiting)) - np.repeat(np.cumsum(count) - count, count)  # within what one row waits for
    task = tasks[(np.cumsum(length) - length)[number[waiting]] + place]
    found = find_rows(columns, columns["rank"][waiting], task)
    return waiting[found >= 0], found[found >= 0]


def causes(columns: Columns) -> tuple[Array, Array]:
    """Every (row, row of any rank that it followed from) of the table as two arrays; absent rows are left out."""
    rows = np.flatnonzero(columns["cause_rank"] >= 0)
    found = find_rows(columns, columns["cause_rank"][rows], columns["cause_task"][rows])
    return rows[found >= 0], found[found >= 0]


def last_wait_end(columns: Columns) -> Array:
    """For every row when the last task that it waits for ended (ps); 0 where it waits for none."""
    waiting, awaited = waits(columns)
    end = np.zeros(len(columns["rank"]), dtype=np.int64)
    np.maximum.at(end, waiting, columns["end_ps"][awaited])
    return end


def host_free_ps(columns: Columns) -> Array:
    """For every row until when the rank's host was last blocked before it issued the task (ps); 0 if it never was."""
    row = find_rows(columns, columns["rank"], columns["host_after"])
    until = np.where(row >= 0, columns["end_ps"][row], 0) if len(row) else np.zeros(0, dtype=np.int64)
    _, _, position = rank_weights(columns)
    shift = position * (int(until.max(initial=0)) + 1)
    return np.maximum.accumulate(until + shift) - shift


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals in ascending order: start[i] < end[i] <= start[i + 1]; integer picoseconds."""

    start: Array
    end: Array

    def covered(self, start: Array, end: Array) -> Array:
        """For each interval start..end given (they may overlap) how much of it lies in this set (ps)."""
        return self._measure(end) - self._measure(start)

    def minus(self, other: Intervals) -> Intervals:
        """What of this set is not in another one: it begins where this begins outside the other, or the other ends
        within this, and so for ends."""
        begins = [self.start[~other._within(self.start, "right")], other.end[self._inside(other.end)]]
        ends = [self.end[~other._within(self.end, "left")], other.start[self._inside(other.start)]]
        return Intervals(np.sort(np.concatenate(begins), kind="stable"), np.sort(np.concatenate(ends), kind="stable"))

    def _within(self, time: Array, side: Literal["left", "right"]) -> Array:
        """Which times lie in an interval, with its start (side right) or with its end (left)."""
        begun = np.searchsorted(self.start, time, side=side)
        ended = np.searchsorted(self.end, time, side=side)
        return begun > ended

    def _inside(self, time: Array) -> Array:
        """Which times lie strictly inside an interval."""
        return np.searchsorted(self.start, time, side="left") > np.searchsorted(self.end, time, side="right")

    def lengths(self) -> Array:
        """Length of each interval (ps)."""
        return self.end - self.start

    def _measure(self, time: Array) -> Array:
        """How much of the set lies before each time."""
        before = np.concatenate([[0], np.cumsum(self.lengths())])
        begun = np.searchsorted(self.start, time, side="right")
        last_end = np.concatenate([[0], self.end])[begun]
        return before[begun] - np.where(begun > 0, np.maximum(last_end - time, 0), 0)


def union(start: Array, end: Array) -> Intervals:
    """The union of intervals start..end in any order; empty ones vanish and touching ones become one."""
    some = end > start
    start, end = start[some], end[some]
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    end = np.maximum.accumulate(end)
    if not len(start):
        return Intervals(start, end)
    fresh = np.concatenate([[True], start[1:] > end[:-1]])
    last = np.concatenate([fresh[1:], [True]])
    return Intervals(start[fresh], end[last])
