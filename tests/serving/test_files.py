"""Files of a service: Parquet that says what its columns mean, and JSON as AIPerf lays it out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from simulator.serving.files import FILES, GOOD, REQUESTS, STEP_COLUMNS, profile_export, write_files
from simulator.serving.goodput import promises
from simulator.serving.outcome import Outcome, outcome
from simulator.serving.record import Lower
from tests.serving.hand import MS, apart, together
from tests.serving.test_outcome import closed_loop


def rows(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def test_all_files_are_written(tmp_path: Path) -> None:
    write_files(outcome(together()), tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(FILES)


def test_requests_as_parquet(tmp_path: Path) -> None:
    write_files(outcome(together(), promises("inter_token_latency:10")), tmp_path)
    schema = pq.read_schema(tmp_path / "requests.parquet")
    assert schema.names == [*REQUESTS, *GOOD]
    assert all(schema.field(name).metadata[b"description"] for name in schema.names)
    first, second, third, fourth = rows(tmp_path / "requests.parquet")
    assert (first["status"], third["status"], fourth["status"]) == ("done", "refused", "unfinished")
    assert (first["prefill_engine"], third["decode_engine"]) == ("engine 0", "")
    assert (first["arrival_s"], first["last_token_s"], first["queue_s"]) == pytest.approx((0, 0.08, 0.005))
    assert (second["time_to_first_token_ms"], second["inter_token_latency_ms"]) == (50, 10)
    assert (second["cached_tokens"], second["emitted_tokens"], first["good"], second["good"]) == (100, 3, False, True)
    assert math.isnan(third["routed_s"])
    assert math.isnan(fourth["request_latency_ms"])


def test_tiers_below_hbm_in_parquet_and_json(tmp_path: Path) -> None:
    """Columns for the tiers that there are; the other requests of the record waited for nothing."""
    about = {"host": {"size_gib": 2.0, "room_tokens": 900}}
    lower = Lower(np.array([0, 4 * MS, 0, 0]), {"host": np.array([0, 60, 0, 0])}, about)
    write_files(outcome(together(lower=lower)), tmp_path)
    schema = pq.read_schema(tmp_path / "requests.parquet")
    assert schema.names == [*REQUESTS, "cached_hbm_tokens", "cached_host_tokens", "load_s"]
    assert all(schema.field(name).metadata[b"description"] for name in schema.names)
    second = rows(tmp_path / "requests.parquet")[1]
    assert (second["cached_hbm_tokens"], second["cached_host_tokens"], second["load_s"]) == (40, 60, 0.004)
    assert (second["queue_s"], second["prefill_s"]) == pytest.approx((0.015, 0.026))
    found = json.loads((tmp_path / FILES[0]).read_text())
    assert found["prefix_cache_hit_ratio_host"]["avg"] == pytest.approx(60 / 400)
    assert found["braid"]["cache"] == about
    assert found["braid"]["whole"]["waits"]["load"]["mean_s"] == pytest.approx(0.002)


def test_steps_as_parquet(tmp_path: Path) -> None:
    write_files(outcome(apart()), tmp_path)
    schema = pq.read_schema(tmp_path / "steps.parquet")
    assert schema.names == list(STEP_COLUMNS)
    assert all(schema.field(name).metadata[b"description"] for name in schema.names)
    first, second, *_ = rows(tmp_path / "steps.parquet")
    assert (first["engine"], first["prefill_tokens"]) == ("prefill 0", 100)
    assert (second["engine"], second["decoding"]) == ("decode 0", 1)
    assert (second["start_s"], second["duration_s"]) == pytest.approx((0.014, 0.01))


def test_json_as_aiperf_lays_it_out(tmp_path: Path) -> None:
    record = together(interrupted=True, about_steps={"simulated": np.int64(12)},
                      saturated={"rate_per_s": 9.0, "stable_per_s": 4.0})  # fmt: skip
    write_files(outcome(record, promises("request_latency:75")), tmp_path, {"seed": 3})
    found = json.loads((tmp_path / FILES[0]).read_text())
    assert " ".join(found["request_latency"]) == (
        "unit avg min max p1 p5 p10 p25 p50 p75 p90 p95 p99 std count sum")  # fmt: skip
    assert found["request_latency"]["p50"] == 75
    assert found["request_throughput"] == {"unit": "requests/sec", "avg": pytest.approx(2 / 0.09)}
    assert found["good_request_count"] == {"unit": "requests", "avg": 1}
    assert (found["schema_version"], found["was_cancelled"], found["input_config"]) == ("1.1", True, {"seed": 3})
    assert found["error_summary"] == [
        {"error_details": {"type": "refused", "message": "longer than memory"}, "count": 1},
        {"error_details": {"type": "unfinished", "message": "the run was stopped"}, "count": 1}]  # fmt: skip
    assert found["braid"]["steps"] == {"simulated": 12}
    assert found["braid"]["goodput"] == {"request_latency": 75}
    assert found["braid"]["saturated"]["stable_per_s"] == 4
    assert found["braid"]["steady_state"] == {"why": outcome(record).window.why}
    assert "steady_state_metrics" not in found


def steady() -> Outcome:
    return outcome(closed_loop(640, 64, tokens=64), concurrency=64)


def test_the_steady_state_is_beside_all() -> None:
    found = profile_export(steady())
    assert found["steady_state_metrics"]["inter_token_latency"]["avg"] == pytest.approx(20)
    assert found["steady_state_metrics"]["request_count"]["avg"] < found["request_count"]["avg"] == 640
    window = found["braid"]["steady_state"]
    assert window["end_s"] - window["start_s"] == pytest.approx(
        found["steady_state_metrics"]["benchmark_duration"]["avg"])  # fmt: skip


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_files(steady(), tmp_path / folder)
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
