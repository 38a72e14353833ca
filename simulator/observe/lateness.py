"""How late the tasks of a run are against the same run without a fault: who felt it, when, and until when.

    late    a task's end, less its end in the other run, in ps; positive or negative

Worked example: rank 2 computes 3 us longer once, then all four ranks gather. Its own task ends 3 us late (felt); the
gather of the others, which would have ended at 100 us, ends 3 us late (noticed at 100 us); all that follows is as late,
so that the run is as before when the gather has ended, at 103 us.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from simulator import np
from simulator.np import Array
from simulator.observe.columns import Columns

SETTLED = 0.01
"""Of the fault's cost: a stream whose lateness differs by less from what it is at its end is as before."""


@dataclass(frozen=True)
class Felt:
    """The first task that ends at another time: of which rank, its name, and by when it would have ended, in ps."""

    at_ps: int
    rank: int
    task: str


@dataclass(frozen=True)
class Lateness:
    """What a fault did to the tasks of a run. felt: by any rank; noticed: by a rank that it did not strike (None: no
    task moved). as_before_ps: from then on every stream is as late as at its end, within 1% of what the fault cost.
    moved: tasks that ended at another time, of so many."""

    felt: Felt | None
    noticed: Felt | None
    as_before_ps: int
    moved: int
    tasks: int


def lateness(before: Columns, after: Columns, leaders: Sequence[int], struck: Collection[int],
             cost_ps: int) -> Lateness:
    """Compare two runs of the same programs. leaders: by rank, whose rows stand for it in `before`; struck: ranks that
    the fault struck itself; cost_ps: by which the run became longer. Rows of hosts and their cards, which are written
    as they happen, are left out."""
    felt = noticed = None
    as_before_ps = moved = tasks = 0
    for rank, rows, late, ends in _by_rank(before, after, leaders):
        tasks += len(late)
        changed = np.flatnonzero(late)
        if not len(changed):
            continue
        moved += len(changed)
        first = int(changed[np.argmin(ends[changed])])
        one = Felt(int(ends[first]), rank, str(after["name"][rows[first]]))
        felt = _first(felt, one)
        if rank not in struck:
            noticed = _first(noticed, one)
        as_before_ps = max(as_before_ps, _settled_ps(after, rows, late, SETTLED * abs(cost_ps)))
    return Lateness(felt, noticed, as_before_ps, moved, tasks)


def _first(known: Felt | None, one: Felt) -> Felt:
    return one if known is None or one.at_ps < known.at_ps else known


def _by_rank(before: Columns, after: Columns, leaders: Sequence[int]) -> Iterator[tuple[int, Array, Array, Array]]:
    """(rank, its rows in `after`, how late they end, when the first of both ends) for tasks that both runs have."""
    programs = [np.flatnonzero(~np.isin(columns["engine"], ("nic", "host thread"))) for columns in (before, after)]
    ranks = [columns["rank"][rows] for columns, rows in zip((before, after), programs, strict=True)]
    for rank in np.unique(ranks[1]).tolist():
        rows = programs[1][slice(*np.searchsorted(ranks[1], (rank, rank + 1)))]
        other = programs[0][slice(*np.searchsorted(ranks[0], (leaders[rank], leaders[rank] + 1)))]
        _, here, there = np.intersect1d(after["task"][rows], before["task"][other], True, True)
        rows, other = rows[here], other[there]
        late = after["end_ps"][rows] - before["end_ps"][other]
        yield rank, rows, late, np.minimum(after["end_ps"][rows], before["end_ps"][other])


def _settled_ps(after: Columns, rows: Array, late: Array, tolerance_ps: float) -> int:
    """When the last task ended that is not as late as the last one of its stream."""
    streams, ends, settled_ps = after["stream"][rows], after["end_ps"][rows], 0
    for stream in np.unique(streams.astype(str)):
        own = np.flatnonzero(streams == stream)
        final = late[own[np.argmax(ends[own])]]
        differing = own[np.abs(late[own] - final) > tolerance_ps]
        at_once = own[late[own] != 0]  # as late as at the end from the first one on: as before once that has ended
        until = ends[differing].max() if len(differing) else 0
        behind = at_once[ends[at_once] > until]
        settled_ps = max(settled_ps, int(until), int(ends[behind].min()) if len(behind) and final else 0)
    return settled_ps
