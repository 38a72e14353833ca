"""DeepSeek-R1 on Atlas A3: prefill on 16 cards as cann-recipes-infer publishes it, and decode as on CloudMatrix384.

The source has prefill alone, on two nodes, 64 prompts of 4K tokens in a step. Atlas A3 nodes are those of
CloudMatrix384, whose decode on 144 cards is the nearest that is published: 18 nodes, with the same dies and bus.
"""

from __future__ import annotations

from scenarios import a3_prefill
from services import cloudmatrix384
from simulator.serving.settings import Front, Load, Scheduling, Service

TOKENS = 64 * 4096  # of prompts in a step, as published


def service() -> Service:
    """Two instances of 16 cards that prefill, sequence parallel and with split heads, one of 144 that decodes."""
    decode = cloudmatrix384.service().engines
    prefill = cloudmatrix384.prefill_instances(2, a3_prefill.sp_tp_sp_one_stream())
    return Service(
        title="DeepSeek-R1 on Atlas A3: 2 x 16 cards prefill, 144 cards decode",
        prefill=prefill.model_copy(update={"scheduling": Scheduling(max_num_batched_tokens=TOKENS)}),
        engines=decode,
        front=Front(api_servers=2 * cloudmatrix384.DECODE_CARDS, router="length_aware"),
        load=Load(requests=256, concurrency=256, input_tokens=4096, output_tokens=256, range_ratio=0.5),
    )


def prefill_alone() -> Service:
    """One instance of 16 cards whose users want one token: what a queue of prompts does to the first token."""
    prefill = cloudmatrix384.prefill_instances(1, a3_prefill.sp_tp_sp_one_stream())
    return Service(
        title="DeepSeek-R1 on Atlas A3: 16 cards prefill",
        engines=prefill.model_copy(update={"scheduling": Scheduling(max_num_batched_tokens=TOKENS)}),
        load=Load(requests=256, concurrency=64, input_tokens=4096, output_tokens=1, range_ratio=0.5),
    )
