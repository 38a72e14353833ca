"""The Chrome trace: complete, exact, readable by Perfetto and by PyTorch-profiler tools."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from simulator.observe.events import FIRST_PID, Sample
from simulator.observe.timeline import Timeline
from simulator.observe.trace import Flight, write_trace
from tests.law.trace_laws import check_trace
from tests.observe.hand import comm, task, timeline
from tests.observe.perfetto_ui import opened

US = 10**6
LAYER = [
    task("attention", 0, 10 * US, kind="attention", layer=3, micro_batch=1, flops=2e9, hbm_bytes=1e6, solo=9 * US,
         unit_cores=(2,), units=12),
    comm("dispatch", 14 * US, 30 * US, ready=10 * US, after=(0,), wire_bytes=7e5, layer=3, micro_batch=1, late=(1, 0)),
    task("shared", 10 * US, 20 * US, after=(0,), layer=3),
    task('experts "x"', 30 * US, 50 * US + 123_456, after=(1, 2), layer=3),
]


OTHER = [comm("dispatch", 14 * US, 30 * US, issued=14 * US)]


def awkward(tasks: int = 3_000) -> Timeline:
    """Two streams whose tasks touch at odd picoseconds, last from 0 ps to 100 us and wait for each other."""
    draw = random.Random(7)
    end = {"main": 10**15, "comm": 10**15}
    rows: list[dict[str, Any]] = []
    last: dict[str, int] = {}
    for number in range(tasks):
        stream = draw.choice(["main", "comm"])
        after = tuple(sorted({*last.values()} if draw.random() < 0.5 else {last[stream]} if stream in last else ()))
        ready = max([end[stream], *(rows[one]["end"] for one in after)])
        start = ready + draw.choice([0, 0, draw.randrange(3_000), draw.randrange(10**6)])
        stop = start + draw.choice([0, draw.randrange(3_000), draw.randrange(10**6), draw.randrange(10**8)])
        rows.append((comm if stream == "comm" else task)(
            f"t{number % 7}", start, stop, ready=ready, after=after, stream=stream))
        end[stream], last[stream] = stop, number
    return timeline(rows, rows, rows)


def _slices(events: list[dict[str, Any]], *categories: str) -> list[dict[str, Any]]:
    return [one for one in events if one["ph"] == "X" and one["cat"] in categories]


def test_every_task_is_a_slice_with_its_facts(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert write_trace(timeline(LAYER).columns(), path, [0]) == 4
    slices = _slices(check_trace(path), "kernel")
    assert [(one["name"], one["tid"], one["ts"], one["dur"]) for one in slices] == [
        ("attention (B)", 4, 0, 10), ("dispatch (B)", 5, 14, 16), ("shared", 4, 10, 10),
        ('experts "x"', 4, 30, Decimal("20.123"))]
    assert slices[0]["args"] == {
        "stream": 4, "correlation": 0, "device": 0, "rank": 0, "task": 0, "layer": 3, "micro_batch": 1,
        "multiplicity": 1, "name": "attention", "kind": "attention", "engine": "cube", "bound_by": "compute",
        "flops": 2e9, "hbm_bytes": 1e6, "cores": "24", "solo_us": 9}
    assert slices[-1]["args"]["solo_us"] == Decimal("20.123456")


def test_a_wait_says_why_and_what_ended_it(tmp_path: Path) -> None:
    write_trace(timeline(LAYER, OTHER).columns(), tmp_path / "trace.json", [0, 1])
    told = [(one["pid"], one["tid"], one["name"], one["ts"], one["dur"], one["args"].get("ended_by"),
             one["args"].get("ended_by_rank")) for one in _slices(check_trace(tmp_path / "trace.json"), "wait")]
    assert told == [(FIRST_PID, 5, "wait: event", 0, 10, "attention", 0),
                    (FIRST_PID, 5, "wait: peers", 10, 4, "dispatch", 1),
                    (FIRST_PID, 4, "wait: event", 20, 10, "dispatch", 0),
                    (FIRST_PID + 1, 3, "wait: host", 0, 14, None, None)]


def test_arrows_lead_from_what_ended_a_wait_and_from_launches(tmp_path: Path) -> None:
    write_trace(timeline(LAYER, OTHER).columns(), tmp_path / "trace.json", [0, 1])
    arrows = [one for one in check_trace(tmp_path / "trace.json") if one["ph"] in "sf"]
    told = [(one["name"], source["pid"], source["tid"], source["ts"], one["pid"], one["tid"], one["ts"])
            for source, one in zip(arrows[::2], arrows[1::2], strict=True)]
    late = FIRST_PID + 1
    assert told == [
        ("launches", late, 1 + 1, Decimal("13.999"), late, 3, 14),
        ("ends the wait of", FIRST_PID, 4, Decimal("9.999"), FIRST_PID, 5, 14),
        ("ends the wait of", late, 3, Decimal("13.999"), FIRST_PID, 5, 14),
        ("ends the wait of", FIRST_PID, 5, Decimal("29.999"), FIRST_PID, 4, 30)]


def test_lanes_show_iteration_layers_of_each_micro_batch_and_launches(tmp_path: Path) -> None:
    tasks = [task("a", 10, 20, layer=0, micro_batch=0, issued=5), task("a", 20, 30, layer=0, micro_batch=1, issued=10),
             task("fetch", 12, 14, layer=1, micro_batch=0, stream="side", kind="prefetch", issued=11),
             task("a", 30, 45, layer=1, micro_batch=0, issued=25, host_after=0),
             task("b", 45, 50, layer=0, micro_batch=0, issued=25, host_after=0)]
    write_trace(timeline([{**one, **{key: one[key] * US for key in ("issued", "ready", "start", "end", "solo")}}
                          for one in tasks]).columns(), tmp_path / "trace.json", [0])  # fmt: skip
    events = check_trace(tmp_path / "trace.json")
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    told = [(names[one["tid"]], one["name"], one["ts"], one["ts"] + one["dur"])
            for one in _slices(events, "lane", "launch")]
    assert told == [
        ("iteration", "iteration", 0, 50), ("layers, micro-batch A", "layer 0 (A)", 10, 30),
        ("layers, micro-batch A", "layer 1 (A)", 30, 45), ("layers, micro-batch B", "layer 0 (B)", 20, 30),
        ("host launches", "launch a", 0, 5), ("host launches", "launch a", 5, 10),
        ("host launches", "launch fetch", 10, 11), ("host launches", "wait: host is blocked", 11, 20),
        ("host launches", "launch 2 tasks", 20, 25)]
    assert list(names.values())[4:] == ["stream main (cube)", "stream side (cube)"]


def _whole(folder: Path) -> Path:
    write_trace(timeline(LAYER).columns(), folder / "whole.json", [0])
    return folder / "whole.json"


def test_a_window_shows_what_is_at_work_in_it(tmp_path: Path) -> None:
    counters = [Sample("HBM GB/s", 0, at * US, at) for at in (0, 12, 31)]
    path = tmp_path / "trace.json"
    assert write_trace(timeline(LAYER).columns(), path, [0], counters=counters, window_ps=(11 * US, 25 * US)) == 2
    events = check_trace(path)
    assert {one["name"] for one in _slices(events, "kernel")} == {"shared", "dispatch (B)"}
    assert [(one["ts"], one["args"]["GB/s"]) for one in events if one["ph"] == "C"] == [(11, 0), (12, 12)]
    before = [one["args"]["name"] for one in check_trace(_whole(tmp_path)) if one["name"] == "thread_name"]
    assert [one["args"]["name"] for one in events if one["name"] == "thread_name"] == before, "whatever the window"
    lanes = _slices(events, "lane")
    assert {(one["ts"], one["ts"] + one["dur"]) for one in lanes if one["name"] == "iteration"} == {(11, 25)}


def test_metadata_says_how_the_run_was_made(tmp_path: Path) -> None:
    write_trace(timeline(LAYER).columns(), tmp_path / "trace.json", [0], about={"seed": 7, "version": "9"})
    said = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["otherData"]
    assert said == {"seed": 7, "version": "9", "shown_ranks": [0], "window_s": None}


def test_awkward_times_stay_serial_and_files_are_the_same_twice(tmp_path: Path) -> None:
    columns = awkward().columns()
    for name in ("one.json", "two.json", "one.json.gz", "two.json.gz"):
        write_trace(columns, tmp_path / name, [0, 1])
    check_trace(tmp_path / "one.json")
    assert check_trace(tmp_path / "one.json.gz") == check_trace(tmp_path / "two.json")
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_flights_and_counters_are_written_for_the_ranks_shown(tmp_path: Path) -> None:
    flights = [Flight("prefetch", 0, 0, 5 * US), Flight("prefetch", 0, US, 3 * US), Flight("elsewhere", 9, 0, US)]
    counters = [Sample("HBM GB/s", 0, 0, 812.5), Sample("HBM GB/s", 0, 5 * US, 0), Sample("HBM GB/s", 9, 0, 1)]
    write_trace(timeline(LAYER).columns(), tmp_path / "trace.json", [0], flights, counters)
    events = check_trace(tmp_path / "trace.json")
    assert [(one["ph"], one["id2"]["local"], one["ts"]) for one in events if one["ph"] in "be"] == [
        ("b", "flow-0", 0), ("e", "flow-0", 5), ("b", "flow-1", 1), ("e", "flow-1", 3)]
    assert [(one["name"], one["ts"], one["args"]) for one in events if one["ph"] == "C"] == [
        ("HBM", 0, {"GB/s": Decimal("812.5")}), ("HBM", 5, {"GB/s": 0})]


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    def broken() -> Any:
        yield Sample("HBM GB/s", 0, 0, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trace(timeline(LAYER).columns(), tmp_path / "trace.json", [0], counters=broken())
    assert list(tmp_path.iterdir()) == []


def test_no_rows_make_a_trace_too(tmp_path: Path) -> None:
    assert write_trace(timeline().columns(), tmp_path / "trace.json", []) == 0
    assert check_trace(tmp_path / "trace.json") == []


@pytest.mark.perfetto
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_perfetto_shows_every_slice_arrow_and_track(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    counters = [Sample("HBM GB/s", 0, 10**15 + one * US, one) for one in range(5)]
    flights = [Flight("prefetch", 0, 10**15, 10**15 + 9 * US), Flight("prefetch", 0, 10**15 + US, 10**15 + 12 * US)]
    written = write_trace(awkward().columns(), path, [0, 2], flights, counters)
    events = check_trace(path)
    with opened(path) as perfetto:
        assert perfetto.complaints() == []
        on_threads = "slice join thread_track on track_id = thread_track.id"
        assert perfetto.query(f"select count(*) from {on_threads}") == [
            [sum(one["ph"] == "X" for one in events)]]
        assert perfetto.query("select count(*) from slice where category = 'kernel'") == [[written]]
        assert perfetto.query("select slice.name, process.name, count(*) from slice join process_track on "
                              "track_id = process_track.id join process using (upid)") == [["prefetch", "rank 0", 2]]
        assert perfetto.query("select count(*) from flow") == [[sum(one["ph"] == "s" for one in events)]]
        assert perfetto.query("select name, count(*) from counter join process_counter_track as track "
                              "on track_id = track.id group by 1") == [["HBM GB/s", 5]]
        assert perfetto.query("select count(*) from thread where is_main_thread and utid in "
                              "(select utid from thread_track)") == [[0]]
        assert perfetto.query(
            f"select process.name, thread.name, count(*) from {on_threads} "
            "join thread using (utid) join process using (upid) group by 1, 2 order by pid, tid") == [
            [f"rank {rank}", thread,
             sum(one["ph"] == "X" and (one["pid"], one["tid"]) == (FIRST_PID + rank, tid) for one in events)]
            for rank in (0, 2) for tid, thread in _threads(events, rank)]
        assert perfetto.query("select sum(dur) from slice where category = 'kernel'") == [
            [int(sum(one["dur"] * 1000 for one in events if one["ph"] == "X" and one["cat"] == "kernel"))]]


def _threads(events: list[dict[str, Any]], rank: int) -> list[tuple[int, str]]:
    return sorted((one["tid"], one["args"]["name"]) for one in events
                  if one["name"] == "thread_name" and one["pid"] == FIRST_PID + rank)
