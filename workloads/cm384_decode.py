"""Decode of DeepSeek-R1 on CloudMatrix384: one iteration of a die.

Every die computes MLA for its own requests (absorbed weights, o_proj over the two dies of the package) and holds expert
slots in one of two roles: routed experts, or the shared expert, which is a ninth expert that every token chooses. Fused
dispatch and combine exchange token copies one-sidedly: a die writes when it is ready and collects when all have.

Two micro-batches run on two streams with cores of their own (`schedules.side_by_side`): the attention stream computes
MLA of one micro-batch while the MoE stream gates, dispatches, computes and combines the other; the second one finds the
first one's weights in L2. Between two iterations is a bubble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from simulator.model import ops
from simulator.model.layout import blocks, shard_size
from simulator.model.transformer import Attention, Layer
from simulator.parallel.border import Engines, cross
from simulator.parallel.exchange.task import ExchangeSettings
from simulator.parallel.mesh import Mesh, coordinates_of
from simulator.program.rank import Rank
from simulator.stack.cann_decode import CannDecode
from simulator.study import scenario
from simulator.study.scenario import Layout, MemoryItem, Workload, decode_measures
from workloads import ascend_decode
from workloads.ascend_decode import (
    AscendDecode,
    Lengths,
    cache_values,
    check_drafts,
    experts_of,
    model_of,
    passes,
    weight_items,
)
from workloads.forward import Tokens
from workloads.schedules import one_stream, side_by_side

ATTENTION, MOE = "attention", "moe"
SLOT_BYTES = 512  # of a token copy, beside its INT8 values: where its scale is


class Dies(Layout):
    """Which dies hold what: tensor_parallel dies share o_proj and the dense FFN, head_parallel the LM head."""

    expert_parallel: PositiveInt = 288
    tensor_parallel: PositiveInt = 2
    head_parallel: PositiveInt = 8
    shared_dies: PositiveInt | None = Field(None, description="dies of the shared expert (left out: one in nine)")
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
        return self.shared_dies or max(self.expert_parallel // 9, 1)

    def mesh(self) -> Mesh:
        """One expert-parallel group."""
        return _mesh(self.expert_parallel, self.tensor_parallel, self.head_parallel, self.shared)


@cache
def _mesh(ep: int, package: int, head: int, shared: int) -> Mesh:
    return Mesh(dp=ep, ep=ep, o_proj=package, dense=package, head=head, embedding=1, shared_places=shared)


class Knobs(BaseModel):
    """The published techniques, one switch each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    micro_batches: Literal[1, 2] = Field(2, description="two: MLA of one beside the MoE layer of the other")
    split: str = Field(
        "16/8", pattern=r"^(\d+/\d+|none)$", description="cube cores of the attention and the MoE stream, or none"
    )
    dispatch: Literal["fused_push", "fused_pull", "fused_both"] = Field(
        "fused_both",
        description="token copies are written, read, or both at once: an engine for dispatch and one for combine",
    )
    engine: str = Field("aiv_small", description="what drives the collectives of tensor parallelism")
    attention: Literal["mla_attention", "mla_attention_mtp", "mla_attention_amla"] = Field(
        "mla_attention_mtp", description="generation of the attention kernel"
    )
    fused_prolog: bool = Field(True, description="MLAProlog in one kernel")
    draft_graphs: Literal["pipelined", "separate"] = Field(
        "pipelined", description="separate: the CPU intervenes before every MTP graph"
    )


Case = scenario.Case[scenario.Requests, Dies, Knobs]


class Die(AscendDecode):
    """A pass of one die."""

    def _project_back(self, attention: Attention, tokens: Tokens) -> None:
        """o_proj over the dies of the package: gather its tokens, a shard of the heads, sum back."""
        group, split = self.npu.group("o_proj"), self.mesh.split("o_proj")
        together = tokens.batch.tokens * split
        quantise, product = self.stack.output(self.model, attention, together, split)
        self.launch([quantise])
        group.all_gather("attention.gather", tokens.batch.tokens * product[1].k * split, self.engines.engine)
        self.launch([product])
        cross(group, "attention.reduce_scatter", "partial", "own", together, 2.0 * self.model.hidden, self.engines)


def iteration(npu: Rank, case: Case) -> None:
    """Verify, sample, draft."""
    npu.program.captured = True
    two, stack = case.knobs.micro_batches == 2, stack_of(case)
    partition(npu, case)
    with npu.stream(ATTENTION):
        for number, (layers, which, queries) in enumerate(passes(case, model_of(case))):
            step = die(npu, case, stack, layers, which)
            if number and case.knobs.draft_graphs == "separate":
                npu.launch(ops.delay("draft_graph"), "draft.graph")
            (step.project if number else step.embed)(whole(case, queries))
            halves = halves_of(case, queries)
            for half in halves:
                half.after = npu.record()
            (side_by_side if two else one_stream)(step, *halves)
            for half in halves:
                step.wait(half)
            step.head(whole(case, queries))
        npu.launch(ops.delay("iteration_bubble"), "bubble")


def die(npu: Rank, case: Case, stack: CannDecode, numbers: Sequence[int], layers: Sequence[Layer]) -> Die:
    """A pass of a die through some layers."""
    knobs = case.knobs
    exchange = ExchangeSettings("put_collect", knobs.dispatch, case.routing.skew, case.seed, slot_bytes=SLOT_BYTES,
                                combine_engine=f"{knobs.dispatch}_combine", draws="together",
                                placement=case.layout.placement)  # fmt: skip
    return Die(npu, model_of(case), case.layout.mesh(), stack, Engines(knobs.engine, "direct"), exchange,
               residual_split=False, labelled=True, numbers=numbers, layers=layers)  # fmt: skip


def stack_of(case: Case) -> CannDecode:
    """Kernels of the iteration; the fused dispatch quantises."""
    return CannDecode(attention=case.knobs.attention, fused_prolog=case.knobs.fused_prolog, quantises=("dense",))


def partition(npu: Rank, case: Case) -> None:
    """Cores of their own for the two streams; without a split they take what is free."""
    if case.knobs.micro_batches == 2 and case.knobs.split != "none":
        for stream, cubes in zip((ATTENTION, MOE), case.knobs.split.split("/"), strict=True):
            npu.confine(stream, CannDecode().cores(int(cubes)))


def halves_of(case: Case, queries: int) -> list[Tokens]:
    """A die's requests as micro-batches; with one request there is one, on the cores of a half."""
    parts, padded = case.knobs.micro_batches, requests_of(case)
    return [ascend_decode.tokens_of(case.layout.mesh(), held_by(case), queries, len(range(number, padded, parts)),
                                    number, parts) for number in range(min(parts, padded))]  # fmt: skip


def whole(case: Case, queries: int) -> Tokens:
    """All tokens of a die, which belong to no micro-batch."""
    return ascend_decode.tokens_of(case.layout.mesh(), held_by(case)[:1], queries, requests_of(case), number=-1)


def held_by(case: Case) -> Lengths:
    """Cached tokens of every die's requests; those of a card are dealt to its dies."""
    return ascend_decode.lengths_of(case, case.cards, case.batch.per_card)


def requests_of(case: Case) -> int:
    """Requests of the fullest die: a captured graph pads the others to it."""
    return -(-case.batch.per_card * case.cards // case.ranks)


# --- what a scenario needs to know ------------------------------------------------------------------------------------


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Expert-parallel groups, packages, and the groups that share the LM head."""
    check_drafts(case)
    layout, ranks = case.layout, case.ranks
    for layer in case.model.layers:
        shard_size(layer.attention.heads, layout.tensor_parallel, "heads")
    package = blocks(ranks, layout.tensor_parallel, "layout.tensor_parallel")
    return {"ep": blocks(ranks, layout.expert_parallel, "layout.expert_parallel"), "o_proj": package, "dense": package,
            "head": blocks(ranks, layout.head_parallel, "layout.head_parallel"), "tensor": blocks(ranks, 1)}


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """The last dies of a group have the shared expert."""
    return coordinates_of(case.layout.mesh(), rank)


def memory(case: Case) -> list[MemoryItem]:
    """Weights of a die with routed experts; latent cache in BF16; buffers."""
    model, batch, requests = model_of(case), case.batch, requests_of(case)
    fullest = max(map(sum, held_by(case))) + requests * (batch.output_tokens - batch.output_tokens // 2)
    tokens, hidden, experts = requests * batch.queries, model.hidden, experts_of(model)
    away = tokens * (experts.per_token + 1)
    return [
        *weight_items(model, case.layout.mesh(), ("attention, own part of o_proj", "expert slots",
                                    "embedding, and a shard of the head")),
        ("latent cache, BF16, full outputs", "KV", 2 * fullest * cache_values(model)),
        ("hidden states and experts' rows", "activations", away * (4 * hidden + 16 * experts.intermediate)),
        ("logits", "activations", 2 * tokens * model.vocabulary),
        ("dispatch and combine buffers, double", "communication", 2 * away * (hidden + SLOT_BYTES + 2 * hidden)),
    ]  # fmt: skip


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Iteration, TPOT, throughput per card."""
    return decode_measures(case.batch, seconds)


ITERATION = Workload(iteration, groups, coordinates, memory, measures)
