"""Two simulated timelines, task by task: what moved, what is longer, and what only one of them has.

A task of one is that of the other if rank, name, layer, micro-batch and number (the how-manieth of these on its rank)
agree, and the name is run in as many micro-batches: half a batch is no counterpart of a whole one. A rank's tasks are
those of the rank that was recorded for it; where one run has fewer ranks, the last one stands for those that it lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator import np
from simulator.np import Array
from simulator.observe.columns import Columns, codes, rank_weights
from simulator.observe.critical import CriticalPath, kind_and_bound


@dataclass(frozen=True)
class Tasks:
    """Tasks of a name: how many an average rank has in A and in B, and how long they work and wait together (ps)."""

    name: str
    kind: str
    tasks: tuple[float, float]
    work_ps: tuple[float, float]
    waiting_ps: tuple[float, float]

    @property
    def difference_ps(self) -> float:
        """How much longer they work and wait in B, on an average rank."""
        return self.work_ps[1] - self.work_ps[0] + self.waiting_ps[1] - self.waiting_ps[0]


@dataclass(frozen=True)
class Alignment:
    """Two timelines beside each other. aligned: tasks that both have; of these same: ready, starting and ending at the
    same times; shifted: waiting and working as long, at other times. changes: all aligned tasks of the names of which
    one waits or works longer or shorter, the greatest difference first. unpaired: tasks that one side has alone, as
    where it has more micro-batches, by name, in the same order."""

    aligned: int
    same: int
    shifted: int
    changes: Sequence[Tasks]
    unpaired: Sequence[Tasks]

    @property
    def changed(self) -> int:
        """Tasks that wait or work longer or shorter."""
        return self.aligned - self.same - self.shifted

    @property
    def moved(self) -> bool:
        """Whether anything is not at the same times in both."""
        return self.same < self.aligned or bool(self.unpaired)


class Step(NamedTuple):
    """What one kind, as far as one thing bounds it, has of the critical path of A and of B (ps)."""

    kind: str
    bound_by: str
    a_ps: int
    b_ps: int

    @property
    def difference_ps(self) -> int:
        """What it adds to the makespan from A to B."""
        return self.b_ps - self.a_ps


def waterfall(a: CriticalPath, b: CriticalPath) -> list[Step]:
    """Which part of the difference of two makespans comes from what, the greatest first: they add up to it exactly."""
    times: dict[tuple[str, str], list[int]] = {}
    for side, path in enumerate((a, b)):
        for segment in path.segments:
            times.setdefault(kind_and_bound(segment), [0, 0])[side] += segment.to_ps - segment.from_ps
    return sorted((Step(*key, *both) for key, both in times.items()), key=lambda one: -abs(one.difference_ps))


def align(a: Columns, b: Columns, leaders: tuple[Sequence[int], Sequence[int]]) -> Alignment:
    """Every task of both; a second or so for hundreds of thousands.

    leaders: for every rank of A, and of B, the one that was recorded for it.
    """
    number, names = codes(np.concatenate([a["name"], b["name"]]))
    last = np.zeros(len(names), dtype=np.int64)
    last[number] = np.arange(len(number))
    kinds = np.concatenate([a["kind"], b["kind"]])[last].tolist()
    codes_of = number[:len(a["name"])], number[len(a["name"]):]
    found = _match(a, b, number, leaders)
    same, shifted = _unmoved(a, b, *found.paired)

    def by_name(rows: tuple[Array, Array], weights: tuple[Array, Array], shown: Array) -> list[Tasks]:
        sums = [_sums(columns, mine, weight, its[mine], len(names)) / max(found.ranks, 1)
                for columns, mine, weight, its in zip((a, b), rows, weights, codes_of, strict=True)]
        made = [Tasks(names[code], kinds[code], *zip(*(one[:, code].tolist() for one in sums), strict=True))
                for code in np.unique(shown).tolist()]  # fmt: skip
        return sorted(made, key=lambda one: -abs(one.difference_ps))

    changes = by_name(found.paired, (found.weight, found.weight), codes_of[0][found.paired[0][~(same | shifted)]])
    left = np.concatenate([its[rows] for its, rows in zip(codes_of, found.alone, strict=True)])
    unpaired = by_name(found.alone, found.alone_weight, left)
    return Alignment(len(same), int(same.sum()), int(shifted.sum()), changes, unpaired)


def _sums(columns: Columns, rows: Array, weight: Array, number: Array, names: int) -> Array:
    """Of every name how many of these rows it has, how long they work and how long they wait: three lines."""
    lengths = [(columns[until] - columns[since])[rows] for since, until in (("start_ps", "end_ps"),
                                                                            ("ready_ps", "start_ps"))]
    return np.array([np.bincount(number, weight * one, minlength=names) for one in (np.ones(len(rows)), *lengths)])


class _Matched(NamedTuple):
    """Rows of A and B that are the same task, each with how many ranks it stands for; rows of each that are no task of
    the other's, the same; how many ranks there are."""

    paired: tuple[Array, Array]
    weight: Array
    alone: tuple[Array, Array]
    alone_weight: tuple[Array, Array]
    ranks: int


def _match(a: Columns, b: Columns, number: Array, leaders: tuple[Sequence[int], Sequence[int]]) -> _Matched:
    keys = _task_keys(a, b, number)
    here, there, mine_alone, its_alone, times = [], [], [], [], []
    for mine, its, ranks in _pairs(a, b, leaders):
        _, left, right = np.intersect1d(keys[0][mine], keys[1][its], assume_unique=True, return_indices=True)
        here.append(mine[left])
        there.append(its[right])
        mine_alone.append(np.delete(mine, left))
        its_alone.append(np.delete(its, right))
        times.append(ranks)
    weight, *others = (np.repeat(np.array(times, dtype=np.int64), [len(rows) for rows in some])
                       for some in (here, mine_alone, its_alone))
    return _Matched((_joined(here), _joined(there)), weight, (_joined(mine_alone), _joined(its_alone)),
                    (others[0], others[1]), sum(times))


def _joined(parts: list[Array]) -> Array:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _task_keys(a: Columns, b: Columns, number: Array) -> tuple[Array, Array]:
    """One integer per row, the same for the same task: of name, layer, micro-batch and how-manieth of these."""
    layer, batch = (np.concatenate([a[name], b[name]]).astype(np.int64) + 1 for name in ("layer", "micro_batch"))
    split, batches = len(a["name"]), int(batch.max(initial=0)) + 1
    named = number.astype(np.int64) * batches + batch
    many = np.concatenate([_batches(side, batches) for side in (named[:split], named[split:])])
    what = (named * (batches + 1) + many) * (layer.max(initial=0) + 1) + layer
    most = int(what.max(initial=0)) + 1
    count = [_how_manieth(side, rows, most) for side, rows in ((a, what[:split]), (b, what[split:]))]
    times = max(int(one.max(initial=0)) for one in count) + 1
    return what[:split] * times + count[0], what[split:] * times + count[1]


def _batches(named: Array, batches: int) -> Array:
    """Of every row in how many micro-batches its name is run; named: name and micro-batch as one number."""
    count = np.bincount(np.unique(named) // batches)
    return count[named // batches] if len(named) else named


def _how_manieth(columns: Columns, what: Array, most: int) -> Array:
    """Of every row how many rows of its rank before it are the same."""
    _, _, position = rank_weights(columns)
    key = position.astype(np.int64) * most + what
    order = np.argsort(key, kind="stable")
    fresh = np.concatenate([[True], key[order][1:] != key[order][:-1]])[:len(key)]
    begins = np.flatnonzero(fresh)
    count = np.empty(len(key), dtype=np.int64)
    count[order] = np.arange(len(key)) - begins[np.cumsum(fresh) - 1]
    return count


def _pairs(a: Columns, b: Columns, leaders: tuple[Sequence[int], Sequence[int]]) -> Iterator[tuple[Array, Array, int]]:
    """Rows of a rank of A, those of the rank of B that does the same job, and how many ranks both stand for."""
    here, there = _rows_by_rank(a), _rows_by_rank(b)
    last = [len(one) - 1 for one in leaders]
    counts = Counter(tuple(one[min(rank, end)] if one else -1 for one, end in zip(leaders, last, strict=True))
                     for rank in range(max(last) + 1))
    nothing = np.zeros(0, dtype=np.int64)
    for (mine, its), times in sorted(counts.items()):
        yield here.get(mine, nothing), there.get(its, nothing), times


def _rows_by_rank(columns: Columns) -> dict[int, Array]:
    ranks, _, position = rank_weights(columns)
    edges = np.searchsorted(position, np.arange(len(ranks) + 1)).tolist()
    return {rank: np.arange(begin, end) for rank, begin, end in zip(ranks.tolist(), edges, edges[1:], strict=False)}


def _unmoved(a: Columns, b: Columns, here: Array, there: Array) -> tuple[Array, Array]:
    """Masks of pairs of rows: those at the same times, and those that are only shifted."""
    late = [b[name][there] - a[name][here] for name in ("ready_ps", "start_ps", "end_ps")]
    same = (late[0] == 0) & (late[1] == 0) & (late[2] == 0)
    return same, ~same & (late[0] == late[1]) & (late[1] == late[2])
