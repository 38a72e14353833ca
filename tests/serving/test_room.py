"""Blocks of those that decode come before those of prompts."""

from __future__ import annotations

from simulator.serving.cache import BlockCache
from simulator.serving.group import Group
from simulator.serving.schedulers import vllm
from simulator.serving.sequences import Sequence
from simulator.serving.settings import Scheduling

BLOCK = 16


def started(blocks: int) -> tuple[Group, Scheduling]:
    """One request of a whole block decodes, another one has computed a block of the four that its prompt takes."""
    group, settings = Group(BlockCache(blocks, BLOCK, False)), Scheduling(max_num_batched_tokens=2 * BLOCK)
    for request, tokens in ((0, BLOCK), (1, 4 * BLOCK)):
        group.waiting.append(Sequence(request, tokens, 1000, []))
        plan = vllm(group, settings)
        for one, new in plan.prompts:
            one.computed += new if request == 0 else BLOCK
        if request == 0:
            one = group.prefilling.pop()
            one.emitted = 1
            group.join(one)
    return group, settings


def test_a_chunk_leaves_the_blocks_that_the_step_begins() -> None:
    """Three blocks are held and one is free: the request that decodes begins a block in this step, so it is its."""
    group, settings = started(blocks=4)
    assert (group.cache.free, group.blocks_of(1)) == (1, 1)
    plan = vllm(group, settings)
    assert sum(new for _, new in plan.prompts) <= BLOCK, "no block beyond those that the prompt holds"
    assert group.cache.free >= group.blocks_of(1)
