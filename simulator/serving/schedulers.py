"""Who is worked on in the next step of a data-parallel group, by the rules of vLLM, SGLang and TensorRT-LLM.

A scheduler is a function of a group: it takes requests out of those that wait, holds blocks for them, and gives the
prompts, or chunks of them, of the next step, and whether those that decode get a token in it.

* vllm: all that decode, and beside them prompts within the token budget, those first that have begun (V1:
  vllm/v1/core/sched/scheduler.py). Where a block is missing the last one that came is preempted and computed again.
* sglang: prompts alone while there are any that fit, else decode (`get_next_batch_to_run` of
  sglang/srt/managers/scheduler.py); room is kept for a part of the tokens that requests may still generate.
* trtllm: all that decode, and beside them whole prompts, or chunks, within the budget; a request comes in only if it
  can never run out of room (GUARANTEED_NO_EVICT).

Where prompts that have begun hold all blocks, and nothing can go on, the last of them gives way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simulator.serving.group import Group
from simulator.serving.sequences import Sequence
from simulator.serving.settings import Scheduling

NEW_TOKEN_RATIO = 0.7
"""Of the tokens that a request may still generate SGLang keeps so many free when it lets another one in
(SGLANG_INIT_NEW_TOKEN_RATIO, sglang/srt/environ.py, with schedule_conservativeness 1)."""


class Plan(NamedTuple):
    """Of one step. prompts: (request, new tokens); decode: whether those that decode get a token; preempted: requests
    that gave back their blocks before it."""

    prompts: list[tuple[Sequence, int]]
    decode: bool
    preempted: list[Sequence]


def vllm(group: Group, settings: Scheduling) -> Plan:
    """Decode and prompts in one step."""
    preempted = _make_room(group)
    budget = settings.max_num_batched_tokens - len(group.decoding)
    prompts = _going_on(group, settings, budget, preempted)
    budget -= sum(new for _, new in prompts)
    spare = group.blocks_of(1)
    while group.waiting and budget > 0 and group.running < settings.max_num_seqs:
        new = _let_in(group, settings, budget, spare)
        if not new:
            break
        prompts.append((group.prefilling[-1], new))
        budget -= new
    return Plan(prompts, bool(group.decoding), preempted)


def sglang(group: Group, settings: Scheduling) -> Plan:
    """Prompts first. After one that lacked room none is looked at until another one has gone (`batch_is_full`)."""
    budget, preempted = settings.max_num_batched_tokens, list[Sequence]()
    prompts = _going_on(group, settings, budget, preempted)
    budget -= sum(new for _, new in prompts)
    while group.waiting and budget > 0 and group.running < settings.max_num_seqs and not group.full:
        new = _let_in(group, settings, budget, *_kept_free(group, settings, group.waiting[0]))
        if not new:
            group.full = _chunk(group.waiting[0].new, settings, budget) > 0
            break
        prompts.append((group.prefilling[-1], new))
        budget -= new
    if not prompts:
        preempted += _make_room(group)
    return Plan(prompts, bool(group.decoding) and not prompts, preempted)


def trtllm(group: Group, settings: Scheduling) -> Plan:
    """Decode and prompts in one step, of requests that will never lack a block."""
    if _held_back(group, settings):
        return Plan([], True, [])
    budget = settings.max_num_batched_tokens - len(group.decoding)
    prompts = _going_on(group, settings, budget, [])
    budget -= sum(new for _, new in prompts)
    while group.waiting and budget > 0 and group.running < settings.max_num_seqs:
        new = _let_in(group, settings, budget, group.promised, group.most_blocks(group.waiting[0]))
        if not new:
            break
        prompts.append((group.prefilling[-1], new))
        budget -= new
    return Plan(prompts, bool(group.decoding), [])


def _held_back(group: Group, settings: Scheduling) -> bool:
    """Whether prompts wait beside those that decode until more of them have come, for so many steps at most
    (`_waiting_requests` of tensorrt_llm/_torch/pyexecutor/py_executor.py)."""
    enough = settings.batch_wait_max_tokens_ratio * settings.max_num_batched_tokens
    few = group.decoding and group.waiting and group.queued_tokens + len(group.decoding) < enough
    group.waited = group.waited + 1 if few and group.waited < settings.batch_wait_timeout_iters else 0
    return group.waited > 0


def receiving(group: Group, settings: Scheduling) -> Plan:
    """Decode, of requests that were prefilled elsewhere: blocks are held before keys and values come."""
    for one in group.arrived:
        group.join(one)
    group.arrived.clear()
    preempted = _make_room(group)
    budget = settings.max_num_batched_tokens - len(group.decoding)
    prompts = _going_on(group, settings, budget, preempted)
    budget -= sum(new for _, new in prompts)
    spare = group.blocks_of(1)
    while group.waiting and group.running < settings.max_num_seqs:
        one = group.waiting[0]
        if one.preempted:  # computed again, here
            new = _let_in(group, settings, budget, spare)
            if not new:
                break
            prompts.append((group.prefilling[-1], new))
            budget -= new
            continue
        blocks = -(-one.prompt // group.block)
        if group.cache.take(one.request, [], blocks, spare) is None:
            break
        group.coming[one.request] = group.begin(one.prompt, blocks)
    return Plan(prompts, bool(group.decoding), preempted)


SCHEDULERS: dict[str, Callable[[Group, Scheduling], Plan]] = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm}
"""By name."""


def _make_room(group: Group) -> list[Sequence]:
    """Requests that give way until the others have room for a step."""
    found = []
    while group.decoding and group.blocks_of(1) > group.cache.free:
        found.append(preempt(group))
    return found


def preempt(group: Group) -> Sequence:
    """The last one that came stops, gives back its blocks, and waits before all others; all of it is computed again."""
    if group.prefilling:
        one = group.prefilling.pop()
        group.finish(one)
    else:
        one = group.decoding[next(reversed(group.decoding))]
        group.leave(one)
        one.preempted = True
    one.prompt, one.computed, one.blocks, one.scheduled = one.input + one.emitted, 0, 0, False
    group.add(one, first=True)
    return one


def _going_on(group: Group, settings: Scheduling, budget: int, gone: list[Sequence]) -> list[tuple[Sequence, int]]:
    """Chunks of prompts that have begun, in the order in which they came. Where these alone hold all blocks, and none
    can go on, the last ones are added to `gone`."""
    found = _chunks(group, settings, budget)
    while not found and len(group.prefilling) > 1 and not group.decoding:
        gone.append(preempt(group))
        found = _chunks(group, settings, budget)
    return found


def _chunks(group: Group, settings: Scheduling, budget: int) -> list[tuple[Sequence, int]]:
    found, spare = [], group.blocks_of(1)
    for one in group.prefilling:
        new = _chunk(one.new, settings, budget)
        more = -(-(one.computed + new) // group.block) - one.blocks
        if new < 1 or more + spare > group.cache.free or not group.grow(one, more):
            break
        found.append((one, new))
        budget -= new
    return found


def _let_in(group: Group, settings: Scheduling, budget: int, spare: int, whole: int = 0) -> int:
    """The first one that waits holds blocks and begins, if so many others stay free, and those that it lacks to
    `whole`: its new tokens in this step, 0 if it cannot begin."""
    one, hashed = group.waiting[0], group.block * group.cache.hash_blocks
    cached = min(group.cache.hit_blocks(one.hashes) * group.block, one.prompt // hashed * hashed, one.prompt - 1)
    new = _chunk(one.prompt - cached, settings, budget)
    if new < 1:
        return 0
    blocks = -(-(cached + new) // group.block)
    if group.cache.take(one.request, one.hashes, blocks, spare + max(whole - blocks, 0)) is None:
        return 0
    group.prefilling.append(group.begin(cached, blocks))
    return new


def _chunk(tokens: int, settings: Scheduling, budget: int) -> int:
    """Tokens of a prompt that fit into what is left of a step; 0 if it must wait."""
    if not settings.enable_chunked_prefill:
        alone = budget == settings.max_num_batched_tokens
        return tokens if tokens <= budget or alone else 0
    most = settings.long_prefill_token_threshold or tokens
    return min(tokens, most, budget)


def _kept_free(group: Group, settings: Scheduling, one: Sequence) -> tuple[int, int]:
    """Blocks that stay free for what those who decode may still generate, and that this one may have in all."""
    others = sum(-(-other.prompt // group.block) - other.blocks for other in group.prefilling)
    whole = -(-(one.prompt + min(one.output - one.emitted, settings.max_output_tokens)) // group.block)
    return others + -(-round(NEW_TOKEN_RATIO * group.to_come) // group.block), whole
