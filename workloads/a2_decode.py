"""Decode of DeepSeek-R1 on Atlas 800I A2: one iteration of a rank, in launch order.

MLA data parallel with absorbed weights; dense FFN, embedding and LM head tensor parallel inside a node; experts expert
parallel over all ranks with AllGather and ReduceScatter, pipelined over nodes. An iteration verifies the drafts of the
one before (1 + draft tokens per request), then runs the MTP module once per draft token, samples, and pays the bubble
until the next one. The first pass of the module catches up with what was verified, later ones have one query token.

MoE layer: MLA -> norm -> quantise -> at the same time {AllGather of activations | of scales | gate, then AllGather of
weights and indices | shared expert} -> own experts on what they got -> weighted sum -> ReduceScatter, under which the
next layer's MLA weights are prefetched into L2. With All2All instead rows go only to their experts, and not before the
gate has chosen them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, partial
from math import ceil
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.errors import InputError
from simulator.model import decode, ops
from simulator.model.expert_load import ExpertLoad
from simulator.model.layout import cached_lengths, on_ranks, shard_size
from simulator.model.mla import Kernels
from simulator.model.routing import routing_of
from simulator.program.rank import DEFAULT_STREAM, Event, Rank
from simulator.program.task import Collective
from simulator.study import scenario

GATHER, SCALES, GATE, SHARED, PREFETCH = "gather", "scales", "gate", "shared", "prefetch"
PIECE_BYTES = 16e6  # of a prefetch; what HBM brings in 10 us

Blocks = list[tuple[str, float]]  # names of what a layer reads, and bytes
Held = Callable[[int], decode.Contexts]  # by rank


class Knobs(BaseModel):
    """The published techniques, one switch each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str = Field("sdma", description="what drives collectives: an engine of the machine")
    streams: bool = Field(True, description="gate, shared expert and AllGathers of a MoE layer side by side")
    scales_beside: bool = Field(True, description="scales are gathered beside the activations, not after them")
    exchange: Literal["hierarchical", "flat", "all_to_all", "all_to_all_at_once"] = Field(
        "hierarchical",
        description="AllGather/ReduceScatter pipelined over nodes or all pairs at once; All2All, between nodes one peer"
        " after the other or all at once",
    )
    prefetch_mb: float = Field(190.0, ge=0, description="prefetched at most into L2 under the ReduceScatter, for MLA")
    prefetch_cache_mb: float = Field(0.0, ge=0, description="of it KV cache, beside weights; in the order of their use")
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


Case = scenario.Case[scenario.Requests, scenario.Layout, Knobs]


def iteration(npu: Rank, case: Case) -> None:
    """One decode iteration."""
    npu.program.captured = True
    contexts = _contexts(npu, case)
    embed(npu, case)
    for layer in range(case.shapes.layers):
        with npu.scope(layer=layer):
            attention(npu, case, contexts, f"layer{layer}")
            if layer < case.shapes.dense_layers:
                dense(npu, case)
            else:
                moe(npu, case, layer, mla_blocks(case, contexts(npu.first), layer + 1))
    head(npu, case)
    for number in range(case.batch.draft_tokens):
        with npu.scope(layer=case.shapes.layers + number):
            draft(npu, case if number == 0 else _one_query(case), number)
    launch(npu, [("bubble", ops.delay("iteration_bubble"))])


def draft(npu: Rank, case: Case, number: int) -> None:
    """A pass of the MTP module: embed sampled tokens, norm both halves of its input, one product, one layer, head."""
    s, tokens = case.shapes, tokens_of(case)
    launch(npu, [("draft.graph", ops.delay("draft_graph"))])
    embed(npu, case)
    launch(npu, decode.in_l2([("draft.norm", ops.rms_norm(tokens, 2 * s.hidden)),
                              ("draft.project", ops.gemm(tokens, s.hidden, 2 * s.hidden))]))  # fmt: skip
    attention(npu, case, _contexts(npu, case), f"draft{number}")
    moe(npu, case, s.layers + number, [])
    head(npu, case)


def attention(npu: Rank, case: Case, contexts: Held, weights: str) -> None:
    """MLA of own requests, with weights that may lie in L2; nothing waits for a prefetch."""
    s, tokens = case.shapes, tokens_of(case)
    launch(npu, decode.in_l2([("attention.norm", ops.add_rms_norm(tokens, s.hidden))]))
    launch(npu, decode.prolog(s, tokens, weights, case.knobs.fused_prolog))
    family, awaited_bytes = case.knobs.attention, 1e6 * case.knobs.prefetch_cache_mb
    launch_own(npu, _uneven(case), lambda rank: decode.attention(s, contexts(rank), family, weights, awaited_bytes))
    launch(npu, decode.output_projection(s, tokens, weights=weights))


def dense(npu: Rank, case: Case) -> None:
    """Dense FFN over the node: gather its tokens, a shard of the width, sum back."""
    s, node, tokens = case.shapes, npu.group("node"), tokens_of(case)
    launch(npu, decode.in_l2([("dense.norm", ops.add_rms_norm(tokens, s.hidden)),
                              ("dense.quantise", ops.quantise(tokens, s.hidden))]))  # fmt: skip
    node.all_gather("dense.gather", tokens * s.hidden, case.knobs.engine)
    width = shard_size(s.dense_intermediate, node.size, "columns of the dense FFN")
    launch(npu, decode.ffn(s, "dense", tokens * node.size, width, quantise=False))
    node.reduce_scatter("dense.reduce_scatter", 2 * tokens * s.hidden, case.knobs.engine)


# --- one MoE layer ----------------------------------------------------------------------------------------------------


def moe(npu: Rank, case: Case, layer: int, following: Blocks) -> None:
    """Norm and quantise, exchange, own experts, exchange back."""
    s, tokens = case.shapes, tokens_of(case)
    launch(npu, decode.in_l2([("gate.norm", ops.add_rms_norm(tokens, s.hidden)),
                              ("gate.quantise", ops.quantise(tokens, s.hidden))]))  # fmt: skip
    rows, normed = _rows(npu, case, layer), npu.record()
    if _by_rows(case):
        shared = _send_rows(npu, case, layer, normed)
    else:
        shared = _gather_side_by_side(npu, case, normed) if case.knobs.streams else _gather_in_order(npu, case)
        launch(npu, _sort("experts.sort", tokens * npu.group("ep").size * s.experts_per_token))
    launch_own(npu, case.routing.skew is not None, lambda rank: [
        *decode.in_l2([("experts.select", ops.copy(sum(rows(rank)) * s.hidden, 1.0))]),
        *decode.experts(s, rows(rank)),
    ])  # fmt: skip
    give_back(npu, case, layer, following)
    npu.wait(shared)
    if s.shared_experts:
        size = 2.0 * tokens * s.hidden
        launch(npu, decode.in_l2([("finalize.add_shared", ops.passes(2.0 * size, size))]))


def _gather_side_by_side(npu: Rank, case: Case, normed: Event) -> Event:
    """Activations, scales, gate and shared expert on streams of their own; the current stream waits for the gathers."""
    s, ep, tokens, engine = case.shapes, npu.group("ep"), tokens_of(case), case.knobs.engine
    with npu.stream(GATHER):
        npu.wait(normed)
        activations = ep.all_gather("dispatch.activations", tokens * s.hidden, engine, _algorithm(case))
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
    s, ep, tokens = case.shapes, npu.group("ep"), tokens_of(case)
    ep.all_gather("dispatch.activations", tokens * s.hidden, case.knobs.engine, _algorithm(case))
    ep.all_gather("dispatch.scales", 4 * tokens, case.knobs.engine, _algorithm(case))
    launch(npu, decode.gate(s, tokens * ep.size))
    shared_expert(npu, case)
    return npu.record()


def _send_rows(npu: Rank, case: Case, layer: int, normed: Event) -> Event:
    """All2All: gate, a copy of each token for each of its experts in their order, counts, then rows and their scales.

    Only the shared expert does not depend on the gate. The current stream waits for rows and scales.
    """
    s, ep, tokens = case.shapes, npu.group("ep"), tokens_of(case)
    with npu.stream(SHARED if case.knobs.streams else DEFAULT_STREAM):
        npu.wait(normed)
        shared_expert(npu, case)
        shared = npu.record()
    launch(npu, decode.gate(s, tokens))
    launch(npu, _sort("gate.sort", tokens * s.experts_per_token))
    launch(npu, decode.in_l2([("gate.copies", ops.passes(tokens * s.hidden, tokens * s.experts_per_token * s.hidden))]))
    ep.all_to_all("dispatch.counts", 4 * s.routed_experts // ep.size, case.knobs.engine, _algorithm(case))
    counted = npu.record()
    with npu.stream(SCALES if case.knobs.streams and case.knobs.scales_beside else DEFAULT_STREAM):
        npu.wait(counted)
        scales = _exchange_rows(npu, case, layer, "dispatch.scales", 4)
    _exchange_rows(npu, case, layer, "dispatch.activations", s.hidden)
    npu.wait(scales)
    return shared


def _exchange_rows(npu: Rank, case: Case, layer: int, name: str, row_bytes: int, back: bool = False) -> Event:
    """Every rank's rows to where their experts are, or back; with drawn routing as uneven as what arrives."""
    s, ep, tokens = case.shapes, npu.group("ep"), tokens_of(case)
    if case.routing.skew is None:
        size = tokens * s.experts_per_token * row_bytes // ep.size
        return ep.all_to_all(name, size, case.knobs.engine, _algorithm(case))

    @cache
    def of_group(group: int) -> Collective:
        arriving = [sum(rows) // ep.size * row_bytes for rows in _drawn_rows(npu, case, layer, group)]
        sizes = tuple((size,) * ep.size for size in arriving) if back else (tuple(arriving),) * ep.size
        return Collective("all_to_all", ep.name, case.knobs.engine, sizes=sizes, algorithm=_algorithm(case))

    return npu.launch_by_rank(lambda rank: of_group(rank // ep.size), name)


def _sort(name: str, choices: int) -> Kernels:
    """Four passes of a radix sort."""
    return decode.in_l2([(name, ops.copy(4 * choices, 4.0))])


def give_back(npu: Rank, case: Case, layer: int, following: Blocks) -> None:
    """The experts' rows to where their tokens are: summed for all tokens and scattered, or row by row.

    Meanwhile what the following layer's MLA reads is prefetched.
    """
    s, ep, tokens, engine = case.shapes, npu.group("ep"), tokens_of(case), case.knobs.engine
    if _by_rows(case):
        prefetch(npu, case, following, npu.record())
        _exchange_rows(npu, case, layer, "combine.rows", 2 * s.hidden, back=True)
        launch(npu, decode.in_l2([("finalize.sum", ops.passes(2.0 * tokens * s.experts_per_token * s.hidden,
                                                              2.0 * tokens * s.hidden))]))  # fmt: skip
        return
    sums = 2.0 * tokens * ep.size * s.hidden  # partial sums of all tokens: larger than what L2 keeps beside weights
    launch(npu, [("finalize.zero", ops.cached(ops.passes(0.0, sums)))])
    launch(npu, [("finalize.sum", ops.passes(sums / 2.0, sums))])
    prefetch(npu, case, following, npu.record())
    ep.reduce_scatter("combine.sums", 2 * tokens * s.hidden, engine, _algorithm(case))


def shared_expert(npu: Rank, case: Case) -> None:
    """Whole on every rank, or a shard of it for the tokens of the node; nothing where the model has none."""
    s, node, tokens = case.shapes, npu.group("node"), tokens_of(case)
    width = s.shared_experts * s.expert_intermediate
    if not width:
        return
    if case.knobs.shared == "dp":
        launch(npu, decode.ffn(s, "shared", tokens, width, quantise=False))
        return
    own = shard_size(width, node.size, "columns of the shared expert")
    node.all_gather("shared.gather", tokens * s.hidden, case.knobs.engine)
    launch(npu, decode.ffn(s, "shared", tokens * node.size, own, quantise=False))
    node.reduce_scatter("shared.reduce_scatter", 2 * tokens * s.hidden, case.knobs.engine)


def prefetch(npu: Rank, case: Case, following: Blocks, after: Event) -> None:
    """Blocks of the next layer's MLA into L2, as far as the budget goes, on a stream of a DMA queue."""
    budget = case.knobs.prefetch_mb * 1e6
    with npu.stream(PREFETCH):
        npu.wait(after)
        for name, block_bytes in following:
            size = min(block_bytes, budget)
            if size:
                npu.prefetch(name, size, case.knobs.prefetch_gb_s * 1e9, pieces=ceil(size / PIECE_BYTES))
            budget -= size


# --- embedding, head --------------------------------------------------------------------------------------------------


def embed(npu: Rank, case: Case) -> None:
    """A vocabulary shard looks up the node's tokens; a ReduceScatter leaves each rank its own."""
    s, node, tokens = case.shapes, npu.group("node"), tokens_of(case)
    size = 2.0 * tokens * node.size * s.hidden
    launch(npu, decode.in_l2([("embedding.lookup", ops.passes(size, size))]))
    node.reduce_scatter("embedding.reduce_scatter", 2 * tokens * s.hidden, case.knobs.engine)


def head(npu: Rank, case: Case) -> None:
    """Norm, the node's tokens gathered, a vocabulary shard of logits, the best of each shard gathered, sampling."""
    s, node, tokens, engine = case.shapes, npu.group("node"), tokens_of(case), case.knobs.engine
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


def launch_own(npu: Rank, uneven: bool, kernels_of: Callable[[int], Kernels]) -> None:
    """Launches whose numbers depend on the rank, where they do."""
    if uneven:
        npu.launch_all_by_rank(kernels_of)
    else:
        launch(npu, kernels_of(npu.first))


def mla_blocks(case: Case, contexts: decode.Contexts, layer: int) -> Blocks:
    """What a layer's MLA reads, in the order of its use; nothing behind the last layer."""
    if layer == case.shapes.layers:
        return []
    cache_bytes = case.knobs.prefetch_cache_mb * 1e6
    blocks = decode.mla_blocks(case.shapes, contexts, case.knobs.fused_prolog, cache_bytes)
    return [(f"layer{layer}.{part}", size) for part, size in blocks]


def _algorithm(case: Case) -> str:
    return {"hierarchical": "hierarchical", "all_to_all": "pairwise"}.get(case.knobs.exchange, "direct")


def _by_rows(case: Case) -> bool:
    """Whether rows go to their experts alone, instead of all tokens to all ranks."""
    return case.knobs.exchange.startswith("all_to_all")


def tokens_of(case: Case) -> int:
    """Query tokens of a rank and iteration."""
    return requests_of(case) * int(case.batch.queries)


def requests_of(case: Case) -> int:
    """Requests of a rank: of a card with several dies, as many on each."""
    requests, dies = int(case.batch.per_card), case.ranks // case.cards
    if requests % dies:
        raise InputError(f"batch.per_card is {requests}: it must be a multiple of machine.dies_per_card, {dies}")
    return requests // dies


def _one_query(case: Case) -> Case:
    """The case of the second draft pass and later ones: the first one has caught up with what was verified."""
    return replace(case, batch=case.batch.model_copy(update={"draft_tokens": 0}))


def _uneven(case: Case) -> bool:
    """Whether ranks differ in nothing but the lengths of what they attend to: a prefetch of it differs in pieces."""
    return bool(case.batch.length_spread) and not case.knobs.prefetch_cache_mb


def _contexts(npu: Rank, case: Case) -> Held:
    """By rank: (queries, cached tokens) of its requests."""
    if _uneven(case):
        held = lengths_of(case)
        return cache(lambda rank: tuple((case.batch.queries, length) for length in held[rank]))
    own = npu.coordinate("lengths")
    assert isinstance(own, tuple)
    contexts = tuple((case.batch.queries, length) for length in own)
    return lambda _: contexts


def lengths_of(case: Case) -> list[tuple[int, ...]]:
    """Cached tokens of every rank's requests."""
    batch = case.batch
    drawn = case.ranks, requests_of(case), batch.cached_tokens, batch.length_spread, case.seed
    return _lengths(drawn, case.ranks, batch.placement == "length_aware")


@lru_cache(maxsize=4)
def _lengths(drawn: tuple, ranks: int, length_aware: bool) -> list[tuple[int, ...]]:
    return on_ranks(cached_lengths(*drawn), ranks, length_aware)


def _rows(npu: Rank, case: Case, layer: int) -> Callable[[int], tuple[int, ...]]:
    """By rank: rows for each local expert, what all ranks' tokens choose."""
    s, ep, skew = case.shapes, npu.group("ep"), case.routing.skew
    if skew is None:
        even = routing_of((tokens_of(case),) * ep.size, s.routed_experts, s.experts_per_token, None, ()).rows(0)
        return lambda _: even
    drawn = cache(partial(_drawn_rows, npu, case, layer))
    return lambda rank: drawn(rank // ep.size)[rank % ep.size]


def _drawn_rows(npu: Rank, case: Case, layer: int, group: int) -> tuple[tuple[int, ...], ...]:
    """Of every rank of a group."""
    s, ep = case.shapes, npu.group("ep")
    counts = (s.routed_experts, s.experts_per_token, s.shared_experts, ep.size, 0)
    load = ExpertLoad(*counts, case.knobs.placement, case.routing.skew or 0.0, case.seed, case.knobs.spare_experts)
    return load.drawn_rows(tokens_of(case) * ep.size, layer, 0, group)
