"""Critical paths that can be walked by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from simulator.observe.critical import CriticalPath, critical_path
from tests.observe.hand import comm, task, timeline

if TYPE_CHECKING:
    from simulator.observe.columns import Columns


def _path(columns: Columns) -> CriticalPath:
    """The path, checked to cover 0..makespan without gaps."""
    path = critical_path(columns)
    assert path.segments[0].from_ps == 0
    assert path.segments[-1].to_ps == path.makespan_ps == columns["end_ps"].max()
    assert all(one.to_ps == next_one.from_ps for one, next_one in pairwise(path.segments))
    assert sum(path.by_kind_and_bound().values()) == pytest.approx(1)
    return path


def _steps(path: CriticalPath) -> list[tuple[int, str, int, int, str, str]]:
    return [(one.rank, one.name, one.from_ps, one.to_ps, one.what, one.bound_by) for one in path.segments]


def test_the_longer_of_two_branches() -> None:
    path = _path(timeline([
        task("attention", 0, 10, kind="attention", bound_by="L2"),
        comm("dispatch", 10, 30, after=(0,)),
        task("shared", 10, 20, after=(0,)),
        task("experts", 30, 50, after=(1, 2), bound_by="HBM"),
    ]).columns())
    assert _steps(path) == [(0, "attention", 0, 10, "work", "L2"), (0, "dispatch", 10, 30, "work", "link"),
                            (0, "experts", 30, 50, "work", "HBM")]
    assert path.shares(lambda segment: segment.kind) == {"all_to_all": 0.4, "gemm": 0.4, "attention": 0.2}
    assert path.shares(lambda segment: segment.bound_by) == {"link": 0.4, "HBM": 0.4, "L2": 0.2}
    assert path.by_kind_and_bound(0.2) == {("all_to_all", "link"): 0.4, ("gemm", "HBM"): 0.4}


def test_a_late_peer_is_followed_to_its_rank() -> None:
    early = [task("attention", 0, 10), comm("dispatch", 25, 40, ready=10, after=(0,), late=(1, 1))]
    late = [task("attention", 0, 25), comm("dispatch", 25, 35, after=(0,))]
    other = [comm("dispatch", 25, 30, ready=24)]
    path = _path(timeline(early, late, other).columns())
    assert _steps(path) == [(1, "attention", 0, 25, "work", "compute"), (0, "dispatch", 25, 40, "work", "link")]


def test_what_was_put_late_is_followed_to_its_rank_and_what_is_under_way_is_a_wait() -> None:
    collects = [task("attention", 0, 10), comm("collect", 33, 40, ready=10, after=(0,), late=(1, 1))]
    puts = [task("attention", 0, 25), comm("put", 25, 30, after=(0,))]
    path = _path(timeline(collects, puts).columns())
    assert _steps(path) == [(1, "attention", 0, 25, "work", "compute"), (1, "put", 25, 30, "work", "link"),
                            (0, "collect", 30, 33, "wait", "arrivals"), (0, "collect", 33, 40, "work", "link")]


def test_a_task_that_waited_for_cores_follows_who_freed_them() -> None:
    path = _path(timeline([
        task("big", 0, 20),
        task("small", 20, 30, ready=5, stream="aside"),
    ]).columns())
    assert _steps(path) == [(0, "big", 0, 20, "work", "compute"), (0, "small", 20, 30, "work", "compute")]


def test_waits_that_nobody_explains_are_named() -> None:
    path = _path(timeline([task("a", 0, 10), task("b", 20, 30, ready=10, after=(0,)),
                           comm("x", 35, 40, ready=30, after=(1,)), task("c", 50, 60, after=(2,))]).columns())
    assert [step[2:] for step in _steps(path)] == [
        (0, 10, "work", "compute"), (10, 20, "wait", "cores"), (20, 30, "work", "compute"), (30, 35, "wait", "peers"),
        (35, 40, "work", "link"), (40, 50, "wait", "unknown"), (50, 60, "work", "compute")]
    assert path.shares(lambda segment: segment.what)["wait"] == 25 / 60


def test_the_host_is_followed_back_to_what_it_was_blocked_on() -> None:
    path = _path(timeline([
        task("a", 0, 10),
        comm("counts", 10, 18, after=(0,), bound_by="latency"),
        task("b", 20, 25, issued=20, after=(0,), host_after=1),
        task("c", 27, 30, issued=27, after=(2,)),
    ]).columns())
    assert _steps(path) == [(0, "a", 0, 10, "work", "compute"), (0, "counts", 10, 18, "latency", "latency"),
                            (0, "c", 18, 27, "host", "host"), (0, "c", 27, 30, "work", "compute")]
    assert path.shares(lambda segment: segment.what)["host"] == 9 / 30


def test_a_host_that_was_never_blocked_goes_back_to_the_beginning() -> None:
    path = _path(timeline([task("a", 3, 5, issued=3), task("b", 8, 9, issued=8, after=(0,))]).columns())
    assert _steps(path) == [(0, "b", 0, 8, "host", "host"), (0, "b", 8, 9, "work", "compute")]


def test_tasks_without_length_end_the_walk_too() -> None:
    path = _path(timeline([
        task("zero", 10, 10, ready=4), task("one", 10, 10, ready=4, stream="aside"),
        task("b", 10, 20, after=(0, 1)),
    ]).columns())
    assert path.segments[-1].name == "b"


def test_no_rows_no_path() -> None:
    assert critical_path(timeline().columns()).segments == []
