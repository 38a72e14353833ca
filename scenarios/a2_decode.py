"""Atlas 800I A2, 4 nodes of 8 cards: decode of DeepSeek-R1, INT8 weights and activations, BF16 cache, one MTP module.

Published in Huawei's "DeepSeek V3/R1 inference deployment best practice on Ascend servers" (2025). Requests are at all
stages of their outputs, so that cached tokens are spread evenly between prompt and prompt + output: with 2K + 2K their
coefficient of variation is 2048 / sqrt(12) / 3072 = 0.19.
"""

from __future__ import annotations

from typing import Any

from simulator.study.scenario import Expected, Layout, Requests, RoutingSpec, Scenario, Source, Study
from workloads.a2_decode import ITERATION, Knobs

_expect = Source("Huawei, DeepSeek V3/R1 inference deployment best practice on Ascend servers, 2025").expects
BASE = "a2_decode:decode_2k2k"

STUDIES = (
    Study(
        title="Atlas A2 decode: the source does not name the die",
        key="machine",
        values=("atlas_a2", "atlas_a2_313t", "atlas_a2_280t"),
        metrics=("tpot_ms", "throughput_tok_s_per_card", "attention_ms"),
    ),
    Study(
        title="Atlas A2 decode: start-up of collectives in a graph, in Ascend's own model 10 us, which is not"
        " confirmed",
        key="machine.collectives.sdma.startup",
        values=("5 us", "10 us", "20 us"),
        metrics=("tpot_ms", "exposed_comm_ms"),
        beside=("a2_decode:low",),
    ),
    Study(
        title="Atlas A2 decode: a message between nodes, of which each step has three: the wire's latency alone"
        " (3.6 us), or an RDMA task as HCCL counts it (7 us)",
        key="machine.fabric.roce.latency",
        values=("3.6 us", "7 us", "10 us"),
        metrics=("tpot_ms", "exposed_comm_ms"),
        beside=("a2_decode:low",),
    ),
    Study(
        title="Atlas A2 decode: generation of the attention kernel",
        key="knobs.attention",
        values=("mla_attention", "mla_attention_mtp", "mla_attention_amla"),
        metrics=("tpot_ms", "attention_ms"),
    ),
    Study(
        title="Atlas A2 decode: skew of expert load",
        key="routing.skew",
        values=("none", "0", "0.2", "0.4"),
        metrics=("tpot_ms", "waiting_comm_ms"),
    ),
)


def decode_2k2k() -> Scenario:
    """72 requests per card, 2K in and 2K out."""
    return Scenario(
        title="Atlas A2 decode: 32 cards, 72 requests per card, 2K + 2K",
        machine="atlas_a2",
        model="deepseek_r1",
        kernels="cann_2025",
        cards=32,
        batch=Requests(per_card=72, prompt_tokens=2048, output_tokens=2048, length_spread=0.19),
        layout=Layout(expert_parallel=32, tensor_parallel=8),
        knobs=Knobs(),
        workload=ITERATION,
        expected=(
            _expect("a2.decode.2k2k", "tpot_ms", 99.6, role="fit"),
            _expect("a2.decode.2k2k", "throughput_tok_s_per_card", 723, role="fit"),
            _expect("a2.decode.streams", "throughput_tok_s_per_card", 1.15, against="a2_decode:one_stream",
                    note=": +15% by MoE streams at high concurrency"),
            _expect("a2.decode.prefetch", "block_attention_ms", 0.90, against="a2_decode:no_prefetch",
                    note=": MLA about 10% shorter, at a batch and context that the source does not give. At 72 requests"
                    " and 3K it is 4.4%: of MLA's 812 us a layer, 585 us are the attention kernel, which computes and"
                    " waits for no weights. Warm weights take o_proj from 119 to 86 us and MLAProlog from 67 to 62;"
                    " both are then bound on chip. With fewer requests attention is shorter: at 48, or without MTP,"
                    " the gain is 10% or more (see the studies)"),
            _expect("a2.decode.hierarchy", "iteration_ms", 1.0, against="a2_decode:free_roce", band=(0.98, 1.02),
                    note=": the part between nodes is hidden under the part inside"),
        ),
        studies=STUDIES,
    )  # fmt: skip


def _requests(**changes: Any) -> Requests:
    return Requests.model_validate({**decode_2k2k().batch.model_dump(), **changes})


def _variant(title: str, expected: tuple[Expected, ...] = (), **fields: Any) -> Scenario:
    return decode_2k2k().variant(title=f"Atlas A2 decode: {title}", expected=expected, studies=(), **fields)


def decode_2k2k_p80() -> Scenario:
    """As decode_2k2k, with 80% of the draft tokens accepted."""
    row = _expect("a2.decode.2k2k.p", "throughput_tok_s_per_card", 765)
    return _variant("80% accepted", (row,), batch=_requests(acceptance=0.8))


def decode_2k2k_p90() -> Scenario:
    """As decode_2k2k, with 90% of the draft tokens accepted."""
    row = _expect("a2.decode.2k2k.p", "throughput_tok_s_per_card", 808)
    return _variant("90% accepted", (row,), batch=_requests(acceptance=0.9))


def decode_1k2k() -> Scenario:
    """72 requests per card, 1K in and 2K out (the source's concurrency is lost; 72 follows from its utilisation)."""
    rows = (
        _expect("a2.decode.1k2k", "iteration_ms", 156.1, note=": from 784 tok/s per card at 72 requests"),
        _expect("a2.decode.1k2k", "throughput_tok_s_per_card", 784),
    )
    return _variant("1K + 2K", rows, batch=_requests(prompt_tokens=1024, length_spread=0.29))


def decode_1k2k_78() -> Scenario:
    """78 requests per card, the other reading of the source: it would mean the TPOT of 2K + 2K."""
    return _variant("1K + 2K, 78 requests per card",
                    batch=_requests(per_card=78, prompt_tokens=1024, length_spread=0.29))  # fmt: skip


def low() -> Scenario:
    """4 requests per card."""
    row = _expect("a2.decode.low", "tpot_ms", 30,
                  note=": what collectives take before and between their steps is a quarter of it (10 us in a graph,"
                  " three messages of 7 us for each of three steps between nodes), floors and the bubble an eighth;"
                  " messages of 10 us, or floors as measured eagerly, make it 29.5 or 31.1 (see studies)")  # fmt: skip
    study = Study(
        title="Atlas A2 decode: floors of kernels, inside a graph or as measured on eager small kernels",
        key="kernels",
        values=("cann_2025", "cann_2025_slow"),
        metrics=("tpot_ms",),
        beside=("a2_decode:even",),
    )
    return _variant("4 requests per card", (row,), batch=_requests(per_card=4)).variant(studies=(study,))


def one_stream() -> Scenario:
    """As decode_2k2k on one stream, the gate computed after the AllGather on all gathered tokens."""
    return _variant("one stream", knobs=Knobs(streams=False))


def no_prefetch() -> Scenario:
    """As decode_2k2k, without prefetching weights under the ReduceScatter."""
    return _variant("no prefetch", knobs=Knobs(prefetch_mb=0))


def flat() -> Scenario:
    """As decode_2k2k, with all pairs of ranks exchanging directly instead of a pipeline over nodes."""
    return _variant("flat collectives", knobs=Knobs(exchange="flat"))


def free_roce() -> Scenario:
    """As decode_2k2k, with links between nodes that cost nothing."""
    free = {"fabric.roce.link_rate": "inf B/s", "collectives.sdma.ladder.send.0.rate": "inf B/s"}
    return _variant("free links between nodes", machine_changes=free)


def all_to_all() -> Scenario:
    """As decode_2k2k, with All2All instead of AllGather and ReduceScatter, between nodes from peer to peer."""
    row = _expect("a2.decode.volume", "sent_roce_mb", 2.0, against=BASE,
                  note=": 6 x BS x hidden between nodes instead of 3 x BS x hidden. The source takes AllGather and"
                  " ReduceScatter as the faster ones; so they are here, as All2All goes from peer to peer between nodes"
                  " and each of its 24 steps costs three latencies. With a third of that latency the two are even, all"
                  " peers at once at the full rate of RoCE would be faster (see the studies)")  # fmt: skip
    return _variant("All2All", (row,), knobs=Knobs(exchange="all_to_all"))


# --- without chance: all ranks do the same ----------------------------------------------------------------------------


def even() -> Scenario:
    """As decode_2k2k with equal lengths."""
    studies = (
        Study(
            title="Atlas A2 decode: what the prefetch makes of MLA, by requests per card (published: about 10% less)",
            key="batch.per_card",
            values=("8", "24", "48", "56", "64", "72"),
            metrics=("block_attention_ms",),
            beside=("a2_decode:even_no_prefetch",),
        ),
        Study(
            title="Atlas A2 decode: what the prefetch makes of MLA, by the on-chip rate (nominal: 4.88 TB/s)",
            key="machine.chip.l2.rate",
            values=("3.0 TB/s", "3.61 TB/s", "4.2 TB/s", "4.88 TB/s"),
            metrics=("block_attention_ms",),
            beside=("a2_decode:even_no_prefetch",),
        ),
        Study(
            title="Atlas A2 decode: AllGather and ReduceScatter against All2All, from peer to peer between nodes or"
            " all at once, by the latency of RoCE",
            key="machine.fabric.roce.latency",
            values=("0.5 us", "1.5 us", "3.6 us", "7 us"),
            metrics=("tpot_ms",),
            beside=("a2_decode:even_all_to_all", "a2_decode:even_all_to_all_at_once"),
        ),
    )
    return _variant("equal lengths", batch=_requests(length_spread=0.0)).variant(studies=studies)


def even_no_prefetch() -> Scenario:
    """As even, without prefetching."""
    return even().variant(title="Atlas A2 decode: equal lengths, no prefetch", knobs=Knobs(prefetch_mb=0), studies=())


def even_all_to_all() -> Scenario:
    """As even, with All2All."""
    knobs = Knobs(exchange="all_to_all")
    return even().variant(title="Atlas A2 decode: equal lengths, All2All", knobs=knobs, studies=())


def even_all_to_all_at_once() -> Scenario:
    """As even_all_to_all, with all peers at once."""
    knobs = Knobs(exchange="all_to_all_at_once")
    return even().variant(title="Atlas A2 decode: equal lengths, All2All at once", knobs=knobs, studies=())


# --- lengths and load -------------------------------------------------------------------------------------------------


def length_aware() -> Scenario:
    """As decode_2k2k, with requests placed so that ranks cache as many tokens each."""
    return _variant("length-aware placement", batch=_requests(placement="length_aware"))


def skewed() -> Scenario:
    """As decode_2k2k, with expert popularity skewed by a power law."""
    return _variant("skewed experts", routing=RoutingSpec(skew=0.4))


def eplb() -> Scenario:
    """As skewed, with experts rearranged by load and one spare slot per card for replicas (EPLB)."""
    knobs = Knobs(placement="eplb", spare_experts=1)
    return _variant("skewed experts, EPLB", routing=RoutingSpec(skew=0.4), knobs=knobs)
