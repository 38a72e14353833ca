"""Atlas 800I A2, 2 nodes of 8 cards: prefill of DeepSeek-R1, 8 prompts of 2K tokens, step by step as it was built.

Published in Huawei's "DeepSeek V3/R1 inference deployment best practice on Ascend servers" (2025).
"""

from __future__ import annotations

from simulator.study.scenario import Layout, Prompts, Scenario, Source, Study
from workloads.a2_prefill import PREFILL, Knobs

_expect = Source("Huawei, DeepSeek V3/R1 inference deployment best practice on Ascend servers, 2025").expects


def convert() -> Scenario:
    """Layer-internal parallel conversion: tokens split for projections, heads for attention, o_proj over two nodes."""
    return Scenario(
        title="Atlas A2 prefill: 16 cards, 8 x 2K tokens",
        machine="atlas_a2",
        model="deepseek_r1",
        kernels="cann_2025",
        cards=16,
        batch=Prompts(requests=8, prompt_tokens=2048),
        layout=Layout(expert_parallel=16, tensor_parallel=8),
        knobs=Knobs(),
        workload=PREFILL,
        expected=(
            _expect("a2.prefill", "latency_ms", 631),
            _expect("a2.prefill", "throughput_tok_s_per_card", 1622),
            _expect("a2.prefill.convert", "throughput_tok_s_per_card", 1.10, ": more than +10%",
                    against="a2_prefill:flashcomm", band=(1.10, None)),
            _expect("a2.prefill.convert", "sent_node_attention_mb", 0.29, ": 21504 to 6272 bytes per token",
                    against="a2_prefill:flashcomm"),
        ),
    )  # fmt: skip


def flashcomm() -> Scenario:
    """ReduceScatter in BF16 and AllGather in INT8 on both sides of MLA, instead of AllReduces."""
    return convert().variant(
        title="Atlas A2 prefill: FlashComm",
        knobs=Knobs(split="flashcomm"),
        expected=(
            _expect("a2.prefill.flashcomm", "throughput_tok_s_per_card", 1.10, ": +10% or better",
                    against="a2_prefill:all_reduce", band=(1.10, None)),
            _expect("a2.prefill.flashcomm", "sent_node_attention_mb", 0.75, ": volume -25%",
                    against="a2_prefill:all_reduce"),
        ),
    )  # fmt: skip


def all_reduce() -> Scenario:
    """The baseline: hidden states replicated, an AllReduce after attention and one after the MoE."""
    return convert().variant(title="Atlas A2 prefill: AllReduce", knobs=Knobs(split="all_reduce"), expected=())


def micro_batch() -> Scenario:
    """MLA data parallel, two micro-batches on two streams (the source's projection): two prompts per card, as whole
    prompts lie on a card and each micro-batch needs one."""
    return convert().variant(
        title="Atlas A2 prefill: two micro-batches, MLA DP",
        batch=Prompts(requests=32, prompt_tokens=2048),
        knobs=Knobs(split="micro_batch"),
        expected=(
            _expect("a2.prefill.microbatch", "throughput_tok_s_per_card", 3095,
                    ": a projection of the source, which gives no batch; the smallest one that has two micro-batches of"
                    " whole 2K prompts"),
        ),
        studies=(
            Study(
                title="Atlas A2 prefill in two micro-batches, by the number of 2K prompts on 16 cards",
                key="batch.requests",
                values=("16", "24", "32", "64"),
                metrics=("throughput_tok_s_per_card", "exposed_comm_ms"),
            ),
        ),
    )  # fmt: skip
