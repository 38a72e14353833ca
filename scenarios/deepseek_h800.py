"""DeepSeek's own H800 deployment of V3 and R1 on DeepEP, as deepseek-ai/profile-data describes it; no values are held.

Decode: EP128, 128 requests of 4K tokens per GPU in two micro-batches around low-latency kernels. Prefill: EP32, 16K
tokens of 4K prompts per GPU in two micro-batches beside normal kernels.
"""

from __future__ import annotations

from simulator.parallel.mesh import Mesh
from simulator.study.scenario import RoutingSpec, Scenario
from workloads.transformer import TRANSFORMER, Knobs, Step


def decode() -> Scenario:
    """One iteration: sends and receives of one micro-batch surround attention and experts of the other."""
    return Scenario(
        title="DeepSeek-V3 on 128 H800: decode with low-latency DeepEP, two micro-batches",
        machine="h800_cx7",
        model="deepseek_r1",
        kernels="pplx_2025",
        cards=128,
        batch=Step(requests=128 * 128),
        layout=Mesh(dp=128, ep=128),
        routing=RoutingSpec(skew=0.0),
        knobs=Knobs(schedule="hooks", exchange="deepep_ll", layers=3),
        workload=TRANSFORMER,
    )


def prefill() -> Scenario:
    """Four prompts per GPU: dispatch and combine of one micro-batch under the computation of the other."""
    return decode().variant(
        title="DeepSeek-V3 on 32 H800: prefill with normal DeepEP, two micro-batches",
        cards=32, batch=Step(phase="prefill", requests=4 * 32), layout=Mesh(dp=32, ep=32),
        knobs=Knobs(schedule="two_batches", exchange="deepep_normal", layers=3),
    )  # fmt: skip
