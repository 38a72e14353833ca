"""DeepSeek-R1 on Atlas A3: prefill on 16 cards as cann-recipes-infer publishes it, 64 prompts of 4K tokens in a step.

The source has prefill alone, on two nodes; decode on this machine is not published.
"""

from __future__ import annotations

from scenarios import a3_prefill
from services import cloudmatrix384
from simulator.serving.settings import Load, Scheduling, Service

TOKENS = 64 * 4096  # of prompts in a step, as published


def prefill_alone() -> Service:
    """One instance of 16 cards whose users want one token: what a queue of prompts does to the first token."""
    prefill = cloudmatrix384.prefill_instances(1, a3_prefill.sp_tp_sp_one_stream())
    return Service(
        title="DeepSeek-R1 on Atlas A3: 16 cards prefill",
        engines=prefill.model_copy(update={"scheduling": Scheduling(max_num_batched_tokens=TOKENS)}),
        load=Load(requests=256, concurrency=64, input_tokens=4096, output_tokens=1, range_ratio=0.5),
    )
