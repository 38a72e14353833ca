"""Experts over time: nothing is lost, nothing is free, and what does not change costs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from simulator.serving import engine
from simulator.serving.record import Served
from tests.conftest import ROOT
from tests.law.serving.test_same_bytes import digest
from tests.serving.drifting import drifting, steps_by_imbalance
from tests.serving.services import drawn, run

SCRIPT = """
import pytest
from tests.law.serving.test_experts import served
from tests.law.serving.test_same_bytes import digest
from tests.serving.drifting import steps_by_imbalance
with pytest.MonkeyPatch.context() as patch:
    steps_by_imbalance(patch)
    one = served(drift_s=1.0, step_interval=40)
print(digest(one), one.moved)
"""


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_imbalance(monkeypatch)


def served(seed: int = 0, count: int = 150, **experts: Any) -> Served:
    return run(drifting(**experts), drawn(count, 1), seed=seed)


def same_times(one: Served, other: Served) -> bool:
    """To the picosecond; blocks in use are counted from stretch to stretch, which a rearrangement cuts."""
    steps = ("engine", "start_ps", "duration_ps", "decoding", "prefill_tokens")
    return (all((one.times[name] == other.times[name]).all() for name in one.times)
            and all(np.array_equal(one.steps[name], other.steps[name]) for name in steps))  # fmt: skip


def mean_latency_s(one: Served) -> float:
    return float((one.times["last_token"] - one.times["arrival"]).mean() / 1e12)


def test_experts_that_do_not_change_leave_every_byte() -> None:
    plain, same = served(), served(window_size=7, use_async=False)
    assert digest(plain) == digest(same)
    assert "balancedness" not in same.steps
    assert not same.moved


def test_without_drift_nothing_moves_after_the_first_placement() -> None:
    found = served(step_interval=60)
    assert len(found.moved) > 2
    assert found.moved[0].experts > 0
    assert all(one.experts == 0 and one.size_bytes == 0 and one.start_ps == one.end_ps for one in found.moved[1:])
    bal = found.steps["balancedness"]
    assert (np.diff(bal[found.steps["start_ps"] >= found.moved[0].end_ps]) == 0).all()
    assert bal[-1] > bal[0] + 0.1


@pytest.mark.parametrize("use_async", [False, True])
def test_a_move_of_no_bytes_costs_nothing(use_async: bool) -> None:
    placed = served(init_expert_location="counted")
    again = served(init_expert_location="counted", step_interval=30, use_async=use_async)
    assert again.moved
    assert not any(one.size_bytes for one in again.moved)
    assert same_times(placed, again)


@pytest.mark.parametrize("use_async", [False, True])
def test_a_move_costs_time_beside_the_service_or_before_it(use_async: bool) -> None:
    found = served(step_interval=200, use_async=use_async, count=40)
    first = found.moved[0]
    start, length = found.steps["start_ps"], found.steps["duration_ps"]
    during = (start < first.end_ps) & (start + length > first.start_ps)
    assert first.end_ps > first.start_ps
    if use_async:  # a layer of 8 a step
        assert during.sum() == 8
        assert not (found.steps["balancedness"][during] > found.steps["balancedness"][start > first.end_ps].min()).any()
    else:
        assert not during.any()
        assert (start == first.end_ps).any()


def test_steps_taken_together_are_those_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    together = served(drift_s=1.0, step_interval=50, count=60)
    monkeypatch.setattr(engine, "MOST_TOGETHER", 1)
    single = served(drift_s=1.0, step_interval=50, count=60)
    assert same_times(together, single)
    assert np.array_equal(together.steps["balancedness"], single.steps["balancedness"])
    assert together.moved == single.moved
    assert len({*together.steps["balancedness"].tolist()}) > 10


def test_a_faster_drift_is_never_served_better_by_the_same_interval() -> None:
    means = []
    for drift_s in (0.0, 20.0, 4.0, 1.0):
        runs = [served(seed, 60, drift_s=drift_s, step_interval=60, init_expert_location="counted")
                for seed in range(4)]  # fmt: skip
        means.append((np.mean([mean_latency_s(one) for one in runs]),
                      -np.mean([one.steps["balancedness"].mean() for one in runs])))  # fmt: skip
    assert means == sorted(means)
    assert [latency for latency, _ in means] == sorted(latency for latency, _ in means)


def test_rearranging_beats_experts_in_order_under_slow_drift() -> None:
    slow = {"drift_s": 60.0}
    assert mean_latency_s(served(**slow, step_interval=80)) < mean_latency_s(served(**slow))


def test_hash_seeds_change_no_byte() -> None:
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    printed = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True,
                             text=True, cwd=ROOT).stdout  # fmt: skip
    here = served(drift_s=1.0, step_interval=40)
    assert printed == f"{digest(here)} {here.moved}\n"
