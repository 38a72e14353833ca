"""Decode of DeepSeek-R1 on Atlas 800I A2: one iteration of a rank, in launch order.

MLA data parallel with absorbed weights; dense FFN, embedding and LM head tensor parallel inside a node; experts expert
parallel over all ranks with AllGather and ReduceScatter, pipelined over nodes. An iteration verifies the drafts of the
one before (1 + draft tokens per request), then runs the MTP module once per draft token, samples, and pays the bubble
until the next one.

MoE layer: MLA -> norm -> quantise -> at the same time {AllGather of activations | of scales | gate, then AllGather of
weights and indices | shared expert} -> own experts on what they got -> weighted sum -> ReduceScatter, under which the
next layer's MLA weights are prefetched into L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.model import decode, lengths, ops
from simulator.model.expert_load import ExpertLoad
from simulator.model.layout import blocks
from simulator.model.mla import Kernels
from simulator.model.routing import routing_of
from simulator.program.rank import Event, Rank
from simulator.scenario import Case, MemoryItem, Workload, decode_measures

GATHER, SCALES, GATE, SHARED, PREFETCH = "gather", "scales", "gate", "shared", "prefetch"


class Knobs(BaseModel):
    """The published techniques, one switch each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str = Field("sdma", description="what drives collectives: an engine of the machine")
    streams: bool = Field(True, description="gate, shared expert and AllGathers of a MoE layer side by side")
    scales_beside: bool = Field(True, description="scales are gathered beside the activations, not after them")
    exchange: Literal["hierarchical", "flat", "all_to_all"] = Field(
        "hierarchical", description="AllGather/ReduceScatter pipelined over nodes, all pairs at once, or All2All"
    )
    prefetch_mb: float = Field(190.0, ge=0, description="MLA weights prefetched into L2 under the ReduceScatter")
    prefetch_gb_s: float = Field(0.0, ge=0, description="ceiling of the prefetch (0: none)")
    shared: Literal["dp", "tp"] = Field("dp", description="shared expert: whole on every rank, or over the node")
    placement: Literal["in_order", "eplb"] = Field(
        "in_order", description="experts on ranks: in order, or rearranged by load with replicas of the hottest (EPLB)"
    )
    spare_experts: int = Field(0, ge=0, le=8, description="slots per rank for replicas of experts (EPLB)")
    fused_prolog: bool = Field(True, description="MLAProlog in one kernel")
    attention: Literal["mla_attention", "mla_attention_mtp", "mla_attention_amla"] = Field(
        "mla_attention_mtp", description="generation of the attention kernel"
    )


def iteration(npu: Rank, case: Case) -> None:
    """One decode iteration."""
    npu.program.captured = True
    contexts = _contexts(npu, case)
    embed(npu, case)
    for layer in range(case.shapes.layers):
        with npu.scope(layer=layer):
            attention(npu, case, contexts, f"layer{layer}")
            following = f"layer{layer + 1}" if layer + 1 < case.shapes.layers else ""
            if layer < case.shapes.dense_layers:
                dense(npu, case)
            else:
                moe(npu, case, layer, following)
    head(npu, case)
    for draft in range(case.batch.draft_tokens):
        with npu.scope(layer=case.shapes.layers + draft):
            launch(npu, [("draft.graph", ops.delay("draft_graph"))])
            hidden = case.shapes.hidden
            launch(npu, decode.in_l2([("draft.project", ops.gemm(_tokens(case), hidden, 2 * hidden))]))
            attention(npu, case, contexts, "draft")
            moe(npu, case, case.shapes.layers + draft, "")
        head(npu, case)
    launch(npu, [("bubble", ops.delay("iteration_bubble"))])


def attention(npu: Rank, case: Case, contexts: decode.Contexts, weights: str) -> None:
    """MLA of own requests, with weights that may lie in L2; nothing waits for a prefetch."""
    s, tokens = case.shapes, _tokens(case)
    launch(npu, decode.in_l2([("attention.norm", ops.add_rms_norm(tokens, s.hidden))]))
    launch(npu, decode.prolog(s, tokens, weights, case.knobs.fused_prolog))
    launch(npu, decode.attention(s, contexts, case.knobs.attention, weights))
    launch(npu, decode.output_projection(s, tokens, weights=weights))


def dense(npu: Rank, case: Case) -> None:
    """Dense FFN over the node: gather its tokens, a shard of the width, sum back."""
    s, node, tokens = case.shapes, npu.group("node"), _tokens(case)
    launch(npu, decode.in_l2([("dense.norm", ops.add_rms_norm(tokens, s.hidden)),
                              ("dense.quantise", ops.quantise(tokens, s.hidden))]))  # fmt: skip
    node.all_gather("dense.gather", tokens * s.hidden, case.knobs.engine)
    launch(npu, decode.ffn(s, "dense", tokens * node.size, s.dense_intermediate // node.size, quantise=False))
    node.reduce_scatter("dense.reduce_scatter", 2 * tokens * s.hidden, case.knobs.engine)


# --- one MoE layer ----------------------------------------------------------------------------------------------------


def moe(npu: Rank, case: Case, layer: int, following: str) -> None:
    """Norm and quantise, exchange, own experts, exchange back."""
    s, tokens = case.shapes, _tokens(case)
    launch(npu, decode.in_l2([("gate.norm", ops.add_rms_norm(tokens, s.hidden)),
                              ("gate.quantise", ops.quantise(tokens, s.hidden))]))  # fmt: skip
    normed = npu.record()
    shared = _gather_side_by_side(npu, case, normed) if case.knobs.streams else _gather_in_order(npu, case)
    rows = _rows(npu, case, layer)
    choices = tokens * npu.group("ep").size * s.experts_per_token
    launch(npu, decode.in_l2([("experts.sort", ops.copy(4 * choices, 4.0)),  # four passes of a radix sort
                              ("experts.select", ops.copy(sum(rows) * s.hidden, 1.0))]))  # fmt: skip
    launch(npu, decode.experts(s, rows))
    give_back(npu, case, sum(rows), following)
    npu.wait(shared)
    launch(npu, decode.in_l2([("finalize.add_shared", ops.passes(4.0 * tokens * s.hidden, 2.0 * tokens * s.hidden))]))


def _gather_side_by_side(npu: Rank, case: Case, normed: Event) -> Event:
    """Activations, scales, gate and shared expert on streams of their own; the current stream waits for the gathers."""
    s, ep, tokens, engine = case.shapes, npu.group("ep"), _tokens(case), case.knobs.engine
    with npu.stream(GATHER):
        npu.wait(normed)
        activations = exchange(npu, case, "dispatch.activations", tokens * s.hidden)
    with npu.stream(SCALES if case.knobs.scales_beside else GATHER):
        npu.wait(normed)
        scales = ep.all_gather("dispatch.scales", 4 * tokens, engine, _algorithm(case))
    with npu.stream(GATE):
        npu.wait(normed)
        launch(npu, decode.gate(s, tokens))
        chosen = ep.all_gather("dispatch.choices", 8 * tokens * s.experts_per_token, engine, _algorithm(case))
    with npu.stream(SHARED):
        npu.wait(normed)
        shared_expert(npu, case)
        shared = npu.record()
    for event in (activations, scales, chosen):
        npu.wait(event)
    return shared


def _gather_in_order(npu: Rank, case: Case) -> Event:
    """One stream; the gate is computed after the AllGather, on the tokens of all ranks."""
    s, ep, tokens = case.shapes, npu.group("ep"), _tokens(case)
    exchange(npu, case, "dispatch.activations", tokens * s.hidden)
    ep.all_gather("dispatch.scales", 4 * tokens, case.knobs.engine, _algorithm(case))
    launch(npu, decode.gate(s, tokens * ep.size))
    shared_expert(npu, case)
    return npu.record()


def exchange(npu: Rank, case: Case, name: str, shard_bytes: int) -> Event:
    """Activations to where their experts are: to everybody, or with All2All each token to its experts."""
    s, ep, engine = case.shapes, npu.group("ep"), case.knobs.engine
    if case.knobs.exchange == "all_to_all":
        return ep.all_to_all(name, shard_bytes * s.experts_per_token // ep.size, engine)
    return ep.all_gather(name, shard_bytes, engine, _algorithm(case))


def give_back(npu: Rank, case: Case, rows: int, following: str) -> None:
    """The experts' rows to where their tokens are: summed for all tokens and scattered, or row by row.

    Meanwhile the following layer's weights are prefetched.
    """
    s, ep, tokens, engine = case.shapes, npu.group("ep"), _tokens(case), case.knobs.engine
    if case.knobs.exchange == "all_to_all":
        prefetch(npu, case, following, npu.record())
        ep.all_to_all("combine.rows", 2 * tokens * s.hidden * s.experts_per_token // ep.size, engine)
        launch(npu, decode.in_l2([("finalize.sum", ops.passes(2.0 * tokens * s.experts_per_token * s.hidden,
                                                              2.0 * tokens * s.hidden))]))  # fmt: skip
        return
    sums = 2.0 * tokens * ep.size * s.hidden  # partial sums of all tokens: larger than what L2 keeps beside weights
    launch(npu, [("finalize.zero", ops.cached(ops.passes(0.0, sums)))])
    launch(npu, [("finalize.sum", ops.passes(sums / 2.0, sums))])
    prefetch(npu, case, following, npu.record())
    ep.reduce_scatter("combine.sums", 2 * tokens * s.hidden, engine, _algorithm(case))


def shared_expert(npu: Rank, case: Case) -> None:
    """Whole on every rank, or a shard of it for the tokens of the node."""
    s, node, tokens = case.shapes, npu.group("node"), _tokens(case)
    width = s.shared_experts * s.expert_intermediate
    if case.knobs.shared == "dp":
        launch(npu, decode.ffn(s, "shared", tokens, width, quantise=False))
        return
    node.all_gather("shared.gather", tokens * s.hidden, case.knobs.engine)
    launch(npu, decode.ffn(s, "shared", tokens * node.size, width // node.size, quantise=False))
    node.reduce_scatter("shared.reduce_scatter", 2 * tokens * s.hidden, case.knobs.engine)


def prefetch(npu: Rank, case: Case, following: str, after: Event) -> None:
    """The next layer's MLA weights into L2, as far as the budget goes, on a stream of a DMA queue."""
    budget = case.knobs.prefetch_mb * 1e6
    if not following:
        return
    with npu.stream(PREFETCH):
        npu.wait(after)
        for part, size in mla_weights(case):
            if size <= budget:
                npu.prefetch(f"{following}.{part}", size, case.knobs.prefetch_gb_s * 1e9, pieces=8)
                budget -= size


# --- embedding, head --------------------------------------------------------------------------------------------------


def embed(npu: Rank, case: Case) -> None:
    """A vocabulary shard looks up the node's tokens; a ReduceScatter leaves each rank its own."""
    s, node, tokens = case.shapes, npu.group("node"), _tokens(case)
    size = 2.0 * tokens * node.size * s.hidden
    launch(npu, decode.in_l2([("embedding.lookup", ops.passes(size, size))]))
    node.reduce_scatter("embedding.reduce_scatter", 2 * tokens * s.hidden, case.knobs.engine)


def head(npu: Rank, case: Case) -> None:
    """Norm, the node's tokens gathered, a vocabulary shard of logits, the best of each shard gathered, sampling."""
    s, node, tokens, engine = case.shapes, npu.group("node"), _tokens(case), case.knobs.engine
    shard = -(-s.vocabulary // node.size)
    launch(npu, decode.in_l2([("head.norm", ops.rms_norm(tokens, s.hidden))]))
    node.all_gather("head.gather", 2 * tokens * s.hidden, engine)
    launch(npu, decode.in_l2([("head.logits", ops.gemm(tokens * node.size, shard, s.hidden, dtype="bf16"))]))
    launch(npu, [("head.best", ops.passes(2.0 * tokens * node.size * shard, 8.0 * tokens * node.size))])
    node.all_gather("head.gather_best", 8 * tokens * node.size, engine)
    launch(npu, decode.in_l2([("head.sample", ops.passes(64.0 * tokens * node.size, 8.0 * tokens))]))


# --- parts ------------------------------------------------------------------------------------------------------------


def launch(npu: Rank, kernels: Kernels) -> None:
    """These kernels, one after the other, into the current stream."""
    for name, work in kernels:
        npu.launch(work, name)


def mla_weights(case: Case) -> list[tuple[str, float]]:
    """Name and bytes of a layer's MLA weights, in the order of their use."""
    s = case.shapes
    o = s.heads * s.v_dim * s.hidden
    absorbed = 2.0 * s.heads * s.kv_lora * s.v_dim
    return [("prolog", s.mla_parameters - o - absorbed / 2.0), ("o", float(o)), ("absorb_v", absorbed)]


def _algorithm(case: Case) -> str:
    return "direct" if case.knobs.exchange == "flat" else "hierarchical"


def _tokens(case: Case) -> int:
    """Query tokens of a rank and iteration."""
    return int(case.batch.per_card) * int(case.batch.queries)


def _contexts(npu: Rank, case: Case) -> decode.Contexts:
    held = npu.where("lengths")
    assert isinstance(held, tuple)
    return tuple((case.batch.queries, length) for length in held)


def _rows(npu: Rank, case: Case, layer: int) -> tuple[int, ...]:
    """Rows for each local expert: what all ranks' tokens choose."""
    s, ep, skew = case.shapes, npu.group("ep"), case.routing.skew
    if skew is None:
        return routing_of((_tokens(case),) * ep.size, s.routed_experts, s.experts_per_token, None, ()).rows()
    group, place = divmod(npu.rank, ep.size)
    counts = (s.routed_experts, s.experts_per_token, s.shared_experts, ep.size, 0)
    load = ExpertLoad(*counts, case.knobs.placement, skew, case.seed, case.knobs.spare_experts)
    return load.drawn_rows(_tokens(case) * ep.size, layer, 0, group)[place]


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Expert-parallel groups, and the tensor-parallel groups inside nodes."""
    return {
        "ep": blocks(case.ranks, case.layout.expert_parallel),
        "node": blocks(case.ranks, case.layout.tensor_parallel),
    }


def place(case: Case, rank: int) -> Mapping[str, object]:
    """Cached tokens of a rank's requests."""
    batch = case.batch
    drawn = lengths.cached_lengths(case.ranks, batch.per_card, batch.cached_tokens, batch.length_spread, case.seed)
    return {"lengths": lengths.on_ranks(drawn, case.ranks, batch.placement == "length_aware")[rank]}


def memory(case: Case) -> list[MemoryItem]:
    """Weights of a rank, INT8 but for BF16 absorbed up-projections, embedding and head; latent cache in BF16."""
    s, tokens, tp = case.shapes, _tokens(case), case.layout.tensor_parallel
    absorbed = s.kv_lora * s.heads * (s.nope_dim + s.v_dim)
    layers, draft = s.layers + s.mtp_layers, s.mtp_layers
    shared = s.shared_experts * s.expert_parameters // (tp if case.knobs.shared == "tp" else 1)
    local = (s.routed_experts // case.layout.expert_parallel + case.knobs.spare_experts) * s.expert_parameters
    longest = case.batch.prompt_tokens + case.batch.output_tokens
    return [
        ("attention", "weights", layers * (s.mla_parameters + absorbed)),
        ("dense FFN shards", "weights", s.dense_layers * s.dense_parameters / tp),
        ("routed experts", "weights", (s.moe_layers + draft) * local),
        ("shared expert", "weights", (s.moe_layers + draft) * shared),
        ("router", "weights", (s.moe_layers + draft) * 4 * s.router_parameters),
        ("embedding and head shards", "weights", 2 * 2 * s.embedding_parameters / tp),
        ("latent cache, BF16, full outputs", "KV", 2 * case.batch.per_card * longest * s.kv_values * layers),
        ("gathered tokens and sums", "activations", tokens * case.layout.expert_parallel * s.hidden * (1 + 2 * 2)),
        ("exchange buffers", "communication", tokens * case.layout.expert_parallel * s.hidden * 3),
    ]


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Iteration, TPOT, throughput per card."""
    return decode_measures(case.batch, seconds)


ITERATION = Workload(iteration, groups, place, memory, measures)
