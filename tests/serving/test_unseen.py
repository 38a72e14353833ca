"""When a scheduler looks at what has come to it."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from simulator.serving.requests import independent
from simulator.serving.sequences import Sequence
from simulator.serving.settings import Scheduling
from simulator.serving.unseen import Unseen
from tests.serving.services import instances, run, service, steps_by_formula

LONG = 200  # tokens of a request that decodes


def came(unseen: Unseen) -> Sequence:
    one = Sequence(request=7, input=10, output=5, hashes=[])
    unseen.add(one)
    return one


def test_every_step_where_it_looks_at_every_step() -> None:
    unseen = Unseen(1)
    assert unseen.look() == []
    unseen.passed(1, prompts=False)
    one = came(unseen)
    assert unseen.look() == [one]
    assert list(unseen) == []


def test_after_so_many_steps_or_behind_prompts_or_when_idle() -> None:
    unseen = Unseen(10)
    assert unseen.look() == []
    assert unseen.steps == 10
    one = came(unseen)
    unseen.passed(4, prompts=False)
    assert unseen.look() == []
    assert unseen.steps == 6
    assert list(unseen) == [one]
    unseen.passed(6, prompts=False)
    assert unseen.look() == [one]
    one = came(unseen)
    unseen.passed(1, prompts=True)
    assert unseen.look() == [one]
    one = came(unseen)
    assert unseen.look() == []
    assert unseen.look(idle=True) == [one]


def admitted_ms(interval: int, ahead: bool, arrivals_ms: list[float], prompts: list[int]) -> list[float]:
    """When requests are first worked on; the first decodes for 200 steps. A step takes 1 ms."""
    requests = independent(np.array(arrivals_ms) / 1e3, np.array(prompts), np.array([LONG] + [2] * (len(prompts) - 1)))
    engines = instances(scheduler="sglang", scheduler_recv_interval=interval, async_scheduling=ahead)
    served = run(service(engines), requests)
    assert served.done.all()
    return [float(at) / 1e9 for at in served.times["admitted"]]


@pytest.mark.parametrize(("ahead", "interval", "want_ms"), [
    (False, 1, [0.0, 21.0, 31.0]), (True, 1, [0.0, 22.0, 32.0]),
    (False, 20, [0.0, 21.0, 42.0]), (True, 20, [0.0, 41.0, 41.0]),
])  # fmt: skip
def test_a_prompt_waits_for_the_next_look(ahead: bool, interval: int, want_ms: list[float],
                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """It looks behind the first step, which has a prompt, at 1 ms, and 20 steps later; at 22 ms, behind a prompt again,
    and at 42. One ahead, it looks as the first step begins, at 20 and at 40 ms, and decides on the step after that."""
    steps_by_formula(monkeypatch)
    assert admitted_ms(interval, ahead, [0.0, 20.5, 30.5], [16, 16, 16]) == want_ms


@pytest.mark.parametrize(("ahead", "want_ms"), [(False, 1.0), (True, 31.0)])
def test_what_comes_during_a_prompt(ahead: bool, want_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is seen behind that, or has come too late where the scheduler looked as that step began."""
    steps_by_formula(monkeypatch)
    assert admitted_ms(30, ahead, [0.0, 0.5], [16, 16])[1] == want_ms


@pytest.mark.parametrize("scheduler", ["vllm", "trtllm"])
def test_others_look_at_every_step(scheduler: str) -> None:
    with pytest.raises(ValidationError, match=f"scheduler_recv_interval is 2 where scheduler is {scheduler}"):
        Scheduling.model_validate({"scheduler": scheduler, "scheduler_recv_interval": 2})
