"""Atlas A3, 16 cards = 32 dies: prefill of DeepSeek-R1, 64 prompts of 4K tokens, balanced experts.

Published by Huawei's cann-recipes-infer, "DeepSeek-R1 prefill optimisation on Atlas A3".
"""

from __future__ import annotations

from simulator.scenario import Expected, Layout, Prompts, Scenario
from workloads.a3_prefill import DATA_PARALLEL, MICRO_BATCH, SP_TP_SP, Knobs

SOURCE = "cann-recipes-infer, DeepSeek-R1 prefill optimisation on Atlas A3"


def dp() -> Scenario:
    """MLA data parallel, experts expert parallel, one stream: nothing is hidden."""
    return Scenario(
        title="Atlas A3 prefill: MLA DP32 + MoE EP32, one stream",
        machine="atlas_a3",
        model="deepseek_r1",
        kernels="cann_recipes_2025",
        cards=16,
        batch=Prompts(requests=64, prompt_tokens=4096),
        layout=Layout(expert_parallel=32),
        knobs=Knobs(),
        workload=DATA_PARALLEL,
        expected=(
            Expected(id="a3.prefill.dp", metric="latency_ms", value=3128, role="fit", note=SOURCE),
            Expected(id="a3.prefill.dp", metric="throughput_tok_s", value=83805, role="fit", note=SOURCE),
            Expected(id="a3.prefill.share", metric="communication_share", value=0.30, role="predict",
                     band=(0.25, 0.31), note=f"{SOURCE}: up to 30% before overlap"),
        ),
    )  # fmt: skip


def microbatch() -> Scenario:
    """Two micro-batches on two streams: dispatch and combine run under the other micro-batch's compute."""
    return dp().variant(
        title="Atlas A3 prefill: two micro-batches on two streams",
        workload=MICRO_BATCH,
        expected=(
            Expected(id="a3.prefill.microbatch", metric="latency_ms", value=2512, role="predict", note=SOURCE),
            Expected(id="a3.prefill.microbatch", metric="throughput_tok_s", value=104356, role="predict", note=SOURCE),
        ),
    )


def sp_tp_sp() -> Scenario:
    """Sequence parallel projections, tensor parallel attention: for few, long or uneven prompts; two micro-batches."""
    return dp().variant(title="Atlas A3 prefill: SP-TP-SP, two micro-batches", workload=SP_TP_SP, expected=())


def sp_tp_sp_one_stream() -> Scenario:
    """SP-TP-SP without micro-batches."""
    return sp_tp_sp().variant(title="Atlas A3 prefill: SP-TP-SP, one stream", knobs=Knobs(micro_batches=1))
