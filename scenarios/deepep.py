"""DeepEP's low-latency kernels on H800 with ConnectX-7: dispatch and combine of 128 tokens per rank, by EP.

Published in the README of deepseek-ai/DeepEP (hidden 7168, top-8, dispatch FP8, combine BF16; remembered). Nothing was
chosen for it: the workload and the network card are those of `pplx`, fitted on Perplexity's figures, the GPU is H800's.
GPUs post the writes themselves, one per token copy; inside a node they write over NVLink.
"""

from __future__ import annotations

from scenarios.pplx import cx7_ep32_gpu_initiated
from simulator.scenario import Scenario, Source

_expect = Source("DeepEP, low-latency kernels, README of deepseek-ai/DeepEP (remembered)").expects
NVLINK = ": the node's NVLink alone, at the rate of the normal kernels; these reach 98 of its 155 GB/s, 127 in combine"


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
