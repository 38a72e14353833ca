"""Requests that wait at an engine for any of its groups, and prompts that wait for those of other groups."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.serving.attention_dp import ContextWait, SharedQueue
from simulator.serving.cache import BlockCache
from simulator.serving.group import Group
from simulator.serving.outcome import outcome
from simulator.serving.requests import Requests, independent
from simulator.serving.schedulers import trtllm
from simulator.serving.sequences import Sequence
from simulator.serving.settings import Scheduling
from tests.serving.services import drawn, instances, run, service, steps_by_formula


def groups(count: int, blocks: int = 1000) -> list[Group]:
    return [Group(BlockCache(blocks, 16, True)) for _ in range(count)]


def waiting(of: list[Group]) -> list[list[int]]:
    return [[one.request for one in group.waiting] for group in of]


def queue(of: list[Group], most: int, prompts: list[int]) -> SharedQueue:
    made = SharedQueue(of, Scheduling(max_num_seqs=most))
    for number, prompt in enumerate(prompts):
        made.add(Sequence(number, prompt, 9, []))
    return made


def test_the_longest_goes_first_to_the_group_with_the_fewest_tokens() -> None:
    """1000 and 600 go to a group each, 500 to the one with 600, 100 to the one with 1000, and so many each."""
    of = groups(2)
    assert queue(of, 8, [100, 600, 1000, 500]).hand_out() == [0, 1]
    assert waiting(of) == [[2, 0], [1, 3]]
    assert [group.prompt_tokens for group in of] == [1100, 1100]


def test_no_more_leave_than_there_is_room_for_and_none_goes_to_a_group_that_has_most() -> None:
    of = groups(2)
    for number in (7, 8):
        of[0].add(Sequence(number, 10, 9, []))
    made = queue(of, 3, [40, 30, 20, 10, 5])
    assert made.hand_out() == [0, 1]
    assert [len(group.waiting) for group in of] == [3, 3]
    assert [one.request for one in made.waiting] == [4], "in the order in which they came"
    assert made.hand_out() == []


def test_by_priority_the_queue_is_in_its_order() -> None:
    made = SharedQueue(groups(1), Scheduling(policy="priority"))
    for number, priority in enumerate((1, 0, 2, 0)):
        made.add(Sequence(number, 10, 9, [], priority=priority))
    assert [one.request for one in made.waiting] == [1, 3, 0, 2]


def decided(wait: ContextWait, steps: int) -> str:
    """Step after step: held or not."""
    found = ""
    for _ in range(steps):
        wait.decide()
        found += ".H"[wait.held]
        wait.passed(1)
    return found


def decoding(of: list[Group]) -> list[Group]:
    """With a request each that decodes for long."""
    for number, group in enumerate(of):
        group.add(Sequence(100 + number, 10, 5000, []))
        trtllm(group, Scheduling(scheduler="trtllm"))
        group.join(group.prefilling.pop())
    return of


def scheduling(timeout: int, more: int = 0) -> Scheduling:
    config = {"enable_balance": True, "timeout_iters": timeout, "batching_wait_iters": more}
    return Scheduling.model_validate({"scheduler": "trtllm", "attention_dp_config": config})


def test_a_prompt_waits_for_those_of_other_groups_and_then_for_more() -> None:
    of = decoding(groups(3))
    wait = ContextWait(of, scheduling(50, more=4))
    assert decided(wait, 3) == "...", "nothing to hold back"
    of[0].add(Sequence(0, 50, 9, []))
    assert decided(wait, 5) == "HHHHH"
    for group in of[1:]:
        group.add(Sequence(1, 50, 9, []))
    assert decided(wait, 5) == "HHHH."


def test_the_count_goes_on_where_no_group_has_a_prompt() -> None:
    for before in range(7):
        of = decoding(groups(2))
        wait = ContextWait(of, scheduling(5))
        assert decided(wait, before) == "." * before
        of[0].add(Sequence(0, 50, 9, []))
        assert decided(wait, 6)[: 5 - before % 5] == "H" * (4 - before % 5) + ".", "the worked example of the module"


@pytest.mark.parametrize("steps", [1, 2, 7, 50, 123])
def test_steps_together_count_as_many(steps: int) -> None:
    one, other = (ContextWait(decoding(groups(2)), scheduling(5)) for _ in range(2))
    decided(one, steps)
    other.decide()
    other.passed(steps)
    for wait in (one, other):
        wait._groups[0].add(Sequence(0, 50, 9, []))
    assert decided(one, 5) == decided(other, 5)


def test_while_prompts_are_held_back_so_many_steps_are_alike() -> None:
    of = decoding(groups(2))
    wait = ContextWait(of, scheduling(9))
    of[0].add(Sequence(0, 50, 9, []))
    wait.decide()
    assert wait.held
    assert wait.steps == 8
    wait.passed(int(wait.steps))
    assert decided(wait, 1) == "."


def test_with_a_group_that_has_prompts_only_none_waits() -> None:
    of = groups(2)
    for number, group in enumerate(of):
        group.add(Sequence(number, 50, 9, []))
    assert decided(ContextWait(of, scheduling(50)), 3) == "..."


def with_one_group_that_lacks_room() -> list[Group]:
    return decoding([Group(BlockCache(400, 16, True)) for _ in range(2)])


def test_what_has_no_room_is_no_prompt() -> None:
    of = with_one_group_that_lacks_room()
    for group, tokens in zip(of, (50, 5000), strict=True):
        group.add(Sequence(9, tokens, 9000, []))
    assert decided(ContextWait(of, scheduling(4)), 4) == "....", "none has room for its output"


REQUESTS = drawn(120, 4, rate=4000.0)
EIGHT = {"mesh": "tp=1,dp=4", "scheduler": "trtllm", "max_num_seqs": 8}
CONFIG = {"enable_balance": True, "timeout_iters": 20, "batching_wait_iters": 0}


@pytest.fixture
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)


@pytest.mark.usefixtures("_formula")
@pytest.mark.parametrize("more", [{}, {"shared_queue": True}, {"attention_dp_config": CONFIG},
                                  {"shared_queue": True, "attention_dp_config": CONFIG},
                                  {"shared_queue": True, "attention_dp_config": CONFIG, "async_scheduling": True}])
def test_all_requests_are_served(more: dict[str, object]) -> None:
    served = run(service(instances(**EIGHT, **more)), REQUESTS)
    assert served.done.all()
    np.testing.assert_array_equal(served.emitted, REQUESTS.output_tokens)
    assert int(served.steps["decoding"].sum()) == int((REQUESTS.output_tokens - 1).sum())
    assert int(served.steps["prefill_tokens"].sum()) == int(REQUESTS.input_tokens.sum())


@pytest.mark.usefixtures("_formula")
def test_none_that_has_room_waits_longer_than_the_timeout() -> None:
    """With places for all, a request is scheduled within as many steps of its engine as the timeout has."""
    for timeout in (3, 20):
        config = CONFIG | {"timeout_iters": timeout}
        settings = EIGHT | {"max_num_seqs": 200}
        served = run(service(instances(**settings, shared_queue=True, attention_dp_config=config)), REQUESTS)
        steps, times = served.steps["start_ps"], served.times
        between = (np.searchsorted(steps, times["admitted"], side="left")
                   - np.searchsorted(steps, times["routed"], side="left"))  # fmt: skip
        assert between.max() <= timeout
        assert between.max() >= timeout - 1, "the case is of use"


@pytest.mark.usefixtures("_formula")
def test_waiting_makes_steps_even_and_the_first_token_later() -> None:
    lengths = np.random.default_rng(1).integers(20, 200, 300)
    requests = independent(np.zeros(300), np.full(300, 100), lengths)
    found = {}
    for name, config in (("at once", {}), ("waits", CONFIG)):
        engines = instances(**EIGHT, shared_queue=True, attention_dp_config=config)
        found[name] = outcome(run(service(engines), requests)).whole.metrics
    balance = [float(found[name]["attention_dp_balance_ratio"]["avg"]) for name in ("at once", "waits")]
    assert balance[1] > balance[0] + 0.03
    first = [float(found[name]["time_to_first_token"]["avg"]) for name in ("at once", "waits")]
    assert first[1] > first[0]


@pytest.mark.usefixtures("_formula")
def test_the_balance_of_steps_is_that_of_their_tokens() -> None:
    """Two requests of 100 and 60 tokens in two groups: 0.8 in the step of the prompts, then 1, then 0.5 alone."""
    requests = Requests(np.zeros(2), [100, 60], [3, 2], [], np.zeros(3), 0, [-1, -1], np.zeros(2), np.zeros(2))
    served = run(service(instances("tp=1,dp=2", scheduler="trtllm", shared_queue=True)), requests)
    block = outcome(served).whole.metrics["attention_dp_balance_ratio"]
    assert (block["max"], block["min"], block["count"]) == (1.0, 0.5, 3)
    assert block["avg"] == pytest.approx((0.8 + 1.0 + 0.5) / 3)
    assert "attention_dp_balance_ratio" not in outcome(run(service(), requests)).whole.metrics


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="enable_balance is true where scheduler is vllm: it is of trtllm"):
        Scheduling.model_validate({"attention_dp_config": {"enable_balance": True}})


@pytest.mark.usefixtures("_formula")
def test_an_engine_that_only_decodes_has_no_prompts_that_wait_for_each_other() -> None:
    """Its requests give way where blocks are missing, whatever the balance of prompts says."""
    decode = instances(mesh="tp=1,dp=2", tokens=640, scheduler="trtllm", attention_dp_config={"enable_balance": True})
    for seed in range(4):
        assert run(service(decode, prefill=instances(tokens=640)), drawn(60, seed, rate=4000)).done.all()
