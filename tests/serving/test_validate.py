"""Published values of services stand beside simulated ones."""

from __future__ import annotations

import pytest

from simulator.errors import RunError
from simulator.serving.validate import SERVICES
from simulator.study.validate import validate


def test_rows_are_those_of_services_that_the_pattern_chooses_and_each_is_served_once() -> None:
    asked: list[str] = []

    def metrics(name: str) -> dict[str, float]:
        asked.append(name)
        return {"request_throughput": 75.0 if name.endswith("one") else 120.0}

    rows = {row.scenario: row for row in validate("vllm.*", kinds=[SERVICES._replace(metrics=metrics)])}
    assert set(rows) == set(asked) == {"api_servers:one", "api_servers:two"}
    assert rows["api_servers:one"].error == pytest.approx(75.0 / 76.5 - 1.0)
    assert rows["api_servers:two"].simulated == pytest.approx(1.6)  # a ratio to the other
    assert rows["api_servers:two"].error == 0.0
    assert len(asked) == 2


def test_a_service_that_cannot_run_says_why_and_so_does_what_is_compared_with_it() -> None:
    def metrics(name: str) -> dict[str, float]:
        if name == "api_servers:one":
            raise RunError("it does not fit")
        return {"request_throughput": 120.0}

    rows = {row.scenario: row.missing for row in validate("vllm.*", kinds=[SERVICES._replace(metrics=metrics)])}
    assert rows == {"api_servers:one": "it does not fit",
                    "api_servers:two": "api_servers:one cannot run so: it does not fit"}  # fmt: skip
