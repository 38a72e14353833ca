"""Conversations as a load: turns wait for answers, share what was said, and keep a place in a closed loop."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from simulator.serving.loop import Loop
from simulator.serving.offered import Offered, drawn
from simulator.serving.record import Served
from simulator.serving.settings import Load
from tests.serving.services import BLOCK, instances, service, steps_by_formula

TURNS, NEW, OUT = 4, 64, 16


def offered(**more: float) -> Offered:
    load = {"requests": 40, "input_tokens": NEW, "output_tokens": OUT, "turns": TURNS} | more
    return drawn(Load.model_validate(load), seed=3, block_tokens=BLOCK)


def served(load: Offered) -> Served:
    return Loop(service(instances()), load.requests, concurrency=load.concurrency, steps="lattice").run()


def before(served: Served) -> tuple[np.ndarray, np.ndarray]:
    """Later turns, and the turn before each."""
    later = np.flatnonzero(served.requests.after >= 0)
    return later, served.requests.after[later]


def test_a_prompt_is_all_that_was_said_and_something_new() -> None:
    requests = offered(concurrency=2).requests
    assert len(requests) == 40
    assert sorted(requests.input_tokens.tolist()) == sorted(10 * [NEW + (NEW + OUT) * turn for turn in range(TURNS)])


def test_the_last_conversation_may_be_shorter() -> None:
    requests = offered(requests=10, concurrency=2).requests
    assert len(requests) == 10
    assert int((requests.after < 0).sum()) == 3


@pytest.mark.parametrize("load", [{"concurrency": 3}, {"rate": 50.0}, {"rate": 50.0, "think_s": 0.1}], ids=str)
def test_a_turn_waits_for_the_answer_and_is_thought_about(load: dict[str, float],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    steps_by_formula(monkeypatch)
    found = served(offered(**load))
    assert found.done.all()
    later, turn = before(found)
    pause_s = (found.times["arrival"][later] - found.times["last_token"][turn]) / 1e12
    assert (pause_s >= found.requests.think_s[later] - 1e-9).all()


def test_turns_find_the_ones_before_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)
    found = served(offered(concurrency=2))
    later, turn = before(found)
    said = found.requests.input_tokens[turn] + OUT - 1  # the last token has no keys and values
    assert (found.cached_tokens[later] == said // BLOCK * BLOCK).all()


@pytest.mark.parametrize("think_s", [0.0, 0.05])
def test_a_closed_loop_has_so_many_conversations_at_once(think_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)
    found = served(offered(concurrency=3, think_s=think_s))
    assert found.done.all()
    first = np.flatnonzero(found.requests.after < 0)
    last = np.setdiff1d(np.arange(40), found.requests.after)
    begins, ends = found.times["arrival"][first], np.sort(found.times["last_token"][last])
    at_once = [int((begins <= at).sum() - (ends <= at).sum()) for at in begins]
    assert max(at_once) == 3
    np.testing.assert_array_equal(np.sort(begins)[3:], ends[:-3], "one begins when another one is over")


def test_turns_come_as_often_as_is_asked() -> None:
    load = offered(rate=20.0, requests=4000)
    assert 4000 / float(load.requests.arrival_s.max()) == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize(("wrong", "says"), [
    ({"turns": 2, "prefix_share": 0.5}, "prefix_share is 0.5 beside turns of 2"),
    ({"think_s": 1.0}, "think_s is 1 where turns is 1"), ({"turns": 0}, "greater than 0"),
])  # fmt: skip
def test_what_cannot_be_is_refused(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Load.model_validate(wrong)
