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


@pytest.mark.parametrize("ahead", [True, False])
def test_a_prompt_waits_for_the_next_look(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first decodes for 200 steps of 1 ms; those that come 20.5 ms later wait until 40 steps have passed since its
    prompt was computed, in steps that are neither fewer nor longer."""
    steps_by_formula(monkeypatch)
    requests = independent(np.array([0.0, 0.0205, 0.0305]), np.array([16, 16, 16]), np.array([LONG, 2, 2]))

    def admitted_ms(interval: int) -> list[float]:
        engines = instances(scheduler="sglang", scheduler_recv_interval=interval, async_scheduling=ahead)
        served = run(service(engines), requests)
        assert served.done.all()
        return [float(at) / 1e9 for at in served.times["admitted"]]

    often, seldom = admitted_ms(1), admitted_ms(40)
    assert often[0] == seldom[0]
    assert 20.5 < often[1] < 23
    assert 30.5 < often[2] < 33
    assert seldom[1] == seldom[2], "both are seen in one look"
    assert 40 < seldom[1] < 43


@pytest.mark.parametrize("scheduler", ["vllm", "trtllm"])
def test_others_look_at_every_step(scheduler: str) -> None:
    with pytest.raises(ValidationError, match=f"scheduler_recv_interval is 2 where scheduler is {scheduler}"):
        Scheduling.model_validate({"scheduler": scheduler, "scheduler_recv_interval": 2})
