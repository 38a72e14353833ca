"""Any transformer on any mesh and machine: where `braid step` begins, and where the same words are settings.

Every token draws its experts, of which some are more popular: `routing.skew`. Few tokens then touch as many as in
truth, which even routing (none) spreads over more.
"""

from __future__ import annotations

from simulator.parallel.mesh import Mesh
from simulator.study.scenario import RoutingSpec, Scenario
from workloads.transformer import TRANSFORMER, Knobs, Step

SKEW = 0.6
"""Of the popularity of experts, where nothing is known of it: as many are touched as by the `power_law_1.01` that
ai-dynamo/aiconfigurator (at 095f58a) lets stand for served loads in its tables (`braid calibrate`, "experts touched").
One document of code touches fewer: 72 to 95 of the 128 of gpt-oss-120b by 512 tokens (ggml-org/llama.cpp pull request
15346), as with 1.5 to 2."""


def decode() -> Scenario:
    """One decode iteration: Llama-3.1-70B on 8 H100, TP8, vLLM."""
    return Scenario(
        title="One step of {model}",
        machine="dgx_h100",
        model="llama_3_1_70b",
        kernels="vllm",
        cards=8,
        batch=Step(requests=64),
        layout=Mesh(tp=8),
        routing=RoutingSpec(skew=SKEW),
        knobs=Knobs(),
        workload=TRANSFORMER,
    )


def prefill() -> Scenario:
    """One prompt of 4096 tokens on the same."""
    return decode().variant(batch=Step(phase="prefill"))


def mixed() -> Scenario:
    """A chunk of a prompt beside requests that decode."""
    return decode().variant(batch=Step(phase="mixed", requests=64, prompt=2048))
