"""The Chrome trace: complete, exact, readable by Perfetto and by PyTorch-profiler tools."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from simulator.observe.timeline import Timeline
from simulator.observe.trace import FIRST_PID, Flight, Sample, some_ranks, write_trace
from tests.law.trace_laws import check_trace
from tests.observe.hand import comm, task, timeline
from tests.observe.perfetto_ui import opened

US = 10**6
LAYER = [
    task("attention", 0, 10 * US, kind="attention", layer=3, micro_batch=1, flops=2e9, hbm_bytes=1e6, solo=9 * US),
    comm("dispatch", 14 * US, 30 * US, ready=10 * US, after=(0,), wire_bytes=7e5, layer=3, micro_batch=1),
    task("shared", 10 * US, 20 * US, after=(0,), layer=3),
    task('experts "x"', 30 * US, 50 * US + 123_456, after=(1, 2), layer=3),
]


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


def test_every_task_is_a_slice_with_its_facts(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert write_trace(timeline(LAYER).columns(), path) == 5
    events = check_trace(path)
    slices = [one for one in events if one["ph"] == "X"]
    assert [(one["name"], one["cat"], one["tid"], one["ts"], one["dur"]) for one in slices] == [
        ("attention", "kernel", 1, 0, 10), ("wait: dispatch", "wait", 2, 10, 4), ("dispatch", "kernel", 2, 14, 16),
        ("shared", "kernel", 1, 10, 10), ('experts "x"', "kernel", 1, 30, Decimal("20.123"))]
    assert slices[0]["args"] == {
        "stream": 1, "correlation": 1, "device": 0, "rank": 0, "task": 0, "layer": 3, "micro_batch": 1,
        "multiplicity": 1, "kind": "attention", "engine": "cube", "bound_by": "compute", "flops": 2e9,
        "hbm_bytes": 1e6, "solo_us": 9}
    assert slices[-1]["args"]["solo_us"] == Decimal("20.123456")


def test_arrows_show_waits_between_streams(tmp_path: Path) -> None:
    write_trace(timeline(LAYER).columns(), tmp_path / "trace.json")
    arrows = [one for one in check_trace(tmp_path / "trace.json") if one["ph"] in "sf"]
    assert [(one["ph"], one["tid"], one["ts"]) for one in arrows] == [
        ("s", 1, Decimal("9.999")), ("f", 2, 14), ("s", 2, Decimal("29.999")), ("f", 1, 30)]


def test_awkward_times_stay_serial_and_files_are_the_same_twice(tmp_path: Path) -> None:
    columns = awkward().columns()
    for name in ("one.json", "two.json", "one.json.gz", "two.json.gz"):
        write_trace(columns, tmp_path / name)
    check_trace(tmp_path / "one.json")
    assert check_trace(tmp_path / "one.json.gz") == check_trace(tmp_path / "two.json")
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_flights_and_counters_are_written_for_the_ranks_shown(tmp_path: Path) -> None:
    flights = [Flight("prefetch", 0, 0, 5 * US), Flight("prefetch", 0, US, 3 * US), Flight("elsewhere", 9, 0, US)]
    counters = [Sample("HBM GB/s", 0, 0, 812.5), Sample("HBM GB/s", 0, 5 * US, 0), Sample("HBM GB/s", 9, 0, 1)]
    write_trace(timeline(LAYER).columns(), tmp_path / "trace.json", flights=flights, counters=counters)
    events = check_trace(tmp_path / "trace.json")
    assert [(one["ph"], one["id2"]["local"], one["ts"]) for one in events if one["ph"] in "be"] == [
        ("b", "flow-0", 0), ("e", "flow-0", 5), ("b", "flow-1", 1), ("e", "flow-1", 3)]
    assert [(one["name"], one["ts"], one["args"]) for one in events if one["ph"] == "C"] == [
        ("HBM", 0, {"GB/s": Decimal("812.5")}), ("HBM", 5, {"GB/s": 0})]


def test_ranks_to_show() -> None:
    assert some_ranks(timeline(LAYER, LAYER, LAYER).columns()) == [0, 1]
    assert some_ranks(timeline(LAYER, LAYER, LAYER, multiplicity=(1, 4, 3)).columns()) == [0, 1, 2]
    assert some_ranks(timeline().columns()) == []
    assert some_ranks(timeline(*[LAYER] * 20, multiplicity=(2,) * 20).columns()) == list(range(8))


def test_a_wrong_rank_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rows of rank 5; ranks are 0, 1"):
        write_trace(timeline(LAYER, LAYER).columns(), tmp_path / "trace.json", ranks=[0, 5])

    def broken() -> Any:
        yield Sample("HBM GB/s", 0, 0, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trace(timeline(LAYER).columns(), tmp_path / "trace.json", counters=broken())
    assert list(tmp_path.iterdir()) == []


def test_no_rows_make_a_trace_too(tmp_path: Path) -> None:
    assert write_trace(timeline().columns(), tmp_path / "trace.json") == 0
    assert check_trace(tmp_path / "trace.json") == []


@pytest.mark.perfetto
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_perfetto_shows_every_slice_arrow_and_track(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    counters = [Sample("HBM GB/s", 0, 10**15 + one * US, one) for one in range(5)]
    flights = [Flight("prefetch", 0, 10**15, 10**15 + 9 * US), Flight("prefetch", 0, 10**15 + US, 10**15 + 12 * US)]
    written = write_trace(awkward().columns(), path, ranks=[0, 2], flights=flights, counters=counters)
    events = check_trace(path)
    with opened(path) as perfetto:
        assert perfetto.complaints() == []
        on_threads = "slice join thread_track on track_id = thread_track.id"
        assert perfetto.query(f"select count(*) from {on_threads}") == [[written]]
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
            [f"rank {rank}", f"stream {stream}",
             sum(one["ph"] == "X" and (one["pid"], one["tid"]) == (FIRST_PID + rank, tid) for one in events)]
            for rank in (0, 2) for tid, stream in _streams(events, rank)]
        assert perfetto.query("select sum(dur) from slice where category = 'kernel'") == [
            [int(sum(one["dur"] * 1000 for one in events if one["ph"] == "X" and one["cat"] == "kernel"))]]


def _streams(events: list[dict[str, Any]], rank: int) -> list[tuple[int, str]]:
    return sorted((one["tid"], one["args"]["name"].removeprefix("stream ")) for one in events
                  if one["name"] == "thread_name" and one["pid"] == FIRST_PID + rank)
