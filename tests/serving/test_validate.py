"""Published values of services stand beside simulated ones."""

from __future__ import annotations

import pytest

from simulator.serving import validate
from simulator.serving.validate import service_rows


def test_rows_are_those_of_services_that_the_pattern_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def metrics(name: str) -> dict[str, float]:
        asked.append(name)
        return {"request_throughput": 75.0 if name.endswith("one") else 120.0}

    monkeypatch.setattr(validate, "metrics_of", metrics)
    rows = {row.scenario: row for row in service_rows("vllm.*")}
    assert set(rows) == {"api_servers:one", "api_servers:two"}
    assert rows["api_servers:one"].error == pytest.approx(75.0 / 76.5 - 1.0)
    assert rows["api_servers:two"].simulated == pytest.approx(1.6)
    assert rows["api_servers:two"].error == 0.0
    asked.clear()
    assert service_rows("no such value") == []
    assert asked == []


def test_a_service_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.errors import RunError

    def metrics(name: str) -> dict[str, float]:
        raise RunError("it does not fit")

    monkeypatch.setattr(validate, "metrics_of", metrics)
    assert {row.missing for row in service_rows("vllm.*")} == {"it does not fit"}
