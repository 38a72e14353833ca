"""Rows that a program did not foresee, and rows that followed from one of another rank."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq

from simulator.observe.columns import causes
from simulator.observe.critical import critical_path
from simulator.observe.shown import shown
from simulator.observe.timeline import StaticTasks, Timeline
from simulator.observe.trace import write_trace

US = 10**6


def _static() -> StaticTasks:
    """One kernel and one wait for a flag."""
    return StaticTasks(
        name=["pack", "wait"], stream=["compute"] * 2, kind=["vector", "wait_flag"], engine=["sm", "flag"],
        layer=[0, 0], micro_batch=[-1, -1], flops=[0.0, 0.0], hbm_bytes=[0.0, 0.0], wire_bytes=[0.0, 0.0],
        after=[(), (0,)], l2_bytes=[0.0] * 2, unit_cores=[()] * 2, host_after=[-1, -1], communication=[False, True],
    )  # fmt: skip


def _timeline() -> Timeline:
    """Rank 0 packs and posts; the write goes to rank 1, whose GPU waits for it."""
    timeline = Timeline("run")
    for rank in (0, 1):
        timeline.add_rank(rank, _static())
        timeline.record(rank, 0, 0, 0, 0, 5 * US, 5 * US, "compute", 1)
    post = timeline.add_task(0, "tokens", "engine", "post", "host thread", 0, -1, 0.0)
    timeline.record(0, post, 6 * US, 6 * US, 6 * US, 7 * US, US, "nic.post", 1)
    timeline.follow(0, post, 0, 0)
    arrival = timeline.add_task(1, "tokens", "nic 0 in", "receive", "nic", 0, -1, 100.0)
    timeline.record(1, arrival, 17 * US, 17 * US, 17 * US, 27 * US, 10 * US, "nic.goodput", 1)
    timeline.follow(1, arrival, 0, post)
    timeline.record(1, 1, 0, 5 * US, 28 * US, 28 * US, 0, "proxy.flag_to_gpu", 1)
    timeline.follow(1, 1, 1, arrival)
    timeline.record(0, 1, 0, 5 * US, 5 * US, 5 * US, 0, "proxy.flag_to_gpu", 1)
    return timeline


def test_tasks_that_nobody_foresaw_have_numbers_behind_the_program() -> None:
    columns = _timeline().columns()
    assert columns["task"].tolist() == [0, 1, 2, 0, 1, 2]
    assert columns["name"].tolist() == ["pack", "wait", "tokens"] * 2
    assert columns["communication"].tolist() == [False, True, True] * 2
    assert columns["wire_bytes"][5] == 100.0


def test_causes_are_rows_of_any_rank() -> None:
    columns = _timeline().columns()
    assert [(int(row), int(cause)) for row, cause in zip(*causes(columns), strict=True)] == [(2, 0), (4, 5), (5, 2)]
    assert columns["cause_rank"].tolist() == [-1, -1, 0, -1, 1, 0]
    assert shown(columns) == {0: "slowest, median, first", 1: "exchanges flags or writes with rank 0"}


def test_the_critical_path_follows_a_flag_back_to_the_other_rank_without_a_gap() -> None:
    path = critical_path(_timeline().columns())
    told = [(one.rank, one.name, one.from_ps // US, one.to_ps // US, one.bound_by) for one in path.segments]
    assert told == [
        (0, "pack", 0, 5, "compute"),
        (0, "tokens", 5, 6, "nic.post"),
        (0, "tokens", 6, 7, "nic.post"),
        (1, "tokens", 7, 17, "nic.goodput"),
        (1, "tokens", 17, 27, "nic.goodput"),
        (1, "wait", 27, 28, "proxy.flag_to_gpu"),
    ]


def test_causes_survive_a_file(tmp_path: Path) -> None:
    timeline = _timeline()
    timeline.write_parquet(tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet")["cause_task"].to_pylist() == timeline.columns()["cause_task"].tolist()


def test_a_trace_has_arrows_from_rank_to_rank_and_into_waits(tmp_path: Path) -> None:
    write_trace(_timeline().columns(), tmp_path / "t.json.gz", [0, 1])
    with gzip.open(tmp_path / "t.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    arrows = [(starts[one["id"]]["pid"], one["pid"], one["ts"]) for one in events if one["ph"] == "f"]
    first, second = sorted({event["pid"] for event in events})
    assert (first, second, 17.0) in arrows  # the write, to where it is received
    assert (second, second, 27.999) in arrows  # the flag, into the wait that it ends
