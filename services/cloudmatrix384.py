"""DeepSeek-R1 on CloudMatrix384: prefill on instances of 16 cards, decode on one of 144 cards with EP288.

Published by Huawei, "DeepSeek V3/R1 inference deployment best practice on Ascend servers" (2025): the two kinds of
instances, 8 prompts of 2K tokens in a step of one that prefills, 96 requests a card in one that decodes, an API server
for each data-parallel group, and a router that knows lengths and caches. How many instances prefill is not published:
the cards that are left of 384 make 15.
"""

from __future__ import annotations

from scenarios import cm384_decode, cm384_prefill
from simulator.serving.settings import CacheSettings, Front, Instances, Load, Pool, Scheduling, Service
from simulator.study.scenario import Scenario, Source
from workloads.cm384_decode import Knobs

PREFILL_CARDS, DECODE_CARDS, CARDS, NODES = 16, 144, 384, 48
TOKENS = 8 * 2048  # of prompts in a step, as published
REQUESTS = 96 // 2  # of a die, as published
BLOCK = 128
"""Tokens of a block of the cache: assumed, what vLLM's plugin for Ascend takes. A prompt wastes half a block, 64 tokens
of 3K, and nothing else depends on it."""
LAYERS = 3  # that are simulated for all that are alike
PROMPTS, PROMPT = 64, 4096  # of a step of 16 cards in the paper: 16,384 tokens a card
CONTEXTS = 16  # that prompts begin with: assumed

_expect = Source("CloudMatrix384 paper, arXiv 2506.12708, context caching").expects


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


def no_context_cache() -> Service:
    """One instance that prefills, whose users want one token; every prompt is computed whole."""
    prefill = prefill_instances(1, cm384_prefill.converted())
    cache = CacheSettings(block_size=BLOCK, tokens=PROMPTS * (PROMPT + BLOCK), enable_prefix_caching=False)
    return Service(
        title="DeepSeek-R1 on CloudMatrix384: 16 cards prefill, no context cache",
        engines=prefill.model_copy(
            update={"scheduling": Scheduling(max_num_batched_tokens=PROMPTS * PROMPT), "cache": cache}
        ),
        front=Front(api_servers=PROMPTS),
        load=Load(requests=16 * PROMPTS, concurrency=PROMPTS, input_tokens=PROMPT, output_tokens=1),
    )


def context_cache() -> Service:
    """The same with a context cache in the memory of the hosts, over the unified bus: half of every prompt lies there,
    and nothing stays in HBM for later prompts.

    Which prompts share what is not published: half of each is one of a few contexts.
    """
    plain, against = no_context_cache(), "cloudmatrix384:no_context_cache"
    note = (": half of every prompt is reused, against none; conditions are not known here, and a full step of 64"
            " prompts of 4K in flight is assumed, the pool on all 48 nodes. Half the tokens take 0.57 of the time, with"
            " 54 ms of loads (230 with a pool on the instance's two nodes: 1.64 and -39%); published are 0.66 to 0.70,"
            " as of shorter steps, which launches bound, or of a baseline that reuses something")
    return plain.model_copy(update={
        "title": "DeepSeek-R1 on CloudMatrix384: 16 cards prefill, half of their prompts from a context cache",
        "pool": Pool(size_gib=256.0, hosts=NODES),
        "load": plain.load.model_copy(update={"prefix_share": 0.5, "prefixes": CONTEXTS}),
        "expected": (_expect("cm384.cache", "request_throughput", 1.42, note, against=against),
                     _expect("cm384.cache", "time_to_first_token", 0.66, note, against=against)),
    })  # fmt: skip


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
