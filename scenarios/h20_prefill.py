"""Prompts on H20 with SGLang: DeepSeek-R1 on a node as Ant Group deployed it, and Qwen3-8B as InferSim measured it.

DeepSeek: TP8, FlashAttention 3, chunks of 16,384 tokens (the launch flags of the LMSYS blog of 2025-09-26), here four
prompts of 4096. AllReduce beyond 8 MiB is NCCL's, whose rings are (`NCCL_NVLS_ENABLE` is 0 unless asked for).
"""

from __future__ import annotations

from simulator.parallel.mesh import Mesh
from simulator.study.scenario import RoutingSpec, Scenario, Source, Study
from workloads.transformer import TRANSFORMER, Knobs, Step

_blog = Source("SGLang and Ant Group on H20, LMSYS blog, 2025-09").expects
_infersim = Source("InferSim (alibaba/InferSim at f2293da), README").expects
TOO_FAST_TO_BE_TRUE = (
    ": with arithmetic at 100% of the published peaks, passes and AllReduces as simulated, it would be 16.0 thousand; "
    "either not all 4096 tokens of a prompt were computed (the prefix cache is on), or more overlaps than the code says"
)


def deepseek() -> Scenario:
    """DeepSeek-R1 in FP8 on 8 H20, four prompts in a chunk."""
    return Scenario(
        title="SGLang on 8 x H20: prefill of DeepSeek-R1 with TP8",
        machine="h20_node",
        model="deepseek_r1",
        kernels="sglang_2025",
        cards=8,
        batch=Step(phase="prefill", requests=4, context=4096),
        layout=Mesh(tp=8),
        routing=RoutingSpec(skew=0.0),
        knobs=Knobs(precision=("all=fp8_block",), reducing_mb=8.39, layers=3),
        workload=TRANSFORMER,
        expected=(_blog("h20.prefill.tp8", "throughput_tok_s", 16500, TOO_FAST_TO_BE_TRUE),),
        studies=(
            Study(
                title="What sliced experts reach of H20's peak, of which no times are public: as on H100; derived; as "
                "DeepGEMM on it; all",
                key="machine.kernels.sglang_2025.fused_gemm_fp8.compute_share",
                values=("0.418", "0.831", "0.916", "1.0"),
                metrics=("throughput_tok_s",),
            ),
        ),
    )  # fmt: skip


def qwen3_8b() -> Scenario:
    """Qwen3-8B in FP8 on one H20, one prompt."""
    return deepseek().variant(
        title="One H20: prefill of Qwen3-8B",
        model="qwen3_8b", cards=1, batch=Step(phase="prefill", context=4096), layout=Mesh(),
        knobs=Knobs(precision=("all=fp8_block",)), studies=(),
        expected=(_infersim("h20.qwen3_8b.prefill", "throughput_tok_s", 15061, ": of how many tokens is not said"),),
    )  # fmt: skip
