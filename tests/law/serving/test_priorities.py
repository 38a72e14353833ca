"""Priorities: with one of them nothing moves, and a higher one is never served later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.serving.record import Served
from simulator.serving.requests import Requests
from tests.law.serving.test_conservation import tokens_add_up
from tests.law.serving.test_same_bytes import digest
from tests.serving.services import drawn, instances, run, service, sharing, steps_by_formula

ENGINES: dict[str, dict[str, Any]] = {
    "vllm": {"max_num_seqs": 6},
    "vllm, small": {"tokens": 640},
    "vllm, chunks": {"tokens": 640, "max_num_batched_tokens": 64},
    "sglang": {"scheduler": "sglang", "max_num_seqs": 6},
    "sglang, small": {"scheduler": "sglang", "tokens": 640},
    "trtllm": {"scheduler": "trtllm", "tokens": 640},
    "trtllm, groups": {"scheduler": "trtllm", "mesh": "tp=1,dp=2", "max_num_seqs": 3, "shared_queue": True},
}
ALL = pytest.mark.parametrize("name", ENGINES)


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)


def served(name: str, requests: Requests, policy: str = "priority", **more: Any) -> Served:
    return run(service(instances(**ENGINES[name], policy=policy, **more)), requests)


def alike(priority: np.ndarray) -> Requests:
    """Requests of one length, so that who is first matters alone."""
    plain = drawn(len(priority), 7, rate=4000.0, inputs=(100, 100), outputs=(30, 30))
    return replace(plain, priority=priority)


@pytest.mark.parametrize("requests", [drawn(80, 3), sharing(80, 5)], ids=["alone", "sharing"])
@ALL
def test_with_one_priority_nothing_moves(name: str, requests: Requests) -> None:
    first = digest(served(name, requests, "fcfs"))
    for priority in (0, 3):
        assert digest(served(name, replace(requests, priority=np.full(80, priority)))) == first


@ALL
def test_without_the_policy_priorities_are_not_heeded(name: str) -> None:
    requests = drawn(60, 3)
    mixed = replace(requests, priority=np.arange(60) % 3)
    assert digest(served(name, mixed, "fcfs")) == digest(served(name, requests, "fcfs"))


@pytest.mark.parametrize("of", [5, 17, 38])
@ALL
def test_a_higher_priority_is_never_served_later(name: str, of: int) -> None:
    """The same request among the same others, with each priority."""
    ends = []
    for own in (0, 1, 2, 3):
        priority = np.array([1, 2] * 20)
        priority[of] = own
        found = served(name, alike(priority), priority_scheduling_preemption_threshold=0)
        assert found.done.all()
        ends.append([int(found.times[which][of]) for which in ("admitted", "first_token", "last_token")])
    assert ends == sorted(ends)
    assert all((np.diff(np.array(ends), axis=0) >= 0).ravel())
    assert ends[0][1] < ends[-1][1], "the case is of use"


@pytest.mark.parametrize("threshold", [0, 1, 10])
@ALL
def test_tokens_are_conserved(name: str, threshold: int) -> None:
    requests = replace(drawn(80, 3), priority=np.random.default_rng(1).integers(0, 4, 80))
    found = served(name, requests, priority_scheduling_preemption_threshold=threshold)
    assert found.done.all()
    tokens_add_up(found, requests)
