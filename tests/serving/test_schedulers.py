"""Who is worked on in a step: the limits and rules of vLLM, SGLang and TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from simulator.serving.cache import BlockCache
from simulator.serving.group import Group
from simulator.serving.growth import Drafted
from simulator.serving.schedulers import SCHEDULERS, Plan, sglang, trtllm, vllm
from simulator.serving.sequences import Sequence
from simulator.serving.settings import Scheduling
from tests.serving.services import drawn, instances, run, service, steps_by_formula

ALL = pytest.mark.parametrize("name", SCHEDULERS)


def group(lengths: Iterable[tuple[int, int]], blocks: int = 1000) -> Group:
    """A group with so many blocks, and requests of (prompt, output) tokens that wait."""
    made = Group(BlockCache(blocks, 16, True))
    made.waiting.extend(Sequence(number, prompt, output, []) for number, (prompt, output) in enumerate(lengths))
    return made


def end(of: Group, plan: Plan) -> None:
    """The step of a plan is over."""
    for one, new in plan.prompts:
        one.computed += new
    if plan.decode:
        of.decode(1)
    for one, _ in plan.prompts:
        if not one.new:
            of.prefilling.remove(one)
            one.emitted += 1
            of.join(one)


def said(plan: Plan) -> list[tuple[int, int]]:
    return [(one.request, new) for one, new in plan.prompts]


@ALL
def test_a_budget_of_tokens_and_of_requests(name: str) -> None:
    of, settings = group([(60, 9)] * 5), Scheduling(max_num_batched_tokens=100, max_num_seqs=4)
    plan = SCHEDULERS[name](of, settings)
    assert said(plan) == [(0, 60), (1, 40)]
    end(of, plan)
    plan = SCHEDULERS[name](of, settings)
    rows = len(of.decoding) if plan.decode else 0
    assert said(plan) == [(1, 20), (2, 60), (3, 20 - rows)]
    assert len(of.waiting) == 1, "four run"
    assert of.running == 4


@pytest.mark.parametrize("schedule", [vllm, trtllm])
def test_draft_tokens_count_in_the_budget(schedule: Any) -> None:
    of = Group(BlockCache(1000, 16, True), Drafted(16, 3, 0.5, seed=0))
    of.waiting.extend(Sequence(number, 60, 9, []) for number in range(3))
    settings = Scheduling(max_num_batched_tokens=60)
    end(of, schedule(of, settings))
    assert len(of.decoding) == 1
    assert said(schedule(of, settings)) == [(1, 60 - 4)]


@ALL
def test_whole_prompts_alone_where_chunks_are_off(name: str) -> None:
    of = group([(60, 9), (60, 9), (300, 9)])
    settings = Scheduling(max_num_batched_tokens=100, enable_chunked_prefill=False)
    seen = []
    while of.waiting or of.decoding:
        plan = SCHEDULERS[name](of, settings)
        seen += [said(plan)] if plan.prompts else []
        end(of, plan)
    assert seen == [[(0, 60)], [(1, 60)], [(2, 300)]], "one that is longer than the budget has a step of its own"


def test_a_long_prompt_leaves_room_for_others() -> None:
    of, settings = group([(500, 9), (50, 9)]), Scheduling(max_num_batched_tokens=200, long_prefill_token_threshold=120)
    plan = vllm(of, settings)
    assert said(plan) == [(0, 120), (1, 50)]
    end(of, plan)
    assert said(vllm(of, settings)) == [(0, 120)]


def test_vllm_mixes_and_sglang_prefills_first() -> None:
    for scheduler, together in ((vllm, True), (trtllm, True), (sglang, False)):
        of, settings = group([(60, 9), (60, 9)]), Scheduling(max_num_batched_tokens=60)
        end(of, scheduler(of, settings))
        plan = scheduler(of, settings)
        assert plan.decode is together
        assert said(plan) == [(1, 59 if together else 60)]


@ALL
def test_a_prefix_that_is_cached_is_not_computed(name: str) -> None:
    of = group([])
    of.waiting.extend([Sequence(0, 100, 9, [1, 2, 3, 4, 5, 6]), Sequence(1, 100, 9, [1, 2, 3, 4, 7, 8]),
                       Sequence(2, 96, 9, [1, 2, 3, 4, 5, 6])])  # fmt: skip
    plan = SCHEDULERS[name](of, Scheduling())
    assert said(plan) == [(0, 100), (1, 36), (2, 1)], "of a prompt that is there whole, the last token is computed"
    assert of.cache.used == 7 + 3


@ALL
def test_a_hash_of_more_tokens_than_the_prompt_has_is_no_hit(name: str) -> None:
    """A hash of 64 tokens is in the cache as the end of a longer prompt; of the first 32 of its tokens nothing is."""
    of = Group(BlockCache(100, 16, True, 64))
    of.waiting.extend([Sequence(0, 128, 9, [1, 2]), Sequence(1, 96, 9, [1, 2])])
    assert said(SCHEDULERS[name](of, Scheduling())) == [(0, 128), (1, 32)]


def test_vllm_preempts_the_last_to_come_and_computes_it_again() -> None:
    of, settings = group([(31, 40), (31, 40)], blocks=5), Scheduling()
    for _ in range(2):
        end(of, vllm(of, settings))
    assert of.cache.used == 4
    plan = vllm(of, settings)  # both begin a block, one is there
    assert [one.request for one in plan.preempted] == [1]
    assert plan.decode
    assert not plan.prompts
    assert of.waiting[0].prompt == 31 + 2, "the prompt and what was generated"
    while of.decoding:
        end(of, Plan([], True, []))
    assert said(vllm(of, settings)) == [(1, 33)]


def test_prompts_that_hold_all_blocks_give_way() -> None:
    """Two prompts of six blocks go on in chunks of 24 tokens each in nine blocks: the second one stops."""
    of = group([(96, 2), (96, 2)], blocks=9)
    settings = Scheduling(max_num_batched_tokens=48, long_prefill_token_threshold=24)
    gone, steps = [], 0
    while of.running or of.waiting:
        plan = vllm(of, settings)
        gone += [one.request for one in plan.preempted]
        assert plan.prompts or plan.decode, "something goes on"
        end(of, plan)
        steps += 1
    assert gone == [1]
    assert of.cache.used == of.promised == 0


def test_room_for_decode_is_kept_while_prompts_go_on() -> None:
    of = group([(16, 40), (200, 2)], blocks=4)
    settings = Scheduling(max_num_batched_tokens=17)
    end(of, vllm(of, settings))
    for _ in range(20):
        end(of, vllm(of, settings))
    assert of.decoding[0].emitted + of.decoded == 21, "the first one decodes in every step"


@ALL
def test_who_is_let_in_takes_blocks_that_only_the_cache_has(name: str) -> None:
    """All six blocks are what an earlier prompt left. The next one shares four of them, and needs a fifth: none of them
    is room for another one."""
    of = group([], blocks=8)
    of.cache.take(9, [1, 2, 3, 4, 5, 6], 6)
    of.cache.release(9)
    of.waiting.extend([Sequence(0, 70, 9, [1, 2, 3, 4]), Sequence(1, 60, 2, [])])
    SCHEDULERS[name](of, Scheduling())
    assert of.cache.used == 5
    assert [one.request for one in of.waiting] == [1]


def test_trtllm_lets_in_what_can_never_run_out_of_room() -> None:
    """20 blocks: a request has five in the end, so four run, whether prompts come whole or in chunks."""
    for most in (8192, 48):
        of = group([(40, 40)] * 6, blocks=20)
        settings = Scheduling(max_num_batched_tokens=most)
        for _ in range(10):
            plan = trtllm(of, settings)
            assert not plan.preempted
            end(of, plan)
        assert of.running == 4
        assert of.cache.used + of.promised == 20


def test_sglang_keeps_a_part_of_what_is_to_come_free() -> None:
    """The first request may still generate 159 tokens, of which 0.7 are 7 blocks, and the second one needs 10: of 20
    blocks, with 1 held, 19 are free, and 7 + 10 fit; of 18 they do not, and are looked at when one has gone."""
    for blocks, comes_in in ((18, True), (17, False)):
        of, settings = group([(16, 160)], blocks=blocks), Scheduling(scheduler="sglang")
        end(of, sglang(of, settings))
        of.waiting.append(Sequence(1, 80, 80, []))
        assert bool(sglang(of, settings).prompts) is comes_in
        assert of.full is not comes_in


@pytest.mark.parametrize("case", [{"max_num_seqs": 5}, {"max_num_batched_tokens": 100}, {"scheduler": "sglang"},
                                  {"scheduler": "trtllm", "max_num_seqs": 7}])  # fmt: skip
def test_limits_hold_in_every_step_of_a_service(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)
    served = run(service(instances(**case)), drawn(60, 8))
    steps, settings = served.steps, Scheduling(**case)
    assert steps["decoding"].max() <= settings.max_num_seqs
    assert (steps["decoding"] + steps["prefill_tokens"]).max() <= settings.max_num_batched_tokens
    mixed = (steps["decoding"] > 0) & (steps["prefill_tokens"] > 0)
    assert mixed.any() == (settings.scheduler != "sglang")
    assert np.all((steps["decoding"] > 0) | (steps["prefill_tokens"] > 0))


def test_by_priority_the_last_of_the_least_is_preempted() -> None:
    of = Group(BlockCache(8, 16, True), by_priority=True)
    for number, priority in enumerate((2, 0, 2, 1)):
        of.add(Sequence(number, 31, 40, [], priority=priority))
    settings = Scheduling(policy="priority")
    assert [one.request for one in of.waiting] == [1, 3, 0, 2]
    for _ in range(2):
        end(of, vllm(of, settings))
    plan = vllm(of, settings)
    assert [one.request for one in plan.preempted] == [2, 0]
    assert [one.request for one in of.waiting] == [0, 2], "before others of its priority"


def test_sglang_preempts_for_a_priority_that_is_higher_by_far() -> None:
    for threshold, gone in ((0, [2, 1]), (9, [2, 1]), (10, []), (20, [])):
        settings = Scheduling(scheduler="sglang", policy="priority", max_num_seqs=3,
                              priority_scheduling_preemption_threshold=threshold)  # fmt: skip
        of = Group(BlockCache(21, 16, True), by_priority=True)
        for number, priority in enumerate((1, 10, 20)):
            of.add(Sequence(number, 64, 40, [], priority=priority))
        end(of, sglang(of, settings))
        of.add(Sequence(3, 150, 10, [], priority=0))
        plan = sglang(of, settings)
        assert [one.request for one in plan.preempted] == gone, "without the second one the first is not room enough"
        assert said(plan) == ([(3, 150)] if gone else [])


def test_sglang_takes_the_longest_prefix_first_while_few_wait() -> None:
    settings = Scheduling(scheduler="sglang", policy="lpm", max_num_seqs=1)
    for others, first in ((0, 2), (126, 2), (127, 0)):
        of = group([])
        of.cache.take(99, [1, 2, 3, 4], 4)
        of.waiting.extend([Sequence(0, 70, 9, [7, 8]), Sequence(1, 70, 9, [1, 2, 9]), Sequence(2, 70, 9, [1, 2, 3])])
        of.waiting.extend(Sequence(3 + number, 70, 9, []) for number in range(others - 1))
        assert said(sglang(of, settings))[0][0] == first


def test_a_policy_that_a_scheduler_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="policy is lpm where scheduler is vllm: it is of sglang"):
        Scheduling(policy="lpm")
