"""Decode of DeepSeek-R1 on Atlas 800I A2: one iteration of a rank.

MLA data parallel with absorbed weights; dense FFN, embedding and LM head tensor parallel inside a node; experts expert
parallel over all ranks with AllGather and ReduceScatter, pipelined over nodes, under which the next layer's MLA weights
are prefetched into L2 (`prefetch`). With All2All instead rows go only to their experts, and not before the gate has
chosen them. Before every pass of the MTP layer the CPU intervenes, and between two iterations is a bubble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from simulator.model import ops
from simulator.model.drafts import check_drafts, passes
from simulator.model.layout import blocks
from simulator.model.passes import decode_batches
from simulator.model.transformer import Layer, experts_of
from simulator.parallel.border import Engines
from simulator.parallel.exchange.all_gather import AllGather
from simulator.parallel.exchange.sorted_rows import SortedRows
from simulator.parallel.exchange.task import ExchangeSettings
from simulator.parallel.forward import Forward
from simulator.parallel.ledger import cache_bytes, weights_of
from simulator.parallel.mesh import Mesh, coordinates_of, groups_of
from simulator.parallel.prefetch import prefetching
from simulator.parallel.tokens import Tokens, tokens_of
from simulator.program.rank import DEFAULT_STREAM, Event, Rank
from simulator.stack.cann import quantised
from simulator.stack.cann_decode import CannDecode, DecodeKernels
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Workload
from simulator.study.some_layers import LAYERS, decode_readings, measures, simulated

GATHER, SCALES, GATE, SHARED = "gather", "scales", "gate", "shared"


class Knobs(DecodeKernels):
    """The published techniques, one switch each."""

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
    layers: int = LAYERS
    spare_experts: int = Field(0, ge=0, le=8, description="slots per rank for replicas of experts (EPLB)")


Case = scenario.Case[scenario.Requests, scenario.Layout, Knobs]


def iteration(npu: Rank, case: Case) -> None:
    """Verify, sample, draft."""
    npu.program.captured = True
    model = quantised(case.model)
    verifying = simulated(model.layers, case.knobs.layers)
    for number, (numbers, layers, queries) in enumerate(passes(model, case.batch.draft_tokens, verifying)):
        step, a = rank_of(npu, case, numbers, layers), requests_of(npu, case, queries)
        with npu.scope(layer=numbers[0] if number else -1):
            if number:
                npu.launch(ops.delay("draft_graph"), "draft.graph")
            (step.project if number else step.embed)(a)
            for layer in step.layers():
                step.attend(a)
                if step.is_dense(layer):
                    step.dense(a)
                else:
                    with_experts(step, a, case.knobs)
            step.head(a)
    npu.launch(ops.delay("iteration_bubble"), "bubble")


def with_experts(step: Forward, a: Tokens, knobs: Knobs) -> None:
    """Norm and quantise, exchange, own experts, exchange back, and the shared expert added."""
    step.norm_experts(a)
    if isinstance(a.exchange, SortedRows):
        shared = send_rows(step, a, a.exchange, knobs)
    else:
        assert isinstance(a.exchange, AllGather)
        shared = (gather_side_by_side if knobs.streams else gather_in_order)(step, a, a.exchange, knobs)
    step.experts(a)
    step.combine(a)
    step.npu.wait(shared)
    step.finalize(a)


def gather_side_by_side(step: Forward, a: Tokens, exchange: AllGather, knobs: Knobs) -> Event:
    """All that the experts wait for at the same time; for the shared expert, whose event this is, they do not.

    gather  activations
    scales  scales
    gate    choose a | choices
    shared  shared a
    """
    normed, scales = step.npu.record(), SCALES if knobs.scales_beside else GATHER
    gathered = [
        step.aside(GATHER, normed, exchange.activations),
        step.aside(scales, normed, exchange.scales),
        step.aside(GATE, normed, lambda: step.choose(a), exchange.choices),
    ]
    shared = step.aside(SHARED, normed, lambda: step.shared(a))
    for event in gathered:
        step.npu.wait(event)
    return shared


def gather_in_order(step: Forward, a: Tokens, exchange: AllGather, _: Knobs) -> Event:
    """One stream; the gate is computed after the AllGather, on the tokens of all ranks.

    activations | scales | choose all | shared a
    """
    exchange.activations()
    exchange.scales()
    step.choose(a, step.npu.group("ep").size)
    step.shared(a)
    return step.npu.record()


def send_rows(step: Forward, a: Tokens, exchange: SortedRows, knobs: Knobs) -> Event:
    """Rows wait for gate and counts; only the shared expert does not.

    compute  choose a | announce | activations |
    scales                       | scales      |
    shared   shared a
    """
    normed = step.npu.record()
    shared = step.aside(SHARED if knobs.streams else DEFAULT_STREAM, normed, lambda: step.shared(a))
    step.choose(a)
    exchange.announce()
    beside = SCALES if knobs.streams and knobs.scales_beside else DEFAULT_STREAM
    scales = step.aside(beside, step.npu.record(), exchange.scales)
    exchange.activations()
    step.npu.wait(scales)
    return shared


def rank_of(npu: Rank, case: Case, numbers: Sequence[int], layers: Sequence[Layer]) -> Forward:
    """A pass of a rank through some layers."""
    knobs = case.knobs
    algorithm = {"hierarchical": "hierarchical", "all_to_all": "pairwise"}.get(knobs.exchange, "direct")
    exchange = ExchangeSettings("sorted_rows" if knobs.exchange.startswith("all_to_all") else "all_gather",
                                knobs.engine, case.routing.skew, case.seed, algorithm=algorithm,
                                together=knobs.placement)  # fmt: skip
    stack = CannDecode(attention=knobs.attention, fused_prolog=knobs.fused_prolog, in_l2=("attention",),
                       cached_bytes=1e6 * knobs.prefetch_cache_mb, fractal=1)  # fmt: skip
    step = Forward(npu, quantised(case.model), mesh_of(case), stack, Engines(knobs.engine, "direct"), exchange,
                   False, ("layer",), numbers, layers)  # fmt: skip
    return prefetching(step, 1e6 * knobs.prefetch_mb, 1e9 * knobs.prefetch_gb_s)


def requests_of(npu: Rank, case: Case, queries: int) -> Tokens:
    """The requests of a rank; a prefetch of their cache differs in pieces, so that each rank records its own."""
    uneven = case.batch.held or case.batch.length_spread
    own = npu.rank if case.knobs.prefetch_cache_mb and uneven else 0
    each = case.batch.per_die(case.cards, case.ranks)
    held = case.batch.lengths(case.ranks, each, case.ranks, case.seed)
    batches = decode_batches(held, queries, rows=case.batch.rows)
    tokens = tokens_of(batches, 1, own)[0]
    return replace(tokens, batches=()) if own or case.knobs.prefetch_cache_mb else tokens


def mesh_of(case: Case) -> Mesh:
    """Nodes share dense FFN, embedding and head; there may be several groups of experts."""
    node, ep, knobs = case.layout.tensor_parallel, case.layout.expert_parallel, case.knobs
    return Mesh(dp=case.ranks, ep=ep, replicas=case.ranks // ep, dense=node, embedding=node, head=node,
                shared=node if knobs.shared == "tp" else 1, redundant=knobs.spare_experts)  # fmt: skip


# --- what a scenario needs to know ------------------------------------------------------------------------------------


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Expert-parallel groups, and the tensor-parallel groups inside nodes."""
    layout = case.layout
    check_drafts(case.model, case.batch.draft_tokens, "batch.draft_tokens")
    experts_of(case.model, layout.expert_parallel if case.routing.skew is None else 1)
    blocks(case.ranks, layout.expert_parallel, "layout.expert_parallel")
    blocks(case.ranks, layout.tensor_parallel, "layout.tensor_parallel")
    return groups_of(mesh_of(case))


def memory(case: Case) -> list[MemoryItem]:
    """Weights and cache of a rank; tokens of all ranks."""
    batch, model, mesh = case.batch, quantised(case.model), mesh_of(case)
    requests, longest = batch.per_die(case.cards, case.ranks), batch.prompt_tokens + batch.output_tokens
    full = max(batch.held, key=sum) if batch.held else [longest] * requests
    together = requests * batch.queries * case.layout.expert_parallel * model.hidden
    return [
        *weights_of(model, mesh, 0, drafts=True, absorbed=False),
        ("latent cache, BF16, full outputs", "KV", cache_bytes(model, mesh, full, drafts=True)),
        ("gathered tokens and sums", "activations", together * (1 + 2 * 2)),
        ("exchange buffers", "communication", together * 3),
    ]


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """Where it is in the mesh."""
    return coordinates_of(mesh_of(case), rank)


def data_parallel(case: Case) -> int:
    """Every rank has requests of its own."""
    return case.ranks


ITERATION = Workload(iteration, groups, coordinates, memory, measures, readings=decode_readings,
                     data_parallel=data_parallel)
