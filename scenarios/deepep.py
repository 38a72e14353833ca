"""DeepEP on H800 with ConnectX-7: dispatch and combine of 128 (low-latency) or 4096 (normal kernels) tokens, by EP.

Published in the README of deepseek-ai/DeepEP (hidden 7168, top-8, dispatch FP8, combine BF16; remembered). The network
card is that of `pplx`, fitted on Perplexity's figures, and the GPU is H800's, whose NVLink has the rate that the normal
kernels reach inside one node. GPUs post the writes themselves: one per token copy, or one copy per node that goes on
over NVLink. Normal kernels were measured with tokens that keep to four nodes; their chunks are DeepEP's (remembered).
"""

from __future__ import annotations

from scenarios.pplx import cx7_ep32_gpu_initiated, prefill_reducing
from simulator.study.scenario import Scenario, Source, Study
from workloads.moe_exchange import ReducingKnobs

_expect = Source("DeepEP, README of deepseek-ai/DeepEP (remembered)").expects
NVLINK = ": the node's NVLink alone, at the rate of the normal kernels; these reach 98 of its 155 GB/s, 127 in combine"

NVLINK_DECIDES = ": NVLink, which passes 6.5 copies of a token on, takes longer than the wire, which takes half of two"


def _low_latency(ranks: int, dispatch_us: float, combine_us: float, note: str = "") -> Scenario:
    return cx7_ep32_gpu_initiated().variant(
        title=f"DeepEP low-latency dispatch + combine on H800, EP{ranks}, 128 tokens",
        machine="h800_cx7",
        cards=ranks,
        expected=(
            _expect("deepep.low_latency", "dispatch_us", dispatch_us, note),
            _expect("deepep.low_latency", "combine_us", combine_us, note),
        ),
    )


def ep8() -> Scenario:
    """EP8: one node, NVLink alone."""
    return _low_latency(8, 77, 114, NVLINK)


def ep16() -> Scenario:
    """EP16: two nodes."""
    return _low_latency(16, 118, 195)


def ep32() -> Scenario:
    """EP32: four nodes."""
    return _low_latency(32, 155, 273)


def ep64() -> Scenario:
    """EP64: eight nodes."""
    return _low_latency(64, 173, 314)


def ep128() -> Scenario:
    """EP128: sixteen nodes."""
    return _low_latency(128, 192, 369)


def ep256() -> Scenario:
    """EP256: thirty-two nodes, every expert has a GPU of its own."""
    return _low_latency(256, 194, 360)


# --- normal kernels ---------------------------------------------------------------------------------------------------


def _normal(ranks: int, dispatch_gb_s: float, combine_gb_s: float, note: str = "") -> Scenario:
    return prefill_reducing().variant(
        title=f"DeepEP normal dispatch + combine on H800, EP{ranks}, 4096 tokens",
        machine="h800_cx7",
        cards=ranks,
        knobs=ReducingKnobs(nodes_per_token=4),
        expected=(
            _expect("deepep.normal", "dispatch_rdma_gb_s", dispatch_gb_s, note),
            _expect("deepep.normal", "combine_rdma_gb_s", combine_gb_s, note),
        ),
    )


def normal_ep16() -> Scenario:
    """Two nodes: NVLink has more to do than the network cards."""
    return _normal(16, 43, 43, NVLINK_DECIDES)


def normal_ep32() -> Scenario:
    """Four nodes."""
    chunks = Study(
        title="Tokens that move together: the wire, NVLink and the copy or sum work on different chunks",
        key="knobs.chunk_tokens", values=("128", "256", "320", "512", "1024", "4096"),
        metrics=("dispatch_rdma_gb_s", "combine_rdma_gb_s"), beside=("deepep:normal_ep16", "deepep:normal_ep64"),
    )  # fmt: skip
    return _normal(32, 58, 57).variant(studies=(chunks,))


def normal_ep64() -> Scenario:
    """Eight nodes, of which a token needs four at most."""
    return _normal(64, 51, 50)
