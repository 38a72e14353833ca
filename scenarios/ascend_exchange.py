"""Collectives and MoE exchanges of Ascend 910C dies alone, as other laboratories measured them.

HCCL and zero-copy collectives on Atlas A3 (STRATA), the kernels of DeepEP-Ascend (sgl-kernel-npu) for few and for many
tokens, and the shortest dispatch and combine of a run of xDeepServe on CloudMatrix384. Fitted are the kernels for many
tokens over 32 ranks, and nothing else.
"""

from __future__ import annotations

from scenarios.cm384_decode import decode_50ms
from simulator.study.scenario import Layout, Requests, RoutingSpec, Scenario, Source
from workloads.cm384_decode import EXCHANGE, Dies
from workloads.cm384_decode import Knobs as DecodeKnobs
from workloads.collective import COLLECTIVES, Buffer, Knobs

_strata = Source("STRATA, arXiv 2607.26444").expects
_kernels = Source("DeepEP-Ascend, README of sgl-kernel-npu at f425bdf").expects
_xds = Source("xDeepServe, arXiv 2508.02520").expects


# --- collectives on Atlas A3 ------------------------------------------------------------------------------------------


def mesh() -> Scenario:
    """A small AllGather that goes to all peers at once."""
    return Scenario(
        title="Atlas A3: AllGather of 64 KiB over 32 ranks, all at once",
        machine="atlas_a3",
        model="deepseek_r1",
        kernels="cann_recipes_2025",
        cards=16,
        batch=Buffer(),
        layout=Layout(),
        knobs=Knobs(engine="aiv_zero_copy"),
        workload=COLLECTIVES,
    )


def ring() -> Scenario:
    """The same around a ring, step by step."""
    return mesh().variant(
        title="Atlas A3: AllGather of 64 KiB over 32 ranks, around a ring",
        knobs=Knobs(engine="aiv_zero_copy", algorithm="ring"),
        expected=(
            _strata("a3.ring", "latency_us", 4.5, ": three quarters of it synchronise; ranks and engine are not given",
                    against="ascend_exchange:mesh"),
        ),
    )  # fmt: skip


# --- DeepEP-Ascend ----------------------------------------------------------------------------------------------------


def normal_ep32() -> Scenario:
    """Kernels for many tokens over 32 ranks: INT8 out, BF16 back, every token to eight experts."""
    return decode_50ms().variant(
        title="Atlas A3: dispatch and combine of 4096 tokens at EP32 (normal kernels)",
        cards=16,
        batch=Requests(per_card=4096, prompt_tokens=1, output_tokens=1),
        layout=Dies(expert_parallel=32, shared_dies=0),
        routing=RoutingSpec(),
        knobs=DecodeKnobs(dispatch="normal"),
        workload=EXCHANGE,
        expected=(
            _kernels("a3.exchange.normal", "dispatch_gb_s", 102, ": the cost of a row follows from it", "fit"),
            _kernels("a3.exchange.normal", "combine_gb_s", 95, ": the cost of a row follows from it", "fit"),
        ),
    )


def normal_ep8() -> Scenario:
    """The same over 8 ranks of a node."""
    return normal_ep32().variant(
        title="Atlas A3: dispatch and combine of 4096 tokens at EP8 (normal kernels)",
        cards=4,
        layout=Dies(expert_parallel=8, shared_dies=0),
        expected=(
            _kernels("a3.exchange.normal", "dispatch_gb_s", 146),
            _kernels("a3.exchange.normal", "combine_gb_s", 125, ": see EP64"),
        ),
    )


def normal_ep64() -> Scenario:
    """The same over 64 ranks."""
    return normal_ep32().variant(
        title="Atlas A3: dispatch and combine of 4096 tokens at EP64 (normal kernels)",
        cards=32,
        layout=Dies(expert_parallel=64, shared_dies=0),
        expected=(
            _kernels("a3.exchange.normal", "dispatch_gb_s", 81,
                     ": between EP8 and EP64 a row of a dispatch takes 1.3 us more and core, latencies of the wire"
                     " explain 0.6; counts of every peer and expert are not told apart in the source"),
            _kernels("a3.exchange.normal", "combine_gb_s", 91),
        ),
    )


def low_latency_ep16() -> Scenario:
    """Kernels for few tokens over the 16 ranks of a node."""
    slower = ": its kernels need 2.7 us a row and core, those of CloudMatrix384's own table 2.0 in a node"
    return normal_ep32().variant(
        title="Atlas A3: dispatch and combine of 128 tokens at EP16 (low-latency kernels)",
        cards=8,
        batch=Requests(per_card=128, prompt_tokens=1, output_tokens=1),
        layout=Dies(expert_parallel=16, shared_dies=0),
        knobs=DecodeKnobs(dispatch="fused_push"),
        expected=(
            _kernels("cm384.exchange.ep16", "dispatch_us", 139, slower),
            _kernels("cm384.exchange.ep16", "combine_us", 135, slower),
        ),
    )


# --- CloudMatrix384 in service ----------------------------------------------------------------------------------------


def in_service() -> Scenario:
    """60 requests per die in one micro-batch: a die that waits for no other tells what the kernels take."""
    slower = ": what a row takes more in service than in a table of operators (see cm384.exchange.ep16)"
    return decode_50ms().variant(
        title="CloudMatrix384: dispatch and combine in decode, EP288, 60 requests per die",
        batch=Requests(per_card=120, prompt_tokens=3200, output_tokens=2000, length_spread=0.14),
        model_changes={"shapes.layers": "10"},
        knobs=DecodeKnobs(dispatch="fused_push", micro_batches=1),
        expected=(
            _xds("cm384.exchange.min", "least_dispatch_us", 185, slower),
            _xds("cm384.exchange.min", "least_combine_us", 165,
                 ": the last die to combine has the hottest expert's rows, 1.6 times the mean by an assumed skew; with"
                 " experts loaded alike it is 149"),
        ),
    )


def hccl() -> Scenario:
    """An All2All of 4096 tokens over 32 ranks through staging buffers."""
    return mesh().variant(
        title="Atlas A3: All2All of 4096 tokens over 32 ranks, staged (HCCL)",
        batch=Buffer(kib=4096 * 8 * 7),
        knobs=Knobs(kind="all_to_all", engine="aiv"),
        expected=(
            _strata("a3.a2a.hccl", "bus_gb_s", 61,
                    ": INT8 and BF16 alike; staging copies at 330 GB/s would give it, memory allows 612"),
        ),
    )
