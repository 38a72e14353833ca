"""Finish times of classic networks, as SimGrid gives them without TCP corrections (pure max-min)."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.law.physics.plain import Job, plain_ends_s, simulate

CASES = [
    case
    for line in (Path(__file__).parents[2] / "data" / "maxmin_classic.jsonl").read_text(encoding="utf-8").splitlines()
    if not (case := json.loads(line))["case"].startswith("latency_")  # these weight flows by round-trip time
]


def network(case: dict[str, Any]) -> tuple[list[float], list[Job]]:
    index = {name: i for i, name in enumerate(case["links"])}
    jobs = [
        Job(
            flow["bytes"],
            {index[link]: 1.0 for link in flow["links"]},
            inf if flow["limit_bytes_per_s"] is None else flow["limit_bytes_per_s"],
            start_ps=round(flow["start_s"] * 1e12),
        )
        for flow in case["flows"]
    ]
    return [link["bytes_per_s"] for link in case["links"].values()], jobs


def test_all_of_them_are_there() -> None:
    assert len(CASES) == 15


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_finish_times(case: dict[str, Any]) -> None:
    rates, jobs = network(case)
    expected = list(case["finish_s"].values())
    assert [end * 1e-12 for end in simulate(rates, jobs).end_ps] == pytest.approx(expected, rel=1e-9)
    assert plain_ends_s(rates, jobs) == pytest.approx(expected, rel=1e-9)
