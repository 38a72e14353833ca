"""Any transformer on any mesh and machine: where `braid step` begins, and where the same words are settings.

Every token draws its experts, all of them as popular: few tokens then touch as many as in truth, which even routing
spreads over more. `routing.skew` makes some popular, and none spreads rows evenly.
"""

from __future__ import annotations

from simulator.parallel.mesh import Mesh
from simulator.study.scenario import RoutingSpec, Scenario
from workloads.transformer import TRANSFORMER, Knobs, Step


def decode() -> Scenario:
    """One decode iteration: Llama-3.1-70B on 8 H100, TP8, vLLM."""
    return Scenario(
        title="One step of a transformer",
        machine="dgx_h100",
        model="llama_3_1_70b",
        kernels="vllm",
        cards=8,
        batch=Step(requests=64),
        layout=Mesh(tp=8),
        routing=RoutingSpec(skew=0.0),
        knobs=Knobs(),
        workload=TRANSFORMER,
    )


def prefill() -> Scenario:
    """One prompt of 4096 tokens on the same."""
    return decode().variant(batch=Step(phase="prefill"))


def mixed() -> Scenario:
    """A chunk of a prompt beside requests that decode."""
    return decode().variant(batch=Step(phase="mixed", requests=64, prompt=2048))
