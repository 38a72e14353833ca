"""Atlas 800I A2, 4 nodes of 8 cards: decode of DeepSeek-R1 with INT8 weights and activations, BF16 cache, one MTP module."""

from __future__ import annotations

from simulator.scenario import Expected, Layout, Requests, Scenario
from workloads.a2_decode import ITERATION, Knobs


def decode_2k2k() -> Scenario:
    """72 requests per card, 2K in and 2K out."""
    return Scenario(
        title="Atlas A2 decode: 32 cards, 72 requests per card, 2K + 2K",
        machine="atlas_a2",
        model="deepseek_r1",
        kernels="cann_2025",
        cards=32,
        batch=Requests(per_card=72, prompt_tokens=2048, output_tokens=2048),
        layout=Layout(expert_parallel=32, tensor_parallel=8),
        knobs=Knobs(),
        workload=ITERATION,
    )
