"""Perplexity's MoE kernels over host-proxy RDMA, 8 x H200 per node: dispatch and combine of DeepSeek-V3."""

from __future__ import annotations

from simulator.scenario import RoutingSpec, Scenario
from workloads.pplx_moe import DISPATCH_COMBINE, Knobs, Tokens


def efa_ep32() -> Scenario:
    """Dispatch and combine over EFA, EP32, 128 tokens per rank, random routing."""
    return Scenario(
        title="MoE dispatch + combine over EFA, EP32, 128 tokens",
        machine="p5en_h200",
        model="deepseek_r1",
        kernels="pplx_2025",
        cards=32,
        batch=Tokens(),
        routing=RoutingSpec(skew=0.0),
        knobs=Knobs(),
        workload=DISPATCH_COMBINE,
    )
