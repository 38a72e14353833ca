"""Decode of DeepSeek-R1 on CloudMatrix384: one iteration of a die.

Every die computes MLA for its own requests (absorbed weights, o_proj over the two dies of the package) and holds expert
slots in one of two roles: routed experts, or the shared expert, which is a ninth expert that every token chooses. Fused
dispatch and combine exchange token copies one-sidedly: a die writes when it is ready and collects when all have.

Two micro-batches run on two streams with cores of their own (`schedules.side_by_side`): the attention stream computes
MLA of one micro-batch while the MoE stream gates, dispatches, computes and combines the other; the second one finds the
first one's weights in L2. Between two iterations is a bubble.

Two parts stand alone, too: `exchanges` (dispatch and combine, for the latency of the fused kernels) and `attentions`
(the attention kernels on their stream's cores: the theoretical bound in which MLA hides everything else).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from simulator.model import ops
from simulator.model.drafts import check_drafts, passes
from simulator.model.layout import blocks, shard_size
from simulator.model.passes import decode_batches
from simulator.model.transformer import Attention, Layer, experts_of
from simulator.parallel.border import Engines, cross
from simulator.parallel.exchange.task import ExchangeSettings
from simulator.parallel.exchange.ways import EXCHANGES
from simulator.parallel.forward import Forward
from simulator.parallel.ledger import cache_bytes, weights_of
from simulator.parallel.mesh import Mesh, coordinates_of, groups_of
from simulator.parallel.tokens import Tokens, tokens_of
from simulator.program.rank import Rank
from simulator.stack.cann import quantised
from simulator.stack.cann_decode import CannDecode, DecodeKernels
from simulator.study import scenario
from simulator.study.readings import least_span_us, span_us
from simulator.study.scenario import Layout, MemoryItem, Workload
from simulator.study.some_layers import LAYERS, decode_readings, measures, simulated
from workloads.schedules import one_stream, side_by_side

ATTENTION, MOE = "attention", "moe"
REPEATS = 20  # of `exchanges`
SLOT_BYTES = 512  # of a token copy, beside its INT8 values: where its scale is


class Dies(Layout):
    """Which dies hold what: tensor_parallel dies share o_proj and the dense FFN, head_parallel the LM head."""

    expert_parallel: PositiveInt = 288
    tensor_parallel: PositiveInt = 2
    head_parallel: PositiveInt = 8
    shared_dies: NonNegativeInt | None = Field(
        None, description="dies of the shared expert (left out: one in nine; 0: no token is sent to one)"
    )
    placement: Literal["in_order", "eplb"] = Field(
        "eplb", description="experts in order, or replicated and packed by their popularity"
    )

    @model_validator(mode="after")
    def _leaves_dies_for_routed_experts(self) -> Dies:
        if self.shared >= self.expert_parallel:
            what = f"{self.shared} of {self.expert_parallel} dies hold the shared expert"
            raise ValueError(f"{what}: none are left for routed ones")
        return self

    @property
    def shared(self) -> int:
        """Dies of the shared expert in an expert-parallel group."""
        return max(self.expert_parallel // 9, 1) if self.shared_dies is None else self.shared_dies

    def mesh(self, ranks: int) -> Mesh:
        """Of so many dies."""
        ep, package = self.expert_parallel, self.tensor_parallel
        return Mesh(dp=ranks, ep=ep, replicas=ranks // ep, o_proj=package, dense=package, head=self.head_parallel,
                    embedding=1, shared_places=self.shared)  # fmt: skip


class Knobs(DecodeKernels):
    """The published techniques, one switch each."""

    micro_batches: Literal[1, 2] = Field(2, description="two: MLA of one beside the MoE layer of the other")
    split: str = Field(
        "16/8", pattern=r"^(\d+/\d+|none)$", description="cube cores of the attention and the MoE stream, or none"
    )
    dispatch: Literal["fused_push", "fused_pull", "fused_both", "normal"] = Field(
        "fused_both",
        description="token copies are written, read, or both at once, or written by kernels for many tokens: an engine"
        " for dispatch and one for combine",
    )
    engine: str = Field("aiv_small", description="what drives the collectives of tensor parallelism")
    layers: int = LAYERS
    draft_graphs: Literal["pipelined", "separate"] = Field(
        "pipelined", description="separate: the CPU intervenes before every MTP graph"
    )


Case = scenario.Case[scenario.Requests, Dies, Knobs]


class Die(Forward):
    """A pass of one die."""

    def _project_back(self, attention: Attention, tokens: Tokens) -> None:
        """o_proj over the dies of the package: gather its tokens, a shard of the heads, sum back."""
        group, split, count = self.npu.group("o_proj"), self.mesh.split("o_proj"), tokens.batch.tokens
        quantise, product = self.stack.output(self.model, attention, count * split, split)
        self.launch([quantise])
        group.all_gather("attention.gather", count * product[1].k * split, self.engines.engine)
        self.launch([product])
        cross(group, "attention.reduce_scatter", "partial", "own", count * split, self._row_bytes, self.engines)


def iteration(npu: Rank, case: Case) -> None:
    """Verify, sample, draft."""
    npu.program.captured = True
    partition(npu, case)
    two, held = case.knobs.micro_batches == 2, held_by(case)
    parts = case.knobs.micro_batches if max(map(len, held)) > 1 else 1  # then on the cores of a half
    with npu.stream(ATTENTION):
        for number, (numbers, layers, queries) in enumerate(passes_of(case)):
            step = die(npu, case, numbers, layers)
            if number and case.knobs.draft_graphs == "separate":
                npu.launch(ops.delay("draft_graph"), "draft.graph")
            (step.project if number else step.embed)(whole(case, queries))
            halves = tokens_of(decode_batches(held, queries, rows=case.batch.rows), parts)
            for half in halves:
                half.after = npu.record()
            (side_by_side if two else one_stream)(step, *halves)
            for half in halves:
                step.wait(half)
            step.head(whole(case, queries))
        npu.launch(ops.delay("iteration_bubble"), "bubble")


def passes_of(case: Case) -> Iterator[tuple[Sequence[int], Sequence[Layer], int]]:
    """Of an iteration, through the layers that are simulated."""
    model = quantised(case.model)
    return passes(model, case.batch.draft_tokens, simulated(model.layers, case.knobs.layers))


def die(npu: Rank, case: Case, numbers: Sequence[int], layers: Sequence[Layer]) -> Die:
    """A pass of a die through some layers; the fused dispatch quantises."""
    knobs = case.knobs
    stack = CannDecode(attention=knobs.attention, fused_prolog=knobs.fused_prolog, quantises=False)
    exchange = ExchangeSettings("put_collect", knobs.dispatch, case.routing.skew, case.seed, slot_bytes=SLOT_BYTES,
                                combine_engine=f"{knobs.dispatch}_combine", together=case.layout.placement)
    return Die(npu, quantised(case.model), case.layout.mesh(case.ranks), stack, Engines(knobs.engine, "direct"),
               exchange, False, ("layer", "micro_batch"), numbers, layers)  # fmt: skip


def partition(npu: Rank, case: Case) -> None:
    """Cores of their own for the two streams; without a split they take what is free."""
    if case.knobs.micro_batches == 2 and case.knobs.split != "none":
        for stream, cubes in zip((ATTENTION, MOE), case.knobs.split.split("/"), strict=True):
            npu.confine(stream, CannDecode().cores(int(cubes)))


def whole(case: Case, queries: int) -> Tokens:
    """All tokens of a die, which belong to no micro-batch; those of the others are as many."""
    batch = max(decode_batches(held_by(case), queries, -1, case.batch.rows), key=lambda one: len(one.decodes))
    return Tokens(batch, (batch.tokens,) * case.ranks)


def held_by(case: Case) -> Sequence[tuple[int, ...]]:
    """Cached tokens of every die's requests; those of a card are dealt to its dies."""
    return case.batch.lengths(case.cards, case.batch.per_card, case.ranks, case.seed)


# --- parts alone ------------------------------------------------------------------------------------------------------


def exchanges(npu: Rank, case: Case) -> None:
    """Dispatches and combines of whole iterations' tokens, one after the other: with drawn routing, or each die getting
    as much as it sends."""
    npu.program.captured = True
    model, tokens = quantised(case.model), whole(case, case.batch.queries)
    step, experts = die(npu, case, range(len(model.layers)), model.layers), experts_of(case.model)
    if case.routing.skew is None:
        experts = replace(experts, routed=step.mesh.ep, per_token=experts.per_token + bool(case.layout.shared))
        step.mesh = step.mesh.model_copy(update={"shared_places": 0})
    for layer in range(REPEATS):
        exchange = EXCHANGES["put_collect"](replace(step.task(tokens, experts, layer), number=0))
        with npu.scope(layer=layer):
            exchange.dispatch()
            exchange.combine()


def attentions(npu: Rank, case: Case) -> None:
    """Every layer's attention kernel, MTP layer included."""
    npu.program.captured = True
    partition(npu, case)
    batch = decode_batches(held_by(case), case.batch.queries)[0]
    with npu.stream(ATTENTION):
        for numbers, layers, _ in passes_of(case):
            step = die(npu, case, numbers, layers)
            for layer in step.layers():
                kernels = dict(step.stack.attend(step.model, layer.attention, batch, 1, 1))
                npu.launch(kernels["attention.core"], "attention.core")


def exchange_readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Each of the two, from its start to the last arrival, and the values of all copies over that time."""
    copies = case.batch.queries * max(map(len, held_by(case)))
    copies *= experts_of(case.model).per_token + bool(case.layout.shared)
    found = {}
    for name, width in (("dispatch", 1), ("combine", 2)):
        found[f"{name}_us"] = length_us = span_us(columns, f"{name}.write", f"{name}.arrive")
        found[f"{name}_gb_s"] = copies * width * case.model.hidden / length_us / 1e3
    return found


def iteration_readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Of dispatch and combine, on average and the shortest: that of a die which waits for no other. Of a part of the
    layers also what all of them take."""
    found = decode_readings(case, columns)
    for name in ("dispatch", "combine"):
        found[f"{name}_us"] = span_us(columns, f"{name}.write", f"{name}.arrive")
        found[f"least_{name}_us"] = least_span_us(columns, f"{name}.write", f"{name}.arrive")
    return found


def exchange_measures(_: Case, seconds: float) -> Mapping[str, float]:
    """Latency of a dispatch and a combine together."""
    return {"dispatch_combine_us": seconds / REPEATS * 1e6}


# --- what a scenario needs to know ------------------------------------------------------------------------------------


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Expert-parallel groups, packages, and the groups that share the LM head."""
    check_drafts(case.model, case.batch.draft_tokens, "batch.draft_tokens")
    shard_size(case.model.layers[0].attention.heads, case.layout.tensor_parallel, "heads")
    for name in ("tensor_parallel", "expert_parallel", "head_parallel"):
        blocks(case.ranks, getattr(case.layout, name), f"layout.{name}")
    return groups_of(case.layout.mesh(case.ranks))


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """The last dies of a group have the shared expert."""
    return coordinates_of(case.layout.mesh(case.ranks), rank)


def memory(case: Case) -> list[MemoryItem]:
    """Weights and cache of the fullest die, and buffers."""
    model, batch, held, experts = quantised(case.model), case.batch, held_by(case), experts_of(case.model)
    mesh, requests = case.layout.mesh(case.ranks), max(map(len, held))
    tokens = max(map(sum, held))
    if not batch.held:
        tokens += requests * (batch.output_tokens - batch.output_tokens // 2)
    away = requests * batch.queries * (experts.per_token + bool(case.layout.shared))
    return [
        *weights_of(model, mesh, 0, drafts=True, absorbed=False),
        ("latent cache, BF16, full outputs", "KV", cache_bytes(model, mesh, [tokens], drafts=True)),
        ("hidden states and experts' rows", "activations", away * (4 * model.hidden + 16 * experts.intermediate)),
        ("logits", "activations", 2 * requests * batch.queries * model.vocabulary),
        *exchange_memory(case),
    ]


def exchange_memory(case: Case) -> list[MemoryItem]:
    """The buffers of dispatch and combine."""
    copies = max(map(len, held_by(case))) * case.batch.queries
    copies *= experts_of(case.model).per_token + bool(case.layout.shared)
    size = 2 * copies * (3 * case.model.hidden + SLOT_BYTES)
    return [("dispatch and combine buffers, double", "communication", size)]


def data_parallel(case: Case) -> int:
    """Every die has requests of its own."""
    return case.ranks


ITERATION = Workload(iteration, groups, coordinates, memory, measures, readings=iteration_readings,
                     data_parallel=data_parallel)
EXCHANGE = Workload(exchanges, groups, coordinates, exchange_memory, exchange_measures, readings=exchange_readings)
BOUND = Workload(attentions, groups, coordinates, memory, measures)
