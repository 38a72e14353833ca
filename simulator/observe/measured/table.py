"""The table of a measured trace: the columns of a timeline, as far as a profiler knows them.

A row is a kernel, a copy or a collective. A profiler does not know since when one could have started, so `ready_ps` is
its start; what it waited for is the one before it on its stream; layers and micro-batches are -1, bytes 0, `bound_by`
empty. Times count from the first row of the rank: clocks of ranks are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cached_property
from itertools import repeat

from simulator import np
from simulator.np import Array
from simulator.observe.columns import COLUMNS, Columns, codes
from simulator.observe.metrics import Metrics, measure

PS_PER_US = 10**6
MOST = 2**63 - 1  # that a column holds


@dataclass
class Rows:
    """Kernels, copies and collectives as they are read, one entry each in every list; times in ps, on one clock.

    issued: when the call that launched it had returned; none where it is not known. layer, micro_batch, multiplicity:
    of a trace that Braid wrote; left empty where no row has them. notes: what is to be said of the file. says_rank:
    whether the file says whose it is.
    """

    rank: list[int] = field(default_factory=list)
    stream: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    communication: list[bool] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    issued: list[int | None] = field(default_factory=list)
    layer: list[int] = field(default_factory=list)
    micro_batch: list[int] = field(default_factory=list)
    multiplicity: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    says_rank: bool = False

    def add(self, rank: int, stream: str, name: str, kind: str, communication: bool, start: int, end: int,
            issued: int | None) -> None:
        """One row; ValueError if it ends before it starts."""
        if end < start:
            raise ValueError(f"'{name}' at {start / PS_PER_US:.3f} us ends before it starts")
        self.rank.append(rank)
        self.stream.append(stream)
        self.name.append(name)
        self.kind.append(kind)
        self.communication.append(communication)
        self.start.append(start)
        self.end.append(end)
        self.issued.append(issued)

    def extend(self, other: Rows) -> None:
        """The rows of another file behind these."""
        for name, mine in vars(self).items():
            if isinstance(mine, list) and mine is not self.notes:
                mine += getattr(other, name)
        self.notes += [note for note in other.notes if note not in self.notes]

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class Measured:
    """A measured trace. name: its file or folder; form: what it was written by; notes: what is to be known of it."""

    name: str
    form: str
    columns: Columns
    notes: Sequence[str]

    @cached_property
    def measured(self) -> Metrics:
        """Where the time went."""
        return measure(self.columns)

    @cached_property
    def launches(self) -> bool:
        """Whether it is known when kernels were launched."""
        return bool((self.columns["issued_ps"] > 0).any())


def microseconds(value: object, what: str) -> int:
    """A time in us, a number or its text, as picoseconds: exact, for a float cannot hold today to the nanosecond."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value * PS_PER_US
    try:
        found = Decimal(str(value).strip())
        if found.is_finite():
            return int(found * PS_PER_US)
    except InvalidOperation:
        pass
    raise ValueError(f"{what} is {value!r}, not a time in us")


def check(rows: Rows) -> None:
    """ValueError if a number is too large for a column, as a time is that is more than 106 days from the first."""
    zero = _begins(rows)
    for number, name, end in zip(rows.rank, rows.name, rows.end, strict=True):
        if end - zero[number] > MOST:
            raise ValueError(f"'{name}' ends {(end - zero[number]) / PS_PER_US:.6g} us after the first of rank"
                             f" {number} begins, which is no time of one trace")
    for what in ("rank", "layer", "micro_batch", "multiplicity"):
        if any(not -MOST <= number <= MOST for number in set(getattr(rows, what))):
            raise ValueError(f"a number of a {what} is too large")


def _begins(rows: Rows) -> dict[int, int]:
    """When each rank begins, on its own clock, which may count from 1970."""
    zero: dict[int, int] = {}
    for number, begin in zip(rows.rank, rows.start, strict=True):
        zero[number] = min(begin, zero.get(number, begin))
    return zero


def table(run: str, rows: Rows) -> Columns:
    """The rows as columns, sorted by rank and start."""
    count, zero = len(rows), _begins(rows)
    rank = np.array(rows.rank, dtype=np.int64)
    start, end = (np.array([time - zero[number] for number, time in zip(rows.rank, times, strict=True)], dtype=np.int64)
                  for times in (rows.start, rows.end))
    issued = np.array([0 if time is None else min(max(time, zero[number]), begin) - zero[number]
                       for number, begin, time in zip(rows.rank, rows.start, rows.issued, strict=True)],
                      dtype=np.int64)
    order = np.lexsort((end, start, rank))
    rank, start, end, issued = rank[order], start[order], end[order], issued[order]
    task = np.arange(count) - np.searchsorted(rank, rank)
    stream = _objects(rows.stream)[order]
    made = {"rank": rank, "stream": stream, "task": task, "name": _objects(rows.name)[order],
            "kind": _objects(rows.kind)[order], "communication": np.array(rows.communication, dtype=bool)[order],
            "issued_ps": issued, "ready_ps": start, "start_ps": start, "end_ps": end, "solo_ps": end - start,
            "after": _stream_order(rank, stream, task)}
    for name, given in (("layer", rows.layer), ("micro_batch", rows.micro_batch), ("multiplicity", rows.multiplicity)):
        if given:
            made[name] = np.array(given)[order]
    return _completed(run, made, count)


def _completed(run: str, made: Mapping[str, Array], count: int) -> Columns:
    """All columns of a timeline: what is not known is 0, -1, empty, and 1 of a multiplicity."""
    unknown: dict[str, object] = {"run": run, "multiplicity": 1, "layer": -1, "micro_batch": -1, "cause_rank": -1,
                                  "cause_task": -1, "late_rank": -1, "late_task": -1, "host_after": -1}
    columns: dict[str, Array] = {}
    for name, (kind, _) in COLUMNS.items():
        if kind in ("text", "counts", "amounts", "tasks"):
            columns[name] = made[name] if name in made else _filled(unknown.get(name, "" if kind == "text" else ()),
                                                                    count)
        else:
            columns[name] = (made[name] if name in made else np.full(count, unknown.get(name, 0))).astype(kind)
    return columns


def _filled(value: object, count: int) -> Array:
    """The same object in every row."""
    return np.fromiter(repeat(value, count), dtype=object, count=count)


def _objects(values: Sequence[str]) -> Array:
    return np.fromiter(values, dtype=object, count=len(values))


def _stream_order(rank: Array, stream: Array, task: Array) -> Array:
    """Of every row the number of the row before it on its stream, as a tuple; rows are sorted by rank and start."""
    number, _ = codes(stream)
    order = np.lexsort((task, number, rank))
    same = (rank[order][1:] == rank[order][:-1]) & (number[order][1:] == number[order][:-1])
    before = np.full(len(rank), -1, dtype=np.int64)
    before[order[1:][same]] = task[order[:-1][same]]
    return np.fromiter(((one,) if one >= 0 else () for one in before.tolist()), dtype=object, count=len(before))
