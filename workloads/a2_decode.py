"""Decode of DeepSeek-R1 on Atlas 800I A2: one iteration of a rank.

MLA data parallel with absorbed weights; dense FFN, embedding and LM head tensor parallel inside a node; experts expert
parallel over all ranks with AllGather and ReduceScatter, pipelined over nodes, under which the next layer's MLA weights
are prefetched into L2 (`prefetch`). With All2All instead rows go only to their experts, and not before the gate has
chosen them. Before every pass of the MTP layer the CPU intervenes, and between two iterations is a bubble.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.errors import InputError
from simulator.model import ops
from simulator.model.layout import blocks
from simulator.model.transformer import Layer
from simulator.parallel.border import Engines, Form
from simulator.parallel.exchange.all_gather import AllGather
from simulator.parallel.exchange.task import Exchange, ExchangeSettings, ExpertTask
from simulator.parallel.mesh import Mesh
from simulator.program.rank import DEFAULT_STREAM, Event, Rank
from simulator.program.task import Collective
from simulator.stack.cann_decode import CannDecode
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Workload, decode_measures
from workloads import ascend_decode
from workloads.ascend_decode import AscendDecode, Lengths, cache_values, check_drafts, model_of, passes, weight_items
from workloads.forward import Tokens
from workloads.prefetch import prefetching

GATHER, SCALES, GATE, SHARED = "gather", "scales", "gate", "shared"


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

    @property
    def algorithm(self) -> str:
        """Of the exchange."""
        return {"hierarchical": "hierarchical", "all_to_all": "pairwise"}.get(self.exchange, "direct")


Case = scenario.Case[scenario.Requests, scenario.Layout, Knobs]


def iteration(npu: Rank, case: Case) -> None:
    """Verify, sample, draft."""
    npu.program.captured = True
    for number, (layers, which, queries) in enumerate(passes(case, model_of(case))):
        step = A2Decode(npu, case, layers, which)
        with npu.scope(layer=layers[0] if number else -1):
            if number:
                npu.launch(ops.delay("draft_graph"), "draft.graph")
            tokens = tokens_of(npu, case, queries)
            (step.project if number else step.embed)(tokens)
            for layer in step.layers():
                step.attend(tokens)
                step.feed_forward(tokens, layer)
            step.head(tokens)
    npu.launch(ops.delay("iteration_bubble"), "bubble")


class A2Decode(AscendDecode):
    """A pass of one rank; its layers with experts are one of the three figures below."""

    def __init__(self, npu: Rank, case: Case, numbers: list[int], layers: Sequence[Layer]) -> None:
        knobs = case.knobs
        exchange = ExchangeSettings("all_gather", knobs.engine, case.routing.skew, case.seed, knobs.algorithm,
                                    draws="together", placement=knobs.placement)  # fmt: skip
        stack = CannDecode(attention=knobs.attention, fused_prolog=knobs.fused_prolog, in_l2=("attention",),
                           cached_bytes=1e6 * knobs.prefetch_cache_mb, fractal=1)  # fmt: skip
        super().__init__(npu, model_of(case), mesh_of(case), stack, Engines(knobs.engine, "direct"), exchange,
                         residual_split=False, labelled=False, numbers=numbers, layers=layers)  # fmt: skip
        self.knobs = knobs
        prefetching(self, 1e6 * knobs.prefetch_mb, 1e9 * knobs.prefetch_gb_s)

    def _exchange(self, tokens: Tokens) -> Exchange:
        way = SentRows if self.knobs.exchange.startswith("all_to_all") else AllGather
        return way(self.task(tokens, self._experts, self._number))

    def feed_forward(self, tokens: Tokens, layer: Layer) -> None:
        """Dense, or norm and quantise, exchange, own experts, exchange back, and the shared expert added."""
        if self.is_dense(layer):
            self.dense(tokens)
            return
        self.norm_experts(tokens)
        if isinstance(tokens.exchange, SentRows):
            shared = self.send_rows(tokens, tokens.exchange)
        elif self.knobs.streams:
            shared = self.gather_side_by_side(tokens, tokens.exchange)
        else:
            shared = self.gather_in_order(tokens, tokens.exchange)
        self.experts(tokens)
        self.combine(tokens)
        self.npu.wait(shared)
        self.finalize(tokens)

    def gather_side_by_side(self, a: Tokens, exchange: AllGather) -> Event:
        """All that the experts wait for at the same time; the shared expert, whose event this is, waits for nothing.

        gather  activations
        scales  scales
        gate    choose a | choices
        shared  shared a
        """
        normed, scales = self.npu.record(), SCALES if self.knobs.scales_beside else GATHER
        gathered = [
            self.aside(GATHER, normed, exchange.activations),
            self.aside(scales, normed, exchange.scales),
            self.aside(GATE, normed, lambda: self.choose(a), exchange.choices),
        ]
        shared = self.aside(SHARED, normed, lambda: self.shared(a))
        for event in gathered:
            self.npu.wait(event)
        return shared

    def gather_in_order(self, a: Tokens, exchange: AllGather) -> Event:
        """One stream; the gate is computed after the AllGather, on the tokens of all ranks.

        activations | scales | choose all | shared a
        """
        exchange.activations()
        exchange.scales()
        self.choose(a, self.npu.group("ep").size)
        self.shared(a)
        return self.npu.record()

    def send_rows(self, a: Tokens, exchange: SentRows) -> Event:
        """Rows wait for gate and counts; only the shared expert does not.

        compute  choose a | announce | activations |
        scales                       | scales      |
        shared   shared a
        """
        knobs, normed = self.knobs, self.npu.record()
        shared = self.aside(SHARED if knobs.streams else DEFAULT_STREAM, normed, lambda: self.shared(a))
        self.choose(a)
        exchange.announce()
        beside = SCALES if knobs.streams and knobs.scales_beside else DEFAULT_STREAM
        scales = self.aside(beside, self.npu.record(), exchange.scales)
        exchange.activations()
        self.npu.wait(scales)
        return shared

    def aside(self, stream: str, after: Event, *pieces: Callable[[], object]) -> Event:
        """Pieces in a stream after an event, and the event of their end."""
        with self.npu.stream(stream):
            self.npu.wait(after)
            for piece in pieces:
                piece()
            return self.npu.record()


class SentRows:
    """All2All: a copy of each token for each of its experts in their order, counts, then rows and their scales, and
    every result back."""

    needs: Form = "own"
    gives: Form = "own"

    def __init__(self, task: ExpertTask) -> None:
        self._task, self._group = task, task.npu.group("ep")
        self._tokens, self._copies = task.own[0], task.own[0] * task.experts.per_token

    def dispatch(self) -> None:
        """All of it in one stream."""
        self.announce()
        self.scales()
        self.activations()

    def announce(self) -> None:
        """Copies in the order of their experts, and how many there are."""
        task, npu, hidden = self._task, self._task.npu, self._task.model.hidden
        npu.launch(ops.cached(ops.copy(4 * self._copies, 4.0)), "gate.sort")  # four passes of a radix sort
        npu.launch(ops.cached(ops.passes(self._tokens * hidden, self._copies * hidden)), "gate.copies")
        size = 4 * task.experts.routed // self._group.size
        self._group.all_to_all("dispatch.counts", size, task.via, task.moving.algorithm)

    def scales(self) -> None:
        """Of each row, FP32."""
        self._send("dispatch.scales", 4)

    def activations(self) -> None:
        """Of each row, INT8."""
        self._send("dispatch.activations", self._task.model.hidden)

    def compute(self) -> None:
        """Own experts on the rows that came."""
        task, rows_of = self._task, self._task.rows_of(self._task.own)
        hidden, uneven = task.model.hidden, task.settings.skew is not None
        task.launch(uneven, lambda rank: [("experts.select", ops.cached(ops.copy(sum(rows_of(rank)) * hidden, 1.0)))])
        task.launch_experts(task.own, lambda _: 0)

    def combine(self) -> None:
        """Every row back, and the weighted sum of each token's."""
        hidden = self._task.model.hidden
        self._send("combine.rows", 2 * hidden, back=True)
        self._task.npu.launch(ops.cached(ops.passes(2.0 * self._copies * hidden, 2.0 * self._tokens * hidden)),
                              "finalize.sum")  # fmt: skip

    def _send(self, name: str, row_bytes: int, back: bool = False) -> None:
        """Every rank's rows to where their experts are, or back; with drawn routing as uneven as what arrives."""
        task, group = self._task, self._group
        via, algorithm = task.via, task.moving.algorithm
        if task.settings.skew is None:
            group.all_to_all(name, self._copies * row_bytes // group.size, via, algorithm)
            return

        @cache
        def of_group(number: int) -> Collective:
            sizes = task.routed(task.own, number).sizes(row_bytes)
            return Collective("all_to_all", group.name, via, sizes=tuple(zip(*sizes, strict=True)) if back else sizes,
                              algorithm=algorithm)  # fmt: skip

        task.npu.launch_by_rank(lambda rank: of_group(rank // group.size), name)


def tokens_of(npu: Rank, case: Case, queries: int) -> Tokens:
    """The requests of a rank; a prefetch of their cache differs in pieces, so that each rank records its own."""
    tokens = ascend_decode.tokens_of(mesh_of(case), lengths_of(case), queries, padded=0)
    if case.knobs.prefetch_cache_mb and case.batch.length_spread:
        return replace(tokens, batch=tokens.batches[npu.rank], batches=())
    return tokens


def lengths_of(case: Case) -> Lengths:
    """Cached tokens of every rank's requests."""
    return ascend_decode.lengths_of(case, case.ranks, requests_of(case))


def requests_of(case: Case) -> int:
    """Requests of a rank: of a card with several dies, as many on each."""
    requests, dies = int(case.batch.per_card), case.ranks // case.cards
    if requests % dies:
        raise InputError(f"batch.per_card is {requests}: it must be a multiple of machine.dies_per_card, {dies}")
    return requests // dies


def mesh_of(case: Case) -> Mesh:
    """One expert-parallel group."""
    node, ep, knobs = case.layout.tensor_parallel, case.layout.expert_parallel, case.knobs
    return Mesh(dp=ep, ep=ep, dense=node, embedding=node, head=node, shared=node if knobs.shared == "tp" else 1,
                redundant=knobs.spare_experts)  # fmt: skip


# --- what a scenario needs to know ------------------------------------------------------------------------------------


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Expert-parallel groups, and the tensor-parallel groups inside nodes."""
    check_drafts(case)
    ep = blocks(case.ranks, case.layout.expert_parallel, "layout.expert_parallel")
    node = blocks(case.ranks, case.layout.tensor_parallel, "layout.tensor_parallel")
    return {"ep": ep, "stage": ep, "tensor": blocks(case.ranks, 1),
            **dict.fromkeys(("dense", "embedding", "head", "shared"), node)}


def memory(case: Case) -> list[MemoryItem]:
    """Weights of a rank; latent cache in BF16; tokens of all ranks."""
    model, ep = model_of(case), case.layout.expert_parallel
    longest, requests = case.batch.prompt_tokens + case.batch.output_tokens, requests_of(case)
    together = requests * case.batch.queries * ep * model.hidden
    return [
        *weight_items(model, mesh_of(case), ("attention", "routed experts", "embedding and head shards")),
        ("latent cache, BF16, full outputs", "KV", 2 * requests * longest * cache_values(model)),
        ("gathered tokens and sums", "activations", together * (1 + 2 * 2)),
        ("exchange buffers", "communication", together * 3),
    ]


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Iteration, TPOT, throughput per card."""
    return decode_measures(case.batch, seconds)


ITERATION = Workload(iteration, groups, memory=memory, measures=measures)
