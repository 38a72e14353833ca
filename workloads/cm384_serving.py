"""Around the decode programs of CloudMatrix384: groups, places, memory, metrics, and two programs that isolate a part.

* `exchange_only`: dispatch and combine of one layer, over and over, for the latency of the fused kernels.
* `attention_only`: nothing but the attention kernels on the attention stream's cores: the theoretical bound in which
  MLA hides everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from simulator.model import decode
from simulator.model.layout import blocks, shard_size
from simulator.program.rank import Rank
from simulator.study.scenario import MemoryItem, Workload, decode_measures
from workloads.cm384_decode import (
    ATTENTION,
    DISPATCH_BYTES,
    Case,
    copies,
    exchange,
    halves_of,
    iteration,
    launch,
    lengths_of,
    own_rows,
    partition,
)
from workloads.readings import span_us

EXCHANGES = 20


def exchange_only(npu: Rank, case: Case) -> None:
    """Dispatches and combines of whole iterations' tokens, one after the other: balanced, or with drawn routing."""
    npu.program.captured = True
    whole, queries, drawn = halves_of(case, 1)[0], case.batch.queries, case.routing.skew is not None
    away = copies(case, whole.padded * queries)
    for layer in range(EXCHANGES):
        rows, uneven = own_rows(npu, case, layer, whole, queries)
        with npu.scope(layer=layer):
            for name, row_bytes in (("dispatch", DISPATCH_BYTES), ("combine", 2 * case.shapes.hidden)):
                exchange(npu, case, name, uneven, partial(_sizes, rows if drawn else None, away, row_bytes, name))


def _sizes(
    rows: Callable[[int], tuple[int, ...]] | None, away: int, row_bytes: int, name: str, rank: int
) -> tuple[int, int]:
    """Bytes that a die writes and gets; without drawn rows as many as it writes."""
    out, into = away * row_bytes, (sum(rows(rank)) if rows else away) * row_bytes
    return (out, into) if name == "dispatch" else (into, out)


def attention_only(npu: Rank, case: Case) -> None:
    """Every layer's attention kernel, MTP layer included."""
    npu.program.captured = True
    partition(npu, case)
    contexts = tuple((case.batch.queries, length) for length in lengths_of(case)[0])
    with npu.stream(ATTENTION):
        for layer in range(case.shapes.layers + case.batch.draft_tokens):
            with npu.scope(layer=layer):
                launch(npu, decode.attention(case.shapes, contexts, case.knobs.attention)[:1])


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Expert-parallel groups, packages, and the groups that share the LM head."""
    case.shapes.check_drafts(case.batch.draft_tokens)
    shard_size(case.shapes.heads, case.layout.tensor_parallel, "heads")
    return {
        "ep": blocks(case.ranks, case.layout.expert_parallel, "layout.expert_parallel"),
        "package": blocks(case.ranks, case.layout.tensor_parallel, "layout.tensor_parallel"),
        "head": blocks(case.ranks, case.layout.head_parallel, "layout.head_parallel"),
    }


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """The role of a die's expert slots: the last dies have the shared expert."""
    ep = case.layout.expert_parallel
    role = "shared" if rank % ep >= ep - case.layout.shared else "routed"
    return {"role": role}


def memory(case: Case) -> list[MemoryItem]:
    """Weights of a die, INT8 but for BF16 absorbed up-projections, embedding and head; latent cache in BF16."""
    s, layout, batch = case.shapes, case.layout, case.batch
    absorbed = s.kv_lora * s.heads * (s.nope_dim + s.v_dim)
    o_elsewhere = s.o_proj_parameters * (1 - 1 / layout.tensor_parallel)
    layers = s.layers + s.mtp_layers
    slots = -(-s.routed_experts // max(layout.expert_parallel - layout.shared, 1))
    requests = -(-batch.per_card * case.cards // case.ranks)
    fullest = max(sum(hand) for hand in lengths_of(case)) + requests * (batch.output_tokens - batch.output_tokens // 2)
    tokens = requests * batch.queries
    away = copies(case, tokens)
    return [
        ("attention, own part of o_proj", "weights", layers * (s.mla_parameters + absorbed - o_elsewhere)),
        ("dense FFN shards", "weights", s.dense_layers * s.dense_parameters / layout.tensor_parallel),
        ("expert slots", "weights", (s.moe_layers + s.mtp_layers) * slots * s.expert_parameters),
        ("router", "weights", (s.moe_layers + s.mtp_layers) * 4 * s.router_parameters),
        ("MTP projection", "weights", s.mtp_layers * 2 * s.hidden * s.hidden),
        ("embedding, and a shard of the head", "weights", 2 * s.embedding_parameters * (1 + 1 / layout.head_parallel)),
        ("latent cache, BF16, full outputs", "KV", 2 * fullest * s.kv_values * layers),
        ("hidden states and experts' rows", "activations", away * (4 * s.hidden + 16 * s.expert_intermediate)),
        ("logits", "activations", 2 * tokens * s.vocabulary),
        ("dispatch and combine buffers, double", "communication", 2 * away * (DISPATCH_BYTES + 2 * s.hidden)),
    ]


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Iteration, TPOT, throughput per card."""
    return decode_measures(case.batch, seconds)


def exchange_memory(case: Case) -> list[MemoryItem]:
    """Nothing but the buffers of dispatch and combine."""
    return [item for item in memory(case) if item[1] == "communication"]


def exchange_readings(_: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Each of the two, from its start to the last arrival."""
    return {f"{name}_us": span_us(columns, f"{name}.write", f"{name}.arrive") for name in ("dispatch", "combine")}


def exchange_measures(_: Case, seconds: float) -> Mapping[str, float]:
    """Latency of a dispatch and a combine together."""
    return {"dispatch_combine_us": seconds / EXCHANGES * 1e6}


ITERATION = Workload(iteration, groups, coordinates, memory, measures)
EXCHANGE = Workload(exchange_only, groups, coordinates, exchange_memory, exchange_measures, readings=exchange_readings)
BOUND = Workload(attention_only, groups, coordinates, memory, measures)
