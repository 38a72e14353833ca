"""Atlas 800I A2, 2 nodes of 8 cards: prefill of DeepSeek-R1, 8 prompts of 2K tokens, step by step as it was built.

Published in Huawei's "DeepSeek V3/R1 inference deployment best practice on Ascend servers" (2025); latencies of the
AllReduce baseline and of FlashComm in Huawei's report on FlashComm (2025).
"""

from __future__ import annotations

from simulator.study.scenario import Layout, Prompts, Scenario, Source, Study
from workloads.a2_prefill import PREFILL, Knobs

_expect = Source("Huawei, DeepSeek V3/R1 inference deployment best practice on Ascend servers, 2025").expects
_expect_flashcomm = Source("Huawei, FlashComm: communication optimisation in LLM inference on Ascend, 2025").expects
_RATE = (": half of the baseline is communication. What FlashComm saves is too much by a fifth, too (309 ms, published"
         " 252): the mesh is too slow, at rates fitted on decode (a2.decode.2k2k)")  # fmt: skip


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
            _expect_flashcomm("a2.flashcomm.8x2k", "latency_ms", 699, _RATE),
        ),
    )  # fmt: skip


def all_reduce() -> Scenario:
    """The baseline: hidden states replicated, an AllReduce after attention and one after the MoE."""
    return convert().variant(
        title="Atlas A2 prefill: AllReduce",
        knobs=Knobs(split="all_reduce"),
        expected=(_expect_flashcomm("a2.flashcomm.8x2k", "latency_ms", 951, _RATE),),
        studies=(
            Study(
                title="Atlas A2 prefill: what the mesh carries from 30 MB per link on, as fitted on a2.decode.2k2k,"
                " before that fit (0.6 of 196 GB/s), and at 0.7, which Ascend's own model takes for all sizes",
                key="machine.collectives.sdma.ladder.default.1.rate",
                values=("98.3 GB/s", "117.6 GB/s", "137.2 GB/s"),
                metrics=("latency_ms",),
                beside=("a2_prefill:flashcomm", "a2_prefill:convert"),
            ),
            Study(
                title="Atlas A2 prefill: start-up of collectives that a host launches one by one",
                key="machine.collectives.sdma.startup_eager",
                values=("10 us", "60 us", "120 us"),
                metrics=("latency_ms",),
                beside=("a2_prefill:flashcomm", "a2_prefill:convert"),
            ),
            Study(
                title="Atlas A2 prefill: the sources do not name the die",
                key="machine",
                values=("atlas_a2", "atlas_a2_313t", "atlas_a2_280t"),
                metrics=("latency_ms",),
                beside=("a2_prefill:flashcomm", "a2_prefill:convert"),
            ),
        ),
    )


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
