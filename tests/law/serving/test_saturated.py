"""Saturated with requests of one length, the steps of a service are those of `braid run transformer:decode`."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.serving.record import Served
from simulator.serving.requests import independent
from simulator.study.library import load_scenario
from simulator.study.scenario import Scenario
from simulator.study.simulate import simulate
from tests.serving.services import instances, run, service, step

PROMPT, OUTPUT = 512, 6


def decode(mesh: str, requests: int, context: int) -> Scenario:
    """As the command line has it."""
    of = step(mesh)
    changes = dict(of.changes) | {"batch.requests": str(requests), "batch.context": str(context)}
    return load_scenario("transformer:decode").replace(changes)


@pytest.fixture(scope="module", params=[("tp=1", 8), ("tp=1,dp=2", 16)], ids=["one group", "two groups"])
def saturated(request: pytest.FixtureRequest) -> tuple[str, int, Served]:
    mesh, count = request.param
    lengths = np.full(count, PROMPT), np.full(count, OUTPUT)
    return mesh, count, run(service(instances(mesh)), independent(np.zeros(count), *lengths), steps="exact")


def test_every_decode_step_is_that_of_the_library(saturated: tuple[str, int, Served]) -> None:
    mesh, count, served = saturated
    assert served.steps["prefill_tokens"].tolist() == [PROMPT * count] + [0] * (OUTPUT - 1)
    for number in range(1, OUTPUT):
        context = PROMPT + number - 1
        assert served.steps["cached_tokens"][number] == context * count
        want = simulate(decode(mesh, count, context)).metrics["iteration_ms"]
        assert served.steps["duration_ps"][number] / 1e9 == pytest.approx(want, rel=1e-6)


def test_the_time_per_token_is_that_of_a_step(saturated: tuple[str, int, Served]) -> None:
    _, _, served = saturated
    tpot = (served.times["last_token"] - served.times["first_token"]) / (OUTPUT - 1)
    assert set(tpot.tolist()) == {served.steps["duration_ps"][1:].mean()}
