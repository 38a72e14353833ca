"""What holds on every timeline, whatever ran: call `check_timeline` at the end of any test that makes one.

All times are integer picoseconds. Durations are rounded once, where they enter the clock, hence ROUNDING_PS per task.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from simulator.observe.columns import find_rows, last_wait_end, waits

if TYPE_CHECKING:
    from simulator.observe.columns import Array, Columns

ROUNDING_PS = 2
LIVE_ENGINES = ("host thread", "nic")  # nobody launches what they do: it is numbered as it ends


def check_timeline(columns: Columns) -> None:
    """Asserts every law below that needs nothing but the table."""
    check_order_of_times(columns)
    check_streams_are_serial(columns)
    check_waits(columns)
    check_solo_times(columns)
    check_longest_path(columns)


def check_order_of_times(columns: Columns) -> None:
    """0 <= issued <= ready <= start <= end, and a rank's host issues in program order."""
    steps = ["issued_ps", "ready_ps", "start_ps", "end_ps"]
    _none(columns, columns["issued_ps"] < 0, "is issued before time 0")
    for earlier, later in pairwise(steps):
        _none(columns, columns[earlier] > columns[later], f"has {earlier} after {later}")
    launched = np.flatnonzero(~np.isin(columns["engine"], LIVE_ENGINES))
    same_rank = columns["rank"][launched][1:] == columns["rank"][launched][:-1]
    back = same_rank & (np.diff(columns["issued_ps"][launched]) < 0)
    _none(columns, _at(columns, launched[1:][back]), "is issued before the task that precedes it in the program")


def check_streams_are_serial(columns: Columns) -> None:
    """On one stream of one rank tasks run one after the other, in issue order."""
    stream = columns["stream"].astype(str)
    order = np.lexsort((columns["task"], stream, columns["rank"]))
    rank, stream = columns["rank"][order], stream[order]
    same = (rank[1:] == rank[:-1]) & (stream[1:] == stream[:-1])
    early = same & (columns["ready_ps"][order][1:] < columns["end_ps"][order][:-1])
    wrong = np.zeros(len(order), dtype=bool)
    wrong[order[1:][early]] = True
    _none(columns, wrong, "is ready before the previous task of its stream has ended")


def check_waits(columns: Columns) -> None:
    """Nothing is ready before all that it waits for has ended; the host issues nothing while it is blocked."""
    waiting, awaited = waits(columns)
    _none(columns, _at(columns, waiting[columns["task"][awaited] >= columns["task"][waiting]]),
          "waits for itself or for a task issued later")
    _none(columns, columns["ready_ps"] < last_wait_end(columns), "is ready before a task that it waits for has ended")
    blocked = np.flatnonzero(columns["host_after"] >= 0)
    until = find_rows(columns, columns["rank"][blocked], columns["host_after"][blocked])
    early = (until >= 0) & (columns["issued_ps"][blocked] < columns["end_ps"][until])
    _none(columns, _at(columns, blocked[early]), "is issued while the host is blocked")


def check_solo_times(columns: Columns) -> None:
    """Company never makes a task faster than it is alone on the cores that it got."""
    _none(columns, columns["solo_ps"] < 0, "has a negative solo time")
    work = columns["end_ps"] - columns["start_ps"]
    _none(columns, work + ROUNDING_PS < columns["solo_ps"], "is faster than alone")


def check_longest_path(columns: Columns) -> None:
    """The makespan is at least the longest chain of waits, each task lasting as long as it does alone."""
    if not len(columns["rank"]):
        return
    path = longest_path_ps(columns)
    makespan = int(columns["end_ps"].max())
    assert makespan >= path, f"makespan {makespan} ps is shorter than the longest path of solo times, {path} ps"


def check_serial(columns: Columns) -> None:
    """Where one stream of each rank does everything and nothing is shared, times add up: makespan = sum of solo times.

    Time before the host has issued a task and time that a task waits for cores or peers is counted on top.
    """
    for rank in np.unique(columns["rank"]):
        rows = columns["rank"] == rank
        streams = set(columns["stream"][rows].tolist())
        assert len(streams) == 1, f"rank {rank} has streams {sorted(streams)}; wanted is one"
        end, start, ready = columns["end_ps"][rows], columns["start_ps"][rows], columns["ready_ps"][rows]
        idle = ready - np.concatenate([[0], end[:-1]]) + (start - ready)
        total = int(columns["solo_ps"][rows].sum() + idle.sum())
        assert abs(int(end[-1]) - total) <= ROUNDING_PS * len(end), (
            f"rank {rank} ends at {end[-1]} ps, its solo times and gaps add up to {total} ps")


def longest_path_ps(columns: Columns) -> int:
    """Longest chain of waits, in solo times less the rounding of each task (ps)."""
    rank, after = columns["rank"].tolist(), columns["after"].tolist()
    row_of = {pair: row for row, pair in enumerate(zip(rank, columns["task"].tolist(), strict=True))}
    done: list[int] = []
    for row, solo in enumerate(columns["solo_ps"].tolist()):
        begun = max((done[row_of[rank[row], task]] for task in after[row] if (rank[row], task) in row_of), default=0)
        done.append(begun + max(0, solo - ROUNDING_PS))
    return max(done, default=0)


def _at(columns: Columns, rows: Array) -> Array:
    wrong = np.zeros(len(columns["rank"]), dtype=bool)
    wrong[rows] = True
    return wrong


def _none(columns: Columns, wrong: Array, complaint: str) -> None:
    """Asserts that no row is wrong; names the first one that is."""
    rows = np.flatnonzero(wrong)
    if not len(rows):
        return
    row = rows[0]
    shown = ("issued_ps", "ready_ps", "start_ps", "end_ps", "solo_ps")
    times = ", ".join(f"{name} {columns[name][row]}" for name in shown)
    raise AssertionError(f"rank {columns['rank'][row]}, stream {columns['stream'][row]}, task {columns['task'][row]} "
                         f"({columns['name'][row]}) {complaint}; {times}; {len(rows)} such rows")
