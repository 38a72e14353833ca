"""The folder of a service: what of it was changed by hand, or cut, is refused by its key."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.serving.kept_file import check_export
from simulator.serving.kept_result import EXPORT, REQUESTS_FILE, STEPS_FILE, read_service

TIMES = {"unit": "ms", "avg": 1.0, **dict.fromkeys(("p50", "p90", "p95", "p99", "max"), 2.0)}
EXPORTED: dict[str, Any] = {
    "time_to_first_token": TIMES, "request_throughput": {"unit": "requests/s", "avg": 3.0},
    "input_config": {"service": "s", "settings": {}}, "steady_state_metrics": {"request_latency": dict(TIMES)},
    "braid": {"requests": {"requests": 2, "done": 1, "refused": 1, "unfinished": 0}, "gpus": 8, "goodput": {},
              "whole": {"waits": {"queue": {"mean_s": 0.5, "p99_s": 1, "share": 0.1}}}, "steady_state": {"why": "few"},
              "over_time": {"start_s": [0.0, 1.0], "queue": [0.0, 2.0]}, "steps": {"simulated": 3}, "saturated": None},
}  # fmt: skip


def changed(key: str, value: Any) -> dict[str, Any]:
    """The export with another value at a dotted key."""
    made = deepcopy(EXPORTED)
    *path, last = key.split(".")
    inner = made
    for step in path:
        inner = inner[step]
    inner[last] = value
    return made


def test_what_serve_writes_is_read() -> None:
    check_export(EXPORTED)
    check_export({key: value for key, value in EXPORTED.items() if not key.endswith(("token", "metrics"))})


@pytest.mark.parametrize(("key", "value"), [
    ("time_to_first_token.p50", None), ("time_to_first_token", 5), ("request_throughput.avg", "3"),
    ("request_throughput.avg", 10**400), ("steady_state_metrics.request_latency.max", [1]), ("braid.gpus", None),
    ("braid.requests.done", "1"), ("braid.whole.waits.queue", 1), ("braid.over_time.queue", [1.0]),
    ("braid.over_time", []), ("braid.steady_state.why", 1), ("braid.steps", {"audited": 1}),
    ("braid.saturated", {"rate_per_s": 1}), ("input_config", "a"), ("braid.goodput", {"ttft": "1"}),
])  # fmt: skip
def test_another_kind_of_thing_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key.split(".")[1] if key.startswith("braid") else key.split(".")[0]):
        check_export(changed(key, value))


@pytest.mark.parametrize("whole", ["[" * 5000, "[]", "null", "1" * 5000, "{", "{}"])
def test_a_file_that_is_no_export_is_refused(tmp_path: Path, whole: str) -> None:
    (tmp_path / EXPORT).write_text(whole)
    with pytest.raises(InputError, match=r"is not what `braid serve --out` of this version writes: .*; run"):
        read_service(tmp_path)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 9, b"\x00" * 100])
def test_a_table_that_is_none_is_refused_with_its_name(tmp_path: Path, data: bytes,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.serving.kept_result.check_export", lambda export: None)
    (tmp_path / EXPORT).write_text("{}")
    for name in (REQUESTS_FILE, STEPS_FILE):
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=f"{REQUESTS_FILE}: .*; run it again"):
        read_service(tmp_path)
