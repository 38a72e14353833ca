"""Who is worked on in the next step of a data-parallel group, by the rules of vLLM, SGLang and TensorRT-LLM.

A scheduler is a function of a group: it takes requests out of those that wait, holds blocks for them, and gives the
prompts, or chunks of them, of the next step, and whether those that decode get a token in it.

* vllm: all that decode, and beside them prompts within the token budget, those first that have begun (V1:
  vllm/v1/core/sched/scheduler.py). Where a block is missing the last one that came is preempted and computed again.
* sglang: prompts alone while there are any that fit, else decode (`get_next_batch_to_run` of
  sglang/srt/managers/scheduler.py); room is kept for a part of the tokens that requests may still generate.
* trtllm: all that decode, and beside them whole prompts, or chunks, within the budget; a request comes in only if it
  can never run out of room (GUARANTEED_NO_EVICT).

Where prompts that have begun hold all blocks, and nothing can go on, the last of them gives way. By priority
(`policy`), who waits is looked at from the smallest number on, by arrival where it is the same, and of those that run
the last one with the largest number gives way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from simulator.serving.group import Group
from simulator.serving.sequences import Sequence
from simulator.serving.settings import Scheduling

NEW_TOKEN_RATIO = 0.7
"""Of the tokens that a request may still generate SGLang keeps so many free when it lets another one in
(SGLANG_INIT_NEW_TOKEN_RATIO, sglang/srt/environ.py, with schedule_conservativeness 1)."""

LOADING = -1
"""Instead of new tokens: a prompt's blocks come from below HBM first."""

LPM_MOST = 128
"""Requests that wait, beyond which SGLang does not sort them (`_determine_active_policy`, schedule_policy.py)."""


class Plan(NamedTuple):
    """Of one step. prompts: (request, new tokens); decode: whether those that decode get a token; preempted: requests
    that gave back their blocks before it."""

    prompts: list[tuple[Sequence, int]]
    decode: bool
    preempted: list[Sequence]


DECODING = Plan([], decode=True, preempted=[])
"""Of a group that has nothing to decide."""


def vllm(group: Group, settings: Scheduling) -> Plan:
    """Decode and prompts in one step."""
    preempted = _make_room(group)
    budget = settings.max_num_batched_tokens - group.growth.queries * len(group.decoding)
    prompts = _going_on(group, settings, budget, preempted)
    budget -= sum(new for _, new in prompts)
    spare = group.blocks_of(1)
    while group.waiting and budget > 0 and group.running < settings.max_num_seqs:
        new = _let_in(group, settings, budget, spare)
        if not new:
            break
        if new == LOADING:
            continue
        prompts.append((group.prefilling[-1], new))
        budget -= new
    return Plan(prompts, bool(group.decoding), preempted)


def sglang(group: Group, settings: Scheduling) -> Plan:
    """Prompts first. After one that lacked room none is looked at until another one has gone (`batch_is_full`), but one
    of a priority that is higher by far: it preempts who runs (`preempt_to_schedule` of schedule_policy.py)."""
    if settings.policy == "lpm":
        _longest_prefix_first(group)
    budget, preempted = settings.max_num_batched_tokens, _give_way(group, settings)
    prompts = _going_on(group, settings, budget, preempted)
    budget -= sum(new for _, new in prompts)
    while group.waiting and budget > 0 and group.running < settings.max_num_seqs and not group.full:
        new = _let_in(group, settings, budget, *_kept_free(group, settings, group.waiting[0]))
        if not new:
            group.full = _chunk(group.waiting[0].new, settings, budget) > 0
            break
        if new == LOADING:
            continue
        prompts.append((group.prefilling[-1], new))
        budget -= new
    if not prompts:
        preempted += _make_room(group)
    return Plan(prompts, bool(group.decoding) and not prompts, preempted)


def trtllm(group: Group, settings: Scheduling) -> Plan:
    """Decode and prompts in one step, of requests that will never lack a block."""
    if _held_back(group, settings):
        return Plan([], True, [])
    budget = settings.max_num_batched_tokens - group.growth.queries * len(group.decoding)
    prompts = _going_on(group, settings, budget, [])
    budget -= sum(new for _, new in prompts)
    while group.waiting and budget > 0 and group.running < settings.max_num_seqs:
        new = _let_in(group, settings, budget, group.promised, group.most_blocks(group.waiting[0]))
        if not new:
            break
        if new == LOADING:
            continue
        prompts.append((group.prefilling[-1], new))
        budget -= new
    return Plan(prompts, bool(group.decoding), [])


def has_prompts(group: Group, settings: Scheduling) -> bool:
    """Whether `trtllm` would compute some of a prompt in the next step."""
    if group.prefilling:
        return True
    if not group.waiting or group.running >= settings.max_num_seqs:
        return False
    budget, one = settings.max_num_batched_tokens - len(group.decoding), group.waiting[0]
    room = group.cache.has_room(one.hashes, group.most_blocks(one), group.promised)
    return room and _first(group, settings, budget)[1] > 0


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
    budget = settings.max_num_batched_tokens - group.growth.queries * len(group.decoding)
    prompts = _going_on(group, settings, budget, preempted)
    budget -= sum(new for _, new in prompts)
    spare = group.blocks_of(1)
    while group.waiting and group.running < settings.max_num_seqs:
        one = group.waiting[0]
        if one.preempted:  # computed again, here
            new = _let_in(group, settings, budget, spare)
            if not new:
                break
            if new == LOADING:
                continue
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


def _longest_prefix_first(group: Group) -> None:
    """Who waits, by the tokens of its prompt that are cached (`_sort_by_longest_prefix`). A prefix that is shared with
    others that wait, and not cached, needs no order: here it is there as soon as the first of them begins."""
    if len(group.waiting) <= LPM_MOST:
        group.waiting = deque(sorted(group.waiting, key=lambda one: -group.cache.hit_blocks(one.hashes)))


def _give_way(group: Group, settings: Scheduling) -> list[Sequence]:
    """Requests that decode and give way to the first one that waits: those with the largest numbers, the last first, as
    many as it lacks room; none if all with a number that is larger by more than the threshold would be too few."""
    if not group.by_priority or not group.waiting:
        return []
    one = group.waiting[0]
    least = one.priority + settings.priority_scheduling_preemption_threshold
    others = [other for other in reversed(group.decoding.values()) if other.priority > least]
    kept, whole = _kept_free(group, settings, one)
    blocks, places = kept + whole - group.cache.free, group.running + 1 - settings.max_num_seqs
    found = list[Sequence]()
    for other in sorted(others, key=lambda other: -other.priority):
        if blocks <= 0 and places <= 0:
            break
        left = other.prompt + other.output - other.emitted - group.length(other)
        blocks -= -(-group.length(other) // group.block) + round(NEW_TOKEN_RATIO * left) // group.block
        places -= 1
        found.append(other)
    return [stopped(group, other) for other in found] if blocks <= 0 and places <= 0 else []


def _make_room(group: Group) -> list[Sequence]:
    """Requests that give way until the others have room for a step."""
    found = []
    while group.decoding and group.blocks_of(1) > group.cache.free:
        found.append(preempt(group))
    return found


def preempt(group: Group) -> Sequence:
    """The last one that came stops, of those with the largest priority number where that counts."""
    if not group.by_priority:
        return stopped(group, group.prefilling[-1] if group.prefilling else next(reversed(group.decoding.values())))
    running = [*group.decoding.values(), *group.prefilling]
    return stopped(group, max(reversed(running), key=lambda one: one.priority))


def stopped(group: Group, one: Sequence) -> Sequence:
    """It gives back its blocks, and waits before all others; all of it is computed again."""
    if one.request in group.decoding:
        group.leave(one)
        one.preempted = True
    else:
        group.prefilling.remove(one)
        group.finish(one)
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
        new = _cut(group, one, one.computed, _chunk(one.new, settings, budget))
        more = -(-(one.computed + new) // group.block) - one.blocks
        if new < 1 or more + spare > group.cache.free or not group.grow(one, more):
            break
        found.append((one, new))
        budget -= new
    return found


def _let_in(group: Group, settings: Scheduling, budget: int, spare: int, whole: int = 0) -> int:
    """The first one that waits holds blocks and begins, if so many others stay free, and those that it lacks to
    `whole`: its new tokens in this step, 0 if it cannot begin, or LOADING."""
    one = group.waiting[0]
    if group.below is not None and (runs := group.below.found(one)):
        taken = group.below.load(one, runs, spare, whole)
        if taken is None:
            return 0
        group.loading[one.request] = group.begin(*taken)
        return LOADING
    cached, new = _first(group, settings, budget)
    if new < 1:
        return 0
    blocks = -(-(cached + new) // group.block)
    if group.cache.take(one.request, one.hashes, blocks, spare + max(whole - blocks, 0)) is None:
        return 0
    group.prefilling.append(group.begin(cached, blocks))
    return new


def _first(group: Group, settings: Scheduling, budget: int) -> tuple[int, int]:
    """Of the first one that waits, the tokens that are cached, and those that a step could compute."""
    one, hashed = group.waiting[0], group.block * group.cache.hash_blocks
    cached = min(group.cache.hit_blocks(one.hashes) * group.block, one.prompt // hashed * hashed, one.prompt - 1)
    return cached, _cut(group, one, cached, _chunk(one.prompt - cached, settings, budget))


def _cut(group: Group, one: Sequence, computed: int, new: int) -> int:
    """Of so many new tokens of a prompt those up to the end of a block, of its last whole one at most, where states are
    kept there; what is behind that is a step of its own (`_mamba_block_aligned_split` of vllm/v1/core/sched/
    scheduler.py)."""
    last = one.prompt // group.block * group.block
    if not group.aligned or computed >= last:
        return new
    return min(new // group.block * group.block, last - computed)


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
