"""A small service with experts that change over time, and step times by a formula of how uneven they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from simulator.model.micro_batch import MicroBatch
from simulator.serving import steps
from simulator.serving.settings import Service
from simulator.study.scenario import Scenario
from simulator.study.step import StepWords, step_of
from tests.serving.services import by_formula, service

LAYERS, EXPERTS, PLACES = 8, 128, 4


@cache
def step(skew: str = "0.6", mesh: str = "dp=4,ep=4") -> Scenario:
    """Of a model with 128 experts on 4 GPUs."""
    return step_of(StepWords("qwen3_30b_a3b", "dgx_h100", "vllm", mesh, "decode", {
        "model.shapes.layers": str(LAYERS), "routing.skew": skew}))  # fmt: skip


def engines(skew: str = "0.6", mesh: str = "dp=4,ep=4", **experts: Any) -> dict[str, Any]:
    """One engine; experts: their settings."""
    return {"step": step(skew, mesh), "cache": {"tokens": 60000}, "experts": experts}


def drifting(**experts: Any) -> Service:
    return service(engines(**experts))


def uneven(scenario: Scenario, groups: Sequence[MicroBatch]) -> float:
    """As `by_formula`; half of it grows with the load of the fullest place, and a quarter with what moves beside it."""
    state, plain = scenario.routing.state, by_formula(scenario, groups)
    more = 0.5 * (state.imbalance - 1.0) if state else 0.0
    return plain * (1.0 + more + 0.25 * bool(scenario.faults))


def steps_by_imbalance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "step_seconds", uneven)
