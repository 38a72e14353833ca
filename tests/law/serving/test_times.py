"""Times of requests: in order, as Lindley says at the front, and as Little says everywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from simulator.serving.record import Served
from simulator.serving.settings import Service
from simulator.units import to_ps
from tests.serving.services import drawn, instances, run, service, steps_by_formula

SERVICES: dict[str, Callable[[], Service]] = {
    "together": lambda: service(instances(count=2)),
    "small": lambda: service(instances(tokens=640)),
    "sglang": lambda: service(instances(scheduler="sglang")),
    "groups": lambda: service(instances("tp=1,dp=2", count=2)),
    "apart": lambda: service(instances(count=2), prefill=instances(count=3)),
    "front": lambda: service(front={"request_ms": 3.0, "input_token_us": 5.0}),
    "apart, after": lambda: service(prefill=instances(), transfer={"layer_by_layer": False, "rate_gb_s": 0.01}),
}


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)


@cache
def served(name: str) -> Served:
    return run(SERVICES[name](), drawn(200, 11))


@pytest.mark.parametrize("name", SERVICES)
def test_what_happens_to_a_request_happens_in_order(name: str) -> None:
    times = served(name).times
    for earlier, later in (("arrival", "routed"), ("routed", "admitted"), ("admitted", "prefilled"),
                           ("prefilled", "joined"), ("prefilled", "first_token"),
                           ("joined", "last_token")):  # fmt: skip
        assert (times[earlier] <= times[later]).all(), (earlier, later)
    assert (served(name).times["arrival"] == [to_ps(at_s) for at_s in drawn(200, 11).arrival_s.tolist()]).all()
    waits = sum(served(name).waits().values())
    np.testing.assert_allclose(waits, (times["last_token"] - times["arrival"]) / 1e12, rtol=1e-9)


def area(come_ps: np.ndarray, gone_ps: np.ndarray) -> float:
    """Integral of how many are there, from the events in the order of their times."""
    events = sorted([(int(at), 1) for at in come_ps] + [(int(at), -1) for at in gone_ps])
    there = found = before = 0
    for at, step in events:
        found += there * (at - before)
        there, before = there + step, at
    assert there == 0
    return float(found)


@pytest.mark.parametrize("name", SERVICES)
def test_little_for_the_service_and_every_engine(name: str) -> None:
    """What requests stayed is what engines had: of those that decode, by the rows of steps, but while preempted; one
    that comes from elsewhere waits for the end of the step that runs."""
    one, times = served(name), served(name).times
    assert area(times["arrival"], times["last_token"]) == pytest.approx(
        float((times["last_token"] - times["arrival"]).sum()), rel=1e-9)  # fmt: skip
    steps = one.steps
    for engine in np.unique(one.decode_engine[one.emitted > 1]):
        here = one.decode_engine == engine
        stays = (times["last_token"] - np.maximum(times["first_token"], times["joined"]) - one.preempted_ps)[here]
        rows = steps["engine"] == engine
        had = float((steps["decoding"] * steps["duration_ps"])[rows].sum())
        if name in ("together", "front", "groups", "small"):
            assert had == pytest.approx(float(stays.sum()), rel=1e-9)
        elif name == "sglang":
            assert had < stays.sum(), "prompts go first"
        else:
            step_ps = int(steps["duration_ps"][rows].max())
            assert stays.sum() - step_ps * here.sum() <= had < stays.sum()
    assert one.preemptions.any() == (name == "small")


def test_the_front_is_lindley() -> None:
    """One server: W' = max(W + S - A, 0)."""
    one = served("front")
    arrival, requests = one.times["arrival"] / 1e12, one.requests
    work = 3e-3 + 5e-6 * requests.input_tokens
    wait, waits = 0.0, [0.0]
    for number in range(1, len(requests)):
        wait = max(wait + work[number - 1] - (arrival[number] - arrival[number - 1]), 0.0)
        waits.append(wait)
    np.testing.assert_allclose(one.waits()["front"] - work, waits, atol=1e-9)
    assert max(waits) > 1e-3


def test_an_engine_never_does_two_steps_at_once_and_idles_only_without_work() -> None:
    steps, times = served("together").steps, served("together").times
    for engine in (0, 1):
        rows = steps["engine"] == engine
        ends = (steps["start_ps"] + steps["duration_ps"])[rows]
        gaps = np.flatnonzero(steps["start_ps"][rows][1:] > ends[:-1])
        here = served("together").decode_engine == engine
        for gap in gaps:
            inside = (times["routed"] < ends[gap]) & (times["last_token"] > ends[gap]) & here
            assert not inside.any()
