"""What a timeline says in numbers: where the time of a rank went, what was hidden, what was stretched and by whom.

Every time is taken per rank and then averaged over ranks, each rank counted as often as its multiplicity says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from simulator.observe.columns import Array, Columns, codes, host_free_ps, last_wait_end, rank_weights
from simulator.observe.intervals import Intervals, lay_out, union
from simulator.units import PS_PER_S

# Neither compute nor communication: what only moves bytes on chip or only passes time.
AUXILIARY_KINDS = frozenset({"prefetch", "copy", "delay", "device_read", "event"})


@dataclass(frozen=True)
class CommunicationTimes:
    """One kind of communication on an average rank (ps); busy = hidden + exposed. `per_rank` has the same by rank.

    busy: at least one such task works (start..end); hidden: and compute runs on the rank meanwhile; exposed: and none
    does. waiting: at least one such task waits for its peers or for cores (ready..start); waiting_exposed: and no
    compute runs on the rank meanwhile.
    """

    busy_ps: float
    hidden_ps: float
    exposed_ps: float
    waiting_ps: float
    waiting_exposed_ps: float
    per_rank: Mapping[str, Array]


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
    communication_by_kind, all_communication: the same by task kind and together. kind_ps, engine_ps: at least one task
    of that kind or engine works. host_bound_ps: a compute task lacks only to be issued, by a host that is not blocked;
    before collectives that is not counted. account_ps: a partition of the makespan (they add up): compute; exposed
    communication; waiting for peers or cores; host; idle. per_rank: rank, multiplicity, end_ps, compute_ps,
    host_bound_ps as arrays over recorded ranks.
    """

    makespan_ps: int
    ranks: int
    compute_ps: float
    communication: Mapping[str, CommunicationTimes]
    communication_by_kind: Mapping[str, CommunicationTimes]
    all_communication: CommunicationTimes
    kind_ps: Mapping[str, float]
    engine_ps: Mapping[str, float]
    stretch: Stretch
    host_bound_ps: float
    account_ps: Mapping[str, float]
    per_rank: Mapping[str, Array]


class _Line:
    """All ranks of a timeline on one line, each on a stretch of its own."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.ranks, self.weights, self.position = rank_weights(columns)
        self.span = int(columns["end_ps"].max(initial=0)) + 1
        self._begin = lay_out(self.position, 0, self.span)  # of the stretch of every row
        self._codes: dict[str, tuple[Array, list[str]]] = {}

    @cached_property
    def compute(self) -> Array:
        """Mask of the rows that compute: no communication, none of AUXILIARY_KINDS."""
        import numpy as np

        number, kinds = self.codes("kind")
        auxiliary = np.array([kind in AUXILIARY_KINDS for kind in kinds] or [False])
        computes: Array = ~self.columns["communication"] & ~auxiliary[number]
        return computes

    def codes(self, column: str) -> tuple[Array, list[str]]:
        if column not in self._codes:
            self._codes[column] = codes(self.columns[column])
        return self._codes[column]

    def at(self, time: Array, rows: Array) -> Array:
        there: Array = self._begin[rows] + time[rows]
        return there

    def union(self, rows: Array, start: str = "start_ps", end: str = "end_ps") -> Intervals:
        import numpy as np

        chosen = np.flatnonzero(rows)
        return union(self.at(self.columns[start], chosen), self.at(self.columns[end], chosen))

    def by_rank(self, intervals: Intervals, amount: Array | None = None) -> Array:
        """Total length of the intervals, or total of the amounts given for them, per rank (ps)."""
        import numpy as np

        before = np.concatenate([[0], np.cumsum(intervals.lengths() if amount is None else amount)])
        first = np.searchsorted(intervals.start, np.arange(len(self.ranks) + 1) * self.span)
        return before[first[1:]] - before[first[:-1]]

    def mean(self, per_rank: Array) -> float:
        total = int(self.weights.sum())
        return float((per_rank * self.weights).sum() / total) if total else 0.0


def measure(columns: Columns) -> Metrics:
    """All numbers of a timeline; fractions of a second for hundreds of thousands of rows."""
    line = _Line(columns)
    talking = columns["communication"]
    compute = line.union(line.compute)
    host = _host_gaps(line)
    compute_ps, host_ps = line.by_rank(compute), line.by_rank(host)
    per_rank = {"rank": line.ranks, "multiplicity": line.weights, "end_ps": _last_ends(line),
                "compute_ps": compute_ps, "host_bound_ps": host_ps}
    return Metrics(
        makespan_ps=line.span - 1, ranks=int(line.weights.sum()), compute_ps=line.mean(compute_ps),
        communication=_communications(line, compute, "name"),
        communication_by_kind=_communications(line, compute, "kind"),
        all_communication=_communication(line, compute, talking),
        kind_ps=_busy(line, *line.codes("kind")), engine_ps=_busy(line, *line.codes("engine")),
        stretch=_stretch(line), host_bound_ps=line.mean(host_ps),
        account_ps=_account(line, compute, host), per_rank=per_rank)


def busy_by(columns: Columns, column: str, layers: range | None = None) -> dict[str, float]:
    """Time that at least one task works, of an average rank, for every value of a text column (ps), longest first.

    `layers` restricts it to tasks of these layers.
    """
    import numpy as np

    line = _Line(columns)
    chosen = np.isin(columns["layer"], layers) if layers is not None else np.ones(len(line.position), dtype=bool)
    number, texts = codes(columns[column])
    return _busy(line, np.where(chosen, number, -1), texts)


def _busy(line: _Line, number: Array, texts: list[str]) -> dict[str, float]:
    """Busy time of an average rank of the rows with each number, the longest first."""
    busy = {text: line.mean(line.by_rank(line.union(number == code))) for code, text in enumerate(texts)}
    return dict(sorted(busy.items(), key=lambda item: -item[1]))


def busy_by_block(columns: Columns) -> dict[str, float]:
    """The same for every block: the first word of a task's name ("attention" of "attention.q_a")."""
    import numpy as np

    number, names = codes(columns["name"])
    block_of = [name.partition(".")[0].partition(" ")[0] for name in names]
    blocks = sorted(set(block_of))
    code = np.array([blocks.index(block) for block in block_of], dtype=np.int32)
    return _busy(_Line(columns), code[number], blocks)


def utilisation(columns: Columns, hbm_bytes_per_s: float | None = None, wire_bytes_per_s: float | None = None,
                flops_per_s: Mapping[str, float] | None = None) -> dict[str, float]:
    """Shares of what the rates given (per rank) could have done within the makespan, of an average rank.

    "HBM" and "wire": bytes moved; "ENGINE FLOPs": operations on each engine named in `flops_per_s`; "ENGINE busy": time
    that the engine works on at least one task, for every engine of the timeline.
    """
    line = _Line(columns)
    seconds = (line.span - 1) / PS_PER_S
    if not seconds:
        return {}
    weight = columns["multiplicity"] / max(1, int(line.weights.sum()))
    shares: dict[str, float] = {}
    for name, column, rate in (("HBM", "hbm_bytes", hbm_bytes_per_s), ("wire", "wire_bytes", wire_bytes_per_s)):
        if rate is not None:
            shares[name] = float((columns[column] * weight).sum()) / (rate * seconds)
    for engine, rate in (flops_per_s or {}).items():
        rows = columns["engine"] == engine
        shares[f"{engine} FLOPs"] = float((columns["flops"] * weight)[rows].sum()) / (rate * seconds)
    for engine, busy_ps in busy_by(columns, "engine").items():
        shares[f"{engine} busy"] = busy_ps / (line.span - 1)
    return shares


def _last_ends(line: _Line) -> Array:
    import numpy as np

    end = np.zeros(len(line.ranks), dtype=np.int64)
    np.maximum.at(end, line.position, line.columns["end_ps"])
    return end


def _communications(line: _Line, compute: Intervals, column: str) -> dict[str, CommunicationTimes]:
    """Times of communication for every value of a text column, longest first."""
    rows = line.columns["communication"]
    number, texts = line.codes(column)
    present = sorted(set(number[rows].tolist()))
    times = {texts[code]: _communication(line, compute, rows & (number == code)) for code in present}
    return dict(sorted(times.items(), key=lambda item: -item[1].busy_ps))


def _communication(line: _Line, compute: Intervals, rows: Array) -> CommunicationTimes:
    work, wait = line.union(rows), line.union(rows, "ready_ps", "start_ps")
    busy, waiting = line.by_rank(work), line.by_rank(wait)
    hidden = line.by_rank(work, compute.covered(work.start, work.end))
    waiting_hidden = line.by_rank(wait, compute.covered(wait.start, wait.end))
    per_rank = {"busy_ps": busy, "hidden_ps": hidden, "exposed_ps": busy - hidden, "waiting_ps": waiting,
                "waiting_exposed_ps": waiting - waiting_hidden}
    return CommunicationTimes(**{name: line.mean(values) for name, values in per_rank.items()}, per_rank=per_rank)


def _stretch(line: _Line) -> Stretch:
    import numpy as np

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


def _host_gaps(line: _Line) -> Intervals:
    """When a compute task, with all done that it waits for, lacks only to be issued by a host that is not blocked."""
    import numpy as np

    columns = line.columns
    since = np.maximum(last_wait_end(columns), host_free_ps(columns))
    rows = np.flatnonzero(line.compute & (columns["issued_ps"] > since))
    return union(line.at(since, rows), line.at(columns["issued_ps"], rows))


def _account(line: _Line, compute: Intervals, host: Intervals) -> dict[str, float]:
    """The makespan of an average rank, every instant counted once under the first heading that applies (ps)."""
    import numpy as np

    everything = np.ones(len(line.position), dtype=bool)
    headings = {"compute": compute, "communication exposed": line.union(line.columns["communication"]),
                "other work": line.union(everything), "waiting for peers or cores":
                line.union(everything, "ready_ps", "start_ps"), "host": host}
    account: dict[str, float] = {}
    seen = Intervals(compute.start[:0], compute.end[:0])
    covered = 0.0
    for heading, intervals in headings.items():
        seen = union(np.concatenate([seen.start, intervals.start]), np.concatenate([seen.end, intervals.end]))
        total = line.mean(line.by_rank(seen))
        account[heading] = total - covered
        covered = total
    account["idle"] = line.span - 1 - covered
    return account
