"""DeepEP on H800 with ConnectX-7: dispatch and combine of 128 (low-latency) or 4096 (normal kernels) tokens, by EP.

Published in the README of deepseek-ai/DeepEP (hidden 7168, top-8, dispatch FP8, combine BF16; remembered). The network
card is that of `pplx`, fitted on Perplexity's figures, and the GPU is H800's, of whose NVLink the normal kernels take
what they reach inside one node, and the others the share that they take on H100. GPUs post the writes themselves: one
per token copy, or one copy per node that goes on over NVLink. Normal kernels were measured with tokens that keep to
four nodes.

Scenarios h100_* are points of the tables on which four numbers were fitted: 8 H100, NVLink alone.
"""

from __future__ import annotations

from scenarios.pplx import cx7_ep32_gpu_initiated, prefill_reducing
from simulator.study.scenario import Scenario, Source, Study
from workloads.moe_exchange import Knobs, ReducingKnobs, Tokens

_expect = Source("DeepEP, README of deepseek-ai/DeepEP (remembered)").expects
_measured = Source("ai-dynamo/aiconfigurator at 095f58a, SGLang 0.5.12 on 8 H100").expects
NVLINK = (": NVLink alone, whose share is that of later kernels on H100; in combine these write bulk by bulk and reach "
          "less than in dispatch, and those that were measured here reach more")
CARDS_ALONE = (": in the README since February 2025; the kernels took NVLink from June 2025 on, with which EP8 to EP64 "
               "were measured again")
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
    return _low_latency(128, 192, 369, CARDS_ALONE).variant(knobs=Knobs(nvlink=False))


def ep256() -> Scenario:
    """EP256: thirty-two nodes, every expert has a GPU of its own."""
    return _low_latency(256, 194, 360, CARDS_ALONE).variant(knobs=Knobs(nvlink=False))


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


# --- eight H100 of a table --------------------------------------------------------------------------------------------


def _on_h100(parent: Scenario, tokens: int, dispatch_us: float, combine_us: float) -> Scenario:
    return parent.variant(
        title=f"{parent.title.split(' on ')[0]} on 8 H100, {tokens} tokens",
        machine="dgx_h100", kernels="sglang", cards=8, batch=Tokens(per_rank=tokens), studies=(),
        expected=(_measured("deepep.h100", "dispatch_us", dispatch_us, role="fit"),
                  _measured("deepep.h100", "combine_us", combine_us, role="fit")),
    )  # fmt: skip


def h100_one_token() -> Scenario:
    """Low latency, a token a GPU: what does not grow with tokens."""
    return _on_h100(ep8(), 1, 13.19, 14.40)


def h100_decode() -> Scenario:
    """Low latency, 128 tokens."""
    tokens = Study(
        title="Tokens of a GPU, low latency on NVLink (measured: 13.7 / 14.2 us for 2, 24.6 / 39.7 for 64, "
              "115.5 / 259.2 for 512)",
        key="batch.per_rank", values=("2", "8", "64", "512", "1024"), metrics=("dispatch_us", "combine_us"),
    )  # fmt: skip
    return _on_h100(ep8(), 128, 36.73, 67.03).variant(studies=(tokens,))


def h100_normal() -> Scenario:
    """Normal kernels on 24 SMs: NVLink decides."""
    sms = Study(
        title="SMs of the normal kernels: they set the rate until NVLink does (measured, 8 SMs: 1082 / 2031 us)",
        key="knobs.sms", values=("4", "8", "12", "16", "20", "24"), metrics=("dispatch_us", "combine_us"),
    )  # fmt: skip
    return _normal_h100(24, 498.4, 960.6).variant(studies=(sms,))


def h100_normal_4_sms() -> Scenario:
    """Normal kernels on 4 SMs: these decide."""
    return _normal_h100(4, 2068.5, 3897.3)


def _normal_h100(sms: int, dispatch_us: float, combine_us: float) -> Scenario:
    return _on_h100(normal_ep16(), 4096, dispatch_us, combine_us).variant(knobs=ReducingKnobs(sms=sms))
