"""Why a run takes as long as it does: what bounds its critical path, where communication hides, who waits for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator import np
from simulator.np import Array
from simulator.observe.columns import Columns, block_of, rank_weights
from simulator.observe.exposure import Exposure, exposures
from simulator.observe.lanes import letter
from simulator.observe.recorded import Recorded
from simulator.observe.waiting import WHY, Waiting, previous_rows, waiting

MOST_LISTED = 40
PEERS = WHY.index("peers")


@dataclass(frozen=True)
class Focus:
    """The part of a run that is asked about; None: all. rank: one that was simulated. name: of tasks, or their block or
    kind."""

    rank: int | None = None
    layer: int | None = None
    micro_batch: int | None = None
    name: str | None = None

    def rows(self, columns: Columns) -> Array:
        """A mask of the rows that are meant."""
        mask = np.ones(len(columns["rank"]), dtype=bool)
        for column, wanted in (("rank", self.rank), ("layer", self.layer), ("micro_batch", self.micro_batch)):
            if wanted is not None:
                mask &= columns[column] == wanted
        if self.name is not None:
            names = columns["name"].tolist()
            known = {name: self.name in (name, block_of(name)) for name in set(names)}
            mask &= np.array([known[name] for name in names], dtype=bool) | (columns["kind"] == self.name)
        return mask


@dataclass(frozen=True)
class WaitedFor:
    """Stretches of waiting that are alike, on an average rank of those asked about (ps). who: block and micro-batch
    that waited. why: as in `waiting`. ended_by: block and micro-batch of what ended it, or its name within one block
    ("": none did, a host was launching). times: how many there are. late: for peers, by rank that came last how often,
    most often first; behind: block that this one was behind.
    """

    who: str
    why: str
    ended_by: str
    times: float
    total_ps: float
    late: Mapping[int, float]
    behind: str


@dataclass(frozen=True)
class OneWait:
    """One stretch of waiting. who, ended_by: (rank, task name, layer, micro-batch, stream); ended_by None: a host was
    launching."""

    who: tuple[int, str, int, int, str]
    why: str
    from_ps: int
    to_ps: int
    ended_by: tuple[int, str, int, int, str] | None


@dataclass(frozen=True)
class Explanation:
    """What a run says of itself. path: time of the critical path by (kind, bound by), in ps, the longest first; they
    add up to the makespan. path_ranks: that it runs over. waits: the longest first; single: each of them in order of
    time, where few are asked about. parameters: those of the run that matter most."""

    run: Recorded
    focus: Focus
    path: Mapping[tuple[str, str], int]
    path_ranks: Sequence[int]
    communication: Sequence[Exposure]
    waits: Sequence[WaitedFor]
    single: Sequence[OneWait]
    parameters: Sequence[Mapping[str, Any]]

    @property
    def makespan_ps(self) -> int:
        """Of the run."""
        return self.run.critical.makespan_ps


def explain(run: Recorded, focus: Focus, parameters: int = 5) -> Explanation:
    """Explains a run, or the part of it in focus. ValueError where no task is in focus."""
    columns = run.columns
    rows = focus.rows(columns)
    if not rows.any():
        raise ValueError("no task is there")
    found = waiting(columns)
    mine = found.some(rows[found.row])
    path: Counter[tuple[str, str]] = Counter()
    for one in run.critical.segments:
        path[one.what if one.what in ("host", "wait") else one.kind, one.bound_by] += one.to_ps - one.from_ps
    single = [_one(columns, mine, at) for at in range(len(mine))] if len(mine) <= MOST_LISTED else []
    return Explanation(run, focus, dict(path.most_common()), sorted({one.rank for one in run.critical.segments}),
                       exposures(columns, found, rows, focus.rank), _grouped(columns, mine, found, rows),
                       sorted(single, key=lambda one: one.from_ps), run.parameters[:parameters])  # fmt: skip


def of_batch(name: str, micro_batch: int) -> str:
    """A name with the letter of its micro-batch, if it has one: "combine (A)"."""
    return f"{name} ({letter(micro_batch)})" if micro_batch >= 0 else name


def _one(columns: Columns, waits: Waiting, at: int) -> OneWait:
    def told(row: int) -> tuple[int, str, int, int, str]:
        return (int(columns["rank"][row]), str(columns["name"][row]), int(columns["layer"][row]),
                int(columns["micro_batch"][row]), str(columns["stream"][row]))

    by = int(waits.ended_by[at])
    return OneWait(told(int(waits.row[at])), WHY[waits.why[at]], int(waits.from_ps[at]), int(waits.to_ps[at]),
                   told(by) if by >= 0 else None)


def _grouped(columns: Columns, waits: Waiting, every: Waiting, rows: Array) -> list[WaitedFor]:
    """Waits by who waited, why and what ended it. every: all waits of the table; rows: a mask of those in focus."""
    ranks, weights, position = rank_weights(columns)
    asked = np.zeros(len(ranks), dtype=bool)
    asked[position[rows]] = True
    total = float(weights[asked].sum())
    label = _labels(columns)
    names = columns["name"].tolist()
    groups: dict[tuple[str, int, str], list[int]] = {}
    for at, (row, why, by) in enumerate(zip(waits.row.tolist(), waits.why.tolist(), waits.ended_by.tolist(),
                                            strict=True)):
        ended_by = "" if by < 0 else names[by] if label[by] == label[row] and why != PEERS else label[by]
        groups.setdefault((label[row], why, ended_by), []).append(at)
    behind = _behind(columns, every)
    found = []
    for (who, why, by), places in groups.items():
        its, multiplicity = np.array(places), columns["multiplicity"][waits.row[places]]
        late: Counter[int] = Counter()
        blocks: Counter[str] = Counter()
        if why == PEERS:
            for row, count in zip(waits.ended_by[its].tolist(), multiplicity.tolist(), strict=True):
                late[int(columns["rank"][row])] += count / total
                blocks[label[behind[row]] if behind[row] >= 0 else ""] += count
        length = float(((waits.to_ps - waits.from_ps)[its] * multiplicity).sum()) / total
        found.append(WaitedFor(who, WHY[why], by, float(multiplicity.sum()) / total, length,
                               dict(late.most_common()), blocks.most_common(1)[0][0] if blocks else ""))
    return sorted(found, key=lambda one: -one.total_ps)


def _labels(columns: Columns) -> list[str]:
    """Block and micro-batch of every row, as text."""
    several = int(columns["micro_batch"].max(initial=-1)) > 0
    pairs = list(zip(columns["name"].tolist(), columns["micro_batch"].tolist(), strict=True))
    known = {pair: of_batch(block_of(pair[0]), pair[1] if several else -1) for pair in set(pairs)}
    return [known[pair] for pair in pairs]


def _behind(columns: Columns, waits: Waiting) -> Array:
    """For every row the one that it was behind: what ended its last wait before it was ready, else the one before it on
    its stream; -1 for none."""
    found = previous_rows(columns)
    earlier = (waits.ended_by >= 0) & (waits.to_ps <= columns["ready_ps"][waits.row])
    found[waits.row[earlier]] = waits.ended_by[earlier]
    return found
