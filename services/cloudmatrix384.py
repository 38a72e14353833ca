"""DeepSeek-R1 on CloudMatrix384: prefill on instances of 16 cards, decode on one of 144 cards with EP288.

Published by Huawei, "DeepSeek V3/R1 inference deployment best practice on Ascend servers" (2025): the two kinds of
instances, 8 prompts of 2K tokens in a step of one that prefills, 96 requests a card in one that decodes, an API server
for each data-parallel group, and a router that knows lengths and caches. How many instances prefill is not published:
the cards that are left of 384 make 15.
"""

from __future__ import annotations

from scenarios import cm384_decode, cm384_prefill
from simulator.serving.settings import CacheSettings, Front, Instances, Load, Scheduling, Service
from simulator.study.scenario import Scenario
from workloads.cm384_decode import Knobs

PREFILL_CARDS, DECODE_CARDS, CARDS = 16, 144, 384
TOKENS = 8 * 2048  # of prompts in a step, as published
REQUESTS = 96 // 2  # of a die, as published
BLOCK = 128
"""Tokens of a block of the cache: assumed, what vLLM's plugin for Ascend takes. A prompt wastes half a block, 64 tokens
of 3K, and nothing else depends on it."""
LAYERS = 3  # that are simulated for all that are alike


def service() -> Service:
    """15 instances of 16 cards that prefill, one of 144 cards that decodes."""
    return Service(
        title="DeepSeek-R1 on CloudMatrix384: 15 x 16 cards prefill, 144 cards decode",
        prefill=prefill_instances((CARDS - DECODE_CARDS) // PREFILL_CARDS, cm384_prefill.converted()),
        engines=Instances(
            step=_decode_step(),
            simplified={"routing.skew": "none"},
            scheduling=Scheduling(max_num_seqs=REQUESTS, enable_chunked_prefill=False),
            cache=CacheSettings(block_size=BLOCK, enable_prefix_caching=False),
        ),
        front=Front(api_servers=2 * DECODE_CARDS, router="length_aware"),
        load=Load(requests=1024, concurrency=1024, input_tokens=3200, output_tokens=256, range_ratio=0.5),
    )


def prefill_instances(count: int, step: Scenario) -> Instances:
    """So many that prefill. Prompts come in chunks where they are longer than a step: assumed, published steps have
    prompts of 2K to 4K tokens."""
    return Instances(
        count=count,
        step=step.variant(expected=(), studies=()),
        scheduling=Scheduling(max_num_batched_tokens=TOKENS),
        cache=CacheSettings(block_size=BLOCK),
    )


def _decode_step() -> Scenario:
    """Of the published iteration. Experts are drawn where a step is simulated as it is, and evenly loaded where step
    times are interpolated: with drawn ones every die is of its own kind."""
    step = cm384_decode.decode_50ms()
    return step.variant(expected=(), studies=(), knobs=Knobs(layers=LAYERS))
