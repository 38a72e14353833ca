"""Two timelines whose tasks have no names in common, as a simulated and a measured one: what can stand side by side.

Streams, kinds, overlap and the order of kinds on each stream; tasks themselves cannot be told to be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

from simulator import np
from simulator.observe.columns import Columns, codes, rank_weights, select

MOST_RUNS = 1_000  # of kinds on a stream that are laid beside each other: a long run of a model repeats its layers
SMALLEST_SHARE = 1e-3  # of the work of a rank, on a stream whose order is looked at


class StreamUse(NamedTuple):
    """A stream on an average rank: its tasks, how long they work, added up (ps), and that by kind, longest first."""

    stream: str
    tasks: float
    work_ps: float
    kinds: dict[str, float]


class KindUse(NamedTuple):
    """A kind on an average rank: its tasks, and how long they work, added up (ps)."""

    kind: str
    communication: bool
    tasks: float
    work_ps: float


class Departure(NamedTuple):
    """A place where the kinds on a stream of B are not those of A: what stands there instead, and how often."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    times: int


@dataclass(frozen=True)
class Order:
    """The order of kinds on two streams, as many kernels of a kind behind each other counted as one. runs: how many
    such there are on each, at most MOST_RUNS; alike: the share of both that is in the same order, 0 to 1."""

    streams: tuple[str, str]
    runs: tuple[int, int]
    alike: float
    departures: Sequence[Departure]


def stream_use(columns: Columns) -> list[StreamUse]:
    """Every stream, the one that works longest first."""
    number, streams = codes(columns["stream"])
    kind, kinds = codes(columns["kind"])
    weight = columns["multiplicity"]
    work = weight * (columns["end_ps"] - columns["start_ps"])
    ranks = max(int(rank_weights(columns)[1].sum()), 1)
    count = np.bincount(number, weight, minlength=len(streams)) / ranks
    times = np.zeros((len(streams), len(kinds)))
    np.add.at(times, (number, kind), work / ranks)
    found = [StreamUse(stream, float(count[code]), float(times[code].sum()), _longest(times[code], kinds))
             for code, stream in enumerate(streams)]
    return sorted(found, key=lambda one: -one.work_ps)


def _longest(times: Sequence[float], kinds: Sequence[str]) -> dict[str, float]:
    found = {kind: float(time) for kind, time in zip(kinds, times, strict=True) if time}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def kind_use(columns: Columns) -> list[KindUse]:
    """Every kind, the one that works longest first."""
    number, kinds = codes(columns["kind"])
    weight = columns["multiplicity"]
    ranks = max(int(rank_weights(columns)[1].sum()), 1)
    count = np.bincount(number, weight, minlength=len(kinds)) / ranks
    work = np.bincount(number, weight * (columns["end_ps"] - columns["start_ps"]), minlength=len(kinds)) / ranks
    talking = set(number[columns["communication"]].tolist())
    found = [KindUse(kind, code in talking, float(count[code]), float(work[code])) for code, kind in enumerate(kinds)]
    return sorted(found, key=lambda one: -one.work_ps)


def orders(a: Columns, b: Columns) -> list[Order]:
    """Streams of the first rank of each, those with the most alike work beside each other, and how their order differs.

    A stream that has no counterpart is left out.
    """
    sides = [select(columns, columns["rank"] == columns["rank"][:1].sum()) for columns in (a, b)]
    return [_order(sides, pair) for pair in _matching(*(stream_use(side) for side in sides))]


def _matching(a: Sequence[StreamUse], b: Sequence[StreamUse]) -> Iterator[tuple[str, str]]:
    """Pairs of streams whose work is most alike: the share of a rank's work that both do, kind by kind."""
    whole = [max(sum(one.work_ps for one in side), 1.0) for side in (a, b)]
    left = [[one for one in side if one.work_ps >= SMALLEST_SHARE * total]
            for side, total in zip((a, b), whole, strict=True)]  # fmt: skip
    while all(left):
        common, one, other = max(((_common(one, other, whole), one, other) for one in left[0] for other in left[1]),
                                 key=lambda found: found[0])
        if not common:
            return
        yield one.stream, other.stream
        left[0].remove(one)
        left[1].remove(other)


def _common(one: StreamUse, other: StreamUse, whole: Sequence[float]) -> float:
    return sum(min(time / whole[0], other.kinds.get(kind, 0.0) / whole[1]) for kind, time in one.kinds.items())


def _order(sides: Sequence[Columns], streams: tuple[str, str]) -> Order:
    runs = [_runs(columns, stream) for columns, stream in zip(sides, streams, strict=True)]
    same = _common_order(*runs)
    edges = [(-1, -1), *same, (len(runs[0]), len(runs[1]))]
    found = Counter((tuple(runs[0][left + 1:to]), tuple(runs[1][right + 1:until]))
                    for (left, right), (to, until) in pairwise(edges) if (to - left, until - right) != (1, 1))
    return Order(streams, (len(runs[0]), len(runs[1])), 2 * len(same) / max(len(runs[0]) + len(runs[1]), 1),
                 [Departure(*both, times) for both, times in found.most_common()])


def _common_order(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """The longest common subsequence of two sequences, as places in a and in b."""
    number, _ = codes(np.array([*a, *b], dtype=object))
    here, there = number[:len(a)], number[len(a):]
    most = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int32)  # of the first i of a and the first j of b
    for row, kind in enumerate(here):
        before = most[row]
        most[row + 1, 1:] = np.maximum.accumulate(np.maximum(before[1:], before[:-1] + (there == kind)))
    places, row, column = [], len(a), len(b)
    while row and column:
        if most[row, column] == most[row - 1, column]:
            row -= 1
        elif most[row, column] == most[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            places.append((row, column))
    return places[::-1]


def _runs(columns: Columns, stream: str) -> list[str]:
    """The first kinds on a stream by start, kernels of one kind behind each other as one."""
    mine = select(columns, columns["stream"] == stream)
    kinds = mine["kind"][np.argsort(mine["start_ps"], kind="stable")].tolist()
    return [kind for kind, _ in groupby(kinds)][:MOST_RUNS]
