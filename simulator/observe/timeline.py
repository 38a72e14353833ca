"""Timeline: what happened in a run, one row per finished task, recorded leanly and read as columns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, fields
from itertools import accumulate
from os import PathLike
from typing import TYPE_CHECKING, Any

from simulator.observe.columns import COLUMNS

if TYPE_CHECKING:
    from simulator.observe.columns import Array


@dataclass
class StaticTasks:
    """What is known of a rank's tasks before the run: one entry per task, in issue order, in every list.

    Columns of the same name are documented in `columns.COLUMNS`. Ranks with the same program share one object.
    Raises ValueError if the lists differ in length.
    """

    name: list[str]
    stream: list[str]
    kind: list[str]
    engine: list[str]
    layer: list[int]
    micro_batch: list[int]
    flops: list[float]
    hbm_bytes: list[float]
    wire_bytes: list[float]
    after: list[tuple[int, ...]]
    host_after: list[int]
    communication: list[bool]

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"every list of StaticTasks needs one entry per task; lengths are {lengths}")

    def __len__(self) -> int:
        return len(self.name)

    def append(self, name: str, stream: str, kind: str, engine: str, layer: int, micro_batch: int,
               wire_bytes: float) -> int:
        """Adds a task that was not known before the run (a live process did it); returns its number."""
        row = {"name": name, "stream": stream, "kind": kind, "engine": engine, "layer": layer,
               "micro_batch": micro_batch, "flops": 0.0, "hbm_bytes": 0.0, "wire_bytes": wire_bytes, "after": (),
               "host_after": -1, "communication": True}
        for field, value in row.items():
            getattr(self, field).append(value)
        return len(self.name) - 1


class Timeline:
    """The rows of one run. `record` is the hot path: 50 bytes and about half a microsecond per row."""

    __slots__ = ("_bounds", "_causes", "_end", "_issued", "_limited", "_ranks", "_ready", "_solo", "_start", "_task", "_who",
                 "run")

    def __init__(self, run: str = "") -> None:
        self.run = run
        self._ranks: dict[int, tuple[StaticTasks, int]] = {}
        self._bounds: dict[str, int] = {}
        self._who, self._task = array("i"), array("i")
        self._issued, self._ready, self._start = array("q"), array("q"), array("q")
        self._end, self._solo = array("q"), array("q")
        self._limited = array("H")
        self._causes: dict[tuple[int, int], tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._who)

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
               solo_ps: int, bound_by: str) -> None:
        """Adds a finished task: times in integer picoseconds, `bound_by` what limited it longest.

        Order does not matter. Nothing is checked here; `columns` refuses unknown ranks and tasks.
        """
        self._who.append(rank)
        self._task.append(task)
        self._issued.append(issued_ps)
        self._ready.append(ready_ps)
        self._start.append(start_ps)
        self._end.append(end_ps)
        self._solo.append(solo_ps)
        try:
            self._limited.append(self._bounds[bound_by])
        except KeyError:
            self._limited.append(self._bounds.setdefault(bound_by, len(self._bounds)))

    def follow(self, rank: int, task: int, cause_rank: int, cause_task: int) -> None:
        """Notes that a task followed from another one, which its program does not say (columns cause_*)."""
        self._causes[rank, task] = cause_rank, cause_task

    def columns(self) -> dict[str, Array]:
        """The table, sorted by (rank, task) whatever the order of recording; see `columns.COLUMNS`.

        Raises ValueError for a row of an unknown rank or task and for a task recorded twice.
        """
        import numpy as np

        order = np.lexsort((_numbers(self._task), _numbers(self._who)))
        rank, task = _numbers(self._who)[order], _numbers(self._task)[order]
        self._check(rank, task)
        taken: dict[str, Any] = {"run": np.full(len(order), self.run, dtype=object), "rank": rank, "task": task}
        taken["issued_ps"], taken["ready_ps"] = _numbers(self._issued)[order], _numbers(self._ready)[order]
        taken["start_ps"], taken["end_ps"] = _numbers(self._start)[order], _numbers(self._end)[order]
        taken["solo_ps"] = _numbers(self._solo)[order]
        taken["bound_by"] = _objects(list(self._bounds))[_numbers(self._limited)[order]]
        taken["cause_rank"], taken["cause_task"] = self._caused(rank, task)
        taken.update(self._static(rank, task))
        return {name: taken[name] for name in COLUMNS}

    def to_arrow(self) -> Any:
        """The table as a pyarrow.Table whose schema documents every column."""
        from simulator.observe.arrow import to_arrow

        return to_arrow(self.columns())

    def write_parquet(self, path: str | PathLike[str]) -> None:
        """Writes the table; the same run gives the same bytes. A file half-written is never left behind."""
        from simulator.observe.arrow import write_parquet

        write_parquet(self.columns(), path)

    def _check(self, rank: Array, task: Array) -> None:
        import numpy as np

        for one in np.unique(rank).tolist():
            if one not in self._ranks:
                raise ValueError(f"rank {one} has rows but was never added to the timeline")
        size = self._per_rank(lambda static, _: len(static))
        wrong = np.flatnonzero((task < 0) | (task >= size[rank]))
        if len(wrong):
            row = wrong[0]
            raise ValueError(f"rank {rank[row]} has no task {task[row]}: its program has {size[rank[row]]} tasks")
        twice = np.flatnonzero((rank[1:] == rank[:-1]) & (task[1:] == task[:-1]))
        if len(twice):
            raise ValueError(f"rank {rank[twice[0]]} recorded task {task[twice[0]]} twice")

    def _caused(self, rank: Array, task: Array) -> tuple[Array, Array]:
        import numpy as np

        causes = np.full((2, len(rank)), -1, dtype=np.int32)
        if self._causes:
            found = [self._causes.get(row, (-1, -1)) for row in zip(rank.tolist(), task.tolist(), strict=True)]
            causes = np.array(found, dtype=np.int32).T
        return causes[0], causes[1]

    def _static(self, rank: Array, task: Array) -> dict[str, Array]:
        """The columns that were known before the run, for the rows given."""
        import numpy as np

        programs = list({id(static): static for static, _ in self._ranks.values()}.values())
        ends = list(accumulate(map(len, programs)))
        offsets = {id(program): ends[number] - len(program) for number, program in enumerate(programs)}
        row = task + self._per_rank(lambda static, _: offsets[id(static)])[rank]
        columns = {"multiplicity": self._per_rank(lambda _, multiplicity: multiplicity)[rank].astype(np.int32)}
        for field in fields(StaticTasks):
            values = [value for program in programs for value in getattr(program, field.name)]
            kind = COLUMNS[field.name][0]
            whole = _objects(values) if kind in ("text", "tasks") else np.array(values, dtype=kind)
            columns[field.name] = whole[row]
        return columns

    def _per_rank(self, value: Any) -> Array:
        """Array indexed by rank number of value(static, multiplicity)."""
        import numpy as np

        table = np.zeros(max(self._ranks, default=-1) + 1, dtype=np.int64)
        for rank, given in self._ranks.items():
            table[rank] = value(*given)
        return table


def _numbers(column: array[int]) -> Array:
    import numpy as np

    return np.array(column)


def _objects(values: list[Any]) -> Array:
    """A one-dimensional object array, even of tuples of one length."""
    import numpy as np

    return np.fromiter(values, dtype=object, count=len(values))
