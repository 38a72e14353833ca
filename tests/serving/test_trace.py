"""The Chrome trace of a service: nothing dropped, nothing dangling, and what is left out is said."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.observe.events import FIRST_PID
from simulator.serving.record import Lower
from simulator.serving.trace import step_name, write_trace
from tests.law.trace_laws import check_trace
from tests.observe.perfetto_ui import opened
from tests.serving.hand import MS, apart, request, served, step, together


def asyncs(events: list[dict[str, Any]], number: int, engine: int = 0) -> list[tuple[str, str, float]]:
    return [(one["ph"], one["name"], float(one["ts"]) / 1e3) for one in events if one["ph"] in "be"
            and one["id2"]["local"] == f"request-{number}" and one["pid"] == FIRST_PID + engine]  # fmt: skip


def about(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["otherData"]


def test_steps_are_slices_by_what_they_do(tmp_path: Path) -> None:
    assert write_trace(together(), tmp_path / "trace.json") == 5
    slices = [one for one in check_trace(tmp_path / "trace.json") if one["ph"] == "X"]
    assert [(one["name"], one["ts"], one["dur"]) for one in slices] == [
        ("prefill 100", 10_000, 20_000), ("decode 1", 30_000, 10_000), ("prefill 200 + decode 1", 40_000, 30_000),
        ("decode 2", 70_000, 10_000), ("decode 1", 80_000, 10_000)]  # fmt: skip
    assert slices[2]["args"] == {"prefill_tokens": 200, "decoding": 1, "cached_tokens": 102}
    assert step_name(0, 0) == "empty"


def test_a_request_has_its_phases_inside(tmp_path: Path) -> None:
    write_trace(together(), tmp_path / "trace.json")
    events = check_trace(tmp_path / "trace.json")
    assert asyncs(events, 0) == [
        ("b", "request", 0), ("b", "front", 0), ("e", "front", 5), ("b", "queue", 5), ("e", "queue", 10),
        ("b", "prefill", 10), ("e", "prefill", 30), ("b", "decode", 30), ("e", "decode", 80), ("e", "request", 80)]
    assert asyncs(events, 2) == [], "it was refused"
    assert asyncs(events, 3) == [("b", "request", 85), ("b", "front", 85), ("e", "front", 88), ("e", "request", 88)]


def test_loads_from_below_hbm_are_a_phase(tmp_path: Path) -> None:
    lower = Lower(np.array([5 * MS, 0, 0, 0]), {"host": np.zeros(4, np.int64)}, {})
    write_trace(together(lower=lower), tmp_path / "trace.json")
    assert asyncs(check_trace(tmp_path / "trace.json"), 0)[3:8] == [
        ("b", "queue", 5), ("e", "queue", 10), ("b", "load", 10), ("e", "load", 15), ("b", "prefill", 15)]


def test_apart_a_request_is_over_both_engines(tmp_path: Path) -> None:
    write_trace(apart(), tmp_path / "trace.json")
    events = check_trace(tmp_path / "trace.json")
    assert asyncs(events, 0, engine=0)[-1] == ("e", "request", 11)
    assert asyncs(events, 0, engine=1) == [
        ("b", "request", 11), ("b", "transfer", 11), ("e", "transfer", 16), ("b", "decode", 16), ("e", "decode", 44),
        ("e", "request", 44)]  # fmt: skip
    assert [one["args"]["name"] for one in events if one["name"] == "process_name"] == ["prefill 0", "decode 0"]


def test_counters_where_they_change(tmp_path: Path) -> None:
    write_trace(together(), tmp_path / "trace.json")
    events = [one for one in check_trace(tmp_path / "trace.json") if one["ph"] == "C"]
    assert [(one["ts"], one["args"]["blocks"]) for one in events if one["name"] == "used"] == [
        (10_000, 7), (40_000, 26), (80_000, 19)]  # fmt: skip
    assert [one["args"]["requests"] for one in events if one["name"] == "waiting"] == [0, 1, 0]


def test_a_window_and_the_first_requests(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(together(), path)
    assert about(path) == {"window_s": [0, pytest.approx(0.09)], "requests": 4, "requests_of_run": 4, "steps": 5,
                           "steps_of_run": 5, "whole": True}  # fmt: skip
    assert write_trace(together(), path, window_s=(0.015, 0.075)) == 3
    assert (about(path)["requests"], about(path)["whole"]) == (2, False)
    assert asyncs(check_trace(path), 0) == []
    assert write_trace(together(), path, most_requests=1) == 4, "no step begins after the first request has ended"
    assert about(path)["window_s"] == [0, 0.08]


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.json.gz", "two.json.gz"):
        write_trace(apart(), tmp_path / name)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()
    assert gzip.decompress((tmp_path / "one.json.gz").read_bytes()).startswith(b'{"traceEvents"')


def test_an_empty_run_is_a_trace_too(tmp_path: Path) -> None:
    assert write_trace(served([request(0, engine=-1, emitted=0, status=1)], []), tmp_path / "trace.json") == 0
    check_trace(tmp_path / "trace.json")


@pytest.mark.perfetto
def test_perfetto_shows_every_step_and_every_phase(tmp_path: Path) -> None:
    requests = [request(at, tokens=(10, 3), routed=at + 1, admitted=at + 1, prefilled=at + 6, last_token=at + 16)
                for at in (0, 10, 20, 30)]  # fmt: skip
    write_trace(served(requests, [step(1 + 5 * at, 5, 1, 7, blocks=at) for at in range(9)]), tmp_path / "trace.json")
    with opened(tmp_path / "trace.json") as perfetto:
        assert perfetto.complaints() == []
        assert perfetto.query("select count(*) from slice join thread_track on track_id = thread_track.id") == [[9]]
        assert perfetto.query("select slice.name, depth, count(*) from slice join process_track on track_id = "
                              "process_track.id group by 1, 2 order by 2, 1") == [
            ["request", 0, 4], ["decode", 1, 4], ["front", 1, 4], ["prefill", 1, 4]]  # fmt: skip


def test_metadata_says_how_the_run_was_made(tmp_path: Path) -> None:
    write_trace(together(), tmp_path / "trace.json", run={"seed": 3, "steps": "audit"})
    assert (about(tmp_path / "trace.json")["run"], about(tmp_path / "trace.json")["steps"]) == (
        {"seed": 3, "steps": "audit"}, 5)
