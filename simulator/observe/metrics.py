"""What a timeline says in numbers: where the time of a rank went, what was hidden, what was stretched and by whom.

Every time is taken per rank and then averaged over ranks, each rank counted as often as its multiplicity says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator import np
from simulator.np import Array
from simulator.observe.columns import (
    Columns,
    Intervals,
    block_of,
    codes,
    host_free_ps,
    last_wait_end,
    rank_weights,
    union,
)

# Neither compute nor communication: what only moves bytes on chip or only passes time.
AUXILIARY_KINDS = frozenset({"prefetch", "copy", "delay", "device_read", "event"})


@dataclass(frozen=True)
class CommunicationTimes:
    """One kind of communication on an average rank (ps); busy = hidden + exposed.

    busy: at least one such task works (start..end); hidden: and compute runs on the rank meanwhile; exposed: and none
    does. waiting: at least one such task waits for its peers or for cores (ready..start).
    """

    busy_ps: float
    hidden_ps: float
    exposed_ps: float
    waiting_ps: float


@dataclass(frozen=True)
class Stretch:
    """How much longer compute tasks took than alone on the same cores: wall time / solo time; 1.0 is undisturbed.

    overall: all compute tasks, sum of (end - start) / sum of solo.
    apart: those that ran while no communication ran on their rank; 1.0 where there are none.
    beside_communication: compute wall time under communication / solo work done in that time. The part of a task that
    lies outside communication is taken to progress as fast as the tasks of `apart` did. None where nothing overlapped.
    """

    overall: float
    apart: float
    beside_communication: float | None


@dataclass(frozen=True)
class Metrics:
    """Numbers of a run; times in ps, of an average rank unless said otherwise.

    ranks: how many the rows stand for. compute_ps: at least one compute task works. communication: by task name.
    all_communication: the same together. kind_ps: at least one task of that kind works. host_bound_ps: a compute task
    lacks only to be issued, by a host that is not blocked; before collectives that is not counted. account_ps: a
    partition of the makespan (they add up): compute; exposed communication; waiting for peers or cores; host; idle.
    """

    makespan_ps: int
    ranks: int
    compute_ps: float
    communication: Mapping[str, CommunicationTimes]
    all_communication: CommunicationTimes
    kind_ps: Mapping[str, float]
    stretch: Stretch
    host_bound_ps: float
    account_ps: Mapping[str, float]


class RankLine:
    """All ranks of a timeline on one line, each on a stretch of its own, `span` long: more than every time.

    Intervals on it are of all ranks at once. weights: multiplicity of each rank; position: of every row's rank among
    them; compute: mask of rows that are neither communication nor auxiliary; kinds: (code of every row, kinds).
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        _, self.weights, self.position = rank_weights(columns)
        self.span = int(columns["end_ps"].max(initial=0)) + 1
        self.begin = self.position.astype("int64") * self.span  # of the stretch of every row
        self.kinds = number, kinds = codes(columns["kind"])
        auxiliary = np.array([kind in AUXILIARY_KINDS for kind in kinds] or [False])
        self.compute: Array = ~columns["communication"] & ~auxiliary[number]  # mask of rows

    def at(self, time: Array, rows: Array) -> Array:
        """Times of some rows on the line."""
        there: Array = self.begin[rows] + time[rows]
        return there

    def union(self, rows: Array, start: str = "start_ps", end: str = "end_ps") -> Intervals:
        """When at least one of the rows of a mask is between two of its times."""
        chosen = np.flatnonzero(rows)
        return union(self.at(self.columns[start], chosen), self.at(self.columns[end], chosen))

    def mean(self, intervals: Intervals, amount: Array | None = None) -> float:
        """Total length of the intervals, or of the amounts given for them, on an average rank (ps)."""
        total = int(self.weights.sum())
        weight = self.weights[intervals.start // self.span]
        return float((weight * (intervals.lengths() if amount is None else amount)).sum() / total) if total else 0.0


def measure(columns: Columns) -> Metrics:
    """All numbers of a timeline; fractions of a second for hundreds of thousands of rows."""
    line = RankLine(columns)
    compute, host = line.union(line.compute), _host_gaps(line)
    return Metrics(
        makespan_ps=line.span - 1, ranks=int(line.weights.sum()), compute_ps=line.mean(compute),
        communication=_communications(line, compute),
        all_communication=_communication(line, compute, columns["communication"]),
        kind_ps=_busy(line, *line.kinds), stretch=_stretch(line), host_bound_ps=line.mean(host),
        account_ps=_account(line, compute, host))


def _busy(line: RankLine, number: Array, texts: list[str]) -> dict[str, float]:
    """Busy time of an average rank of the rows with each number, the longest first."""
    busy = {text: line.mean(line.union(number == code)) for code, text in enumerate(texts)}
    return dict(sorted(busy.items(), key=lambda item: -item[1]))


def busy_by_block(columns: Columns) -> dict[str, float]:
    """The same for every block: the first word of a task's name ("attention" of "attention.q_a")."""
    number, names = codes(columns["name"])
    of_name = [block_of(name) for name in names]
    blocks = sorted(set(of_name))
    code = np.array([blocks.index(block) for block in of_name], dtype=np.int32)
    return _busy(RankLine(columns), code[number], blocks)


def busy_by_layer(columns: Columns) -> dict[int, float]:
    """The same for every layer, in order."""
    line = RankLine(columns)
    layers = sorted(set(columns["layer"][columns["layer"] >= 0].tolist()))
    return {layer: line.mean(line.union(columns["layer"] == layer)) for layer in layers}


def overlap_by_kind(columns: Columns) -> dict[str, CommunicationTimes]:
    """The same times for every kind, compute too, the longest first: what is at work is hidden while compute of another
    kind runs on its rank, and exposed while none does."""
    line = RankLine(columns)
    number, kinds = line.kinds
    found = {}
    for code, kind in enumerate(kinds):
        rows = number == code
        found[kind] = _communication(line, line.union(line.compute & ~rows), rows)
    return dict(sorted(found.items(), key=lambda item: -item[1].busy_ps))


def _communications(line: RankLine, compute: Intervals) -> dict[str, CommunicationTimes]:
    """Times of communication by name, longest first."""
    rows = line.columns["communication"]
    number, names = codes(line.columns["name"])
    present = sorted(set(number[rows].tolist()))
    times = {names[code]: _communication(line, compute, rows & (number == code)) for code in present}
    return dict(sorted(times.items(), key=lambda item: -item[1].busy_ps))


def _communication(line: RankLine, compute: Intervals, rows: Array) -> CommunicationTimes:
    work, wait = line.union(rows), line.union(rows, "ready_ps", "start_ps")
    hidden = compute.covered(work.start, work.end)
    return CommunicationTimes(line.mean(work), line.mean(work, hidden), line.mean(work, work.lengths() - hidden),
                              line.mean(wait))


def _stretch(line: RankLine) -> Stretch:
    rows = np.flatnonzero(line.compute)
    weight = line.columns["multiplicity"][rows].astype(float)
    start, end = line.at(line.columns["start_ps"], rows), line.at(line.columns["end_ps"], rows)
    wall, solo = end - start, line.columns["solo_ps"][rows]
    beside = line.union(line.columns["communication"]).covered(start, end)
    alone = beside == 0
    apart = _ratio(wall[alone] @ weight[alone], solo[alone] @ weight[alone])
    own = np.minimum(wall / np.maximum(solo, 1), apart)  # a task is stretched apart no more than it is as a whole
    work = np.clip(solo - (wall - beside) / np.maximum(own, 1.0), 0, solo)
    under = float(beside @ weight)
    return Stretch(_ratio(wall @ weight, solo @ weight), apart, _ratio(under, float(work @ weight)) if under else None)


def _ratio(wall: float, solo: float) -> float:
    return float(wall / solo) if solo else 1.0


def _host_gaps(line: RankLine) -> Intervals:
    """When a compute task, with all done that it waits for, lacks only to be issued by a host that is not blocked."""
    columns = line.columns
    since = np.maximum(last_wait_end(columns), host_free_ps(columns))
    rows = np.flatnonzero(line.compute & (columns["issued_ps"] > since))
    return union(line.at(since, rows), line.at(columns["issued_ps"], rows))


def _account(line: RankLine, compute: Intervals, host: Intervals) -> dict[str, float]:
    """The makespan of an average rank, every instant counted once under the first heading that applies (ps)."""
    everything = np.ones(len(line.position), dtype=bool)
    headings = {"compute": compute, "communication exposed": line.union(line.columns["communication"]),
                "other work": line.union(everything), "waiting for peers or cores":
                line.union(everything, "ready_ps", "start_ps"), "host": host}
    account: dict[str, float] = {}
    seen = Intervals(compute.start[:0], compute.end[:0])
    covered = 0.0
    for heading, intervals in headings.items():
        seen = union(np.concatenate([seen.start, intervals.start]), np.concatenate([seen.end, intervals.end]))
        total = line.mean(seen)
        account[heading] = total - covered
        covered = total
    account["idle"] = line.span - 1 - covered
    return account
