"""An engine's steps: many taken together are the same as one at a time; who comes is seen when it may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.model.micro_batch import MicroBatch
from simulator.serving import engine
from simulator.serving.record import Served
from simulator.serving.requests import independent
from tests.serving.services import by_formula, drawn, instances, run, service, steps_by_formula


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)


KINDS: dict[str, dict[str, Any]] = {
    "vllm": {"engines": instances()},
    "small": {"engines": instances(tokens=640)},
    "sglang": {"engines": instances(scheduler="sglang")},
    "sglang, small": {"engines": instances(scheduler="sglang", tokens=640)},
    "trtllm, small": {"engines": instances(scheduler="trtllm", tokens=640)},
    "groups": {"engines": instances("tp=1,dp=4", tokens=640)},
    "apart": {"engines": instances("tp=1,dp=2", count=2), "prefill": instances(count=2)},
}


def assert_same(one: Served, other: Served) -> None:
    for name, column in one.times.items():
        np.testing.assert_array_equal(column, other.times[name], name)
    for name, column in one.steps.items():
        if name != "used_blocks":
            np.testing.assert_array_equal(column, other.steps[name], name)
    np.testing.assert_array_equal(one.preempted_ps, other.preempted_ps)


@pytest.mark.parametrize(("name", "steps"), [(name, "lattice") for name in KINDS] + [
    (name, "audit") for name in KINDS if name != "apart"])  # fmt: skip
def test_steps_together_are_steps_one_by_one(name: str, steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the picosecond, whatever comes meanwhile. Blocks in use grow evenly in a stretch and are not compared; engines
    that share their audits count their steps in another order."""
    requests = drawn(80, 4, rate=150.0)
    together = run(service(**KINDS[name]), requests, steps=steps)
    monkeypatch.setattr(engine, "MOST_TOGETHER", 1)
    assert_same(together, run(service(**KINDS[name]), requests, steps=steps))


def test_blocks_in_use_are_near_in_a_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = drawn(30, 4)
    together = run(service(), requests).steps["used_blocks"]
    monkeypatch.setattr(engine, "MOST_TOGETHER", 1)
    alone = run(service(), requests).steps["used_blocks"]
    assert np.abs(together - alone).max() <= 30
    assert alone.max() > 100


def test_what_comes_is_seen_when_the_step_that_runs_has_ended() -> None:
    """The first decodes from 1 ms on in steps of 1 ms; the second comes at 4.5 ms and is prefilled with the step from
    5 ms to 6 ms; one that comes at the very end of a step is in the next one."""
    requests = independent(np.array([0.0, 0.0045, 0.008]), np.full(3, 10), np.full(3, 30))
    served = run(service(), requests, steps="exact")
    assert (served.times["admitted"] / 1e9).tolist() == [0, 5, 8]
    assert (served.times["first_token"] / 1e9).tolist() == [1, 6, 9]
    assert (served.times["last_token"] / 1e9).tolist() == [30, 35, 38]


def test_all_groups_of_an_engine_wait_for_the_slowest() -> None:
    requests = independent(np.zeros(2), np.array([5000, 10]), np.array([20, 20]))
    served = run(service(instances("tp=1,dp=2")), requests, steps="exact")
    first = by_formula(service().engines.step, [*_prompt(5000), *_prompt(10)])
    assert served.times["first_token"].tolist() == [round(first * 1e12)] * 2
    assert served.steps["decoding"].tolist() == [0] + [2] * 19
    assert served.steps["cached_tokens"].tolist() == [0, *(5010 + 2 * np.arange(19))]


def _prompt(tokens: int) -> list[MicroBatch]:
    return [MicroBatch(0, (), ((tokens, 0),), 1)]


@pytest.mark.parametrize(("host", "want_ms"), [({"step_ms": 0.5}, 1.0), ({"step_ms": 2.0}, 2.0),
                                               ({"step_ms": 0.5, "overlapped": False}, 1.5),
                                               ({"step_ms": 1.0, "request_us": 500.0}, 2.0)])  # fmt: skip
def test_the_host_hides_under_the_step_before_or_adds_to_it(host: dict[str, Any], want_ms: float) -> None:
    requests = independent(np.zeros(2), np.full(2, 8), np.full(2, 10))
    served = run(service({**instances(), "host": host}), requests)
    assert set((served.steps["duration_ps"] / 1e9).tolist()) == {want_ms}


@pytest.mark.parametrize(("mesh", "want_ms"), [("tp=1", 4.0), ("tp=1,dp=2", 2.0), ("tp=2", 4.0)])
def test_every_group_has_a_host_of_its_own(mesh: str, want_ms: float) -> None:
    requests = independent(np.zeros(4), np.full(4, 8), np.full(4, 10))
    served = run(service({**instances(mesh), "host": {"request_us": 1000.0}}), requests)
    assert set((served.steps["duration_ps"] / 1e9).tolist()) == {want_ms}
