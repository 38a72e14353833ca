"""Prefill of DeepSeek-R1 on Atlas A3 as in cann-recipes-infer: three rank programs, in launch order.

* `data_parallel`: MLA data parallel, experts expert parallel, one stream.
* `micro_batch`: the same, as two micro-batches on a compute stream and a communication stream.
* `sp_tp_sp`: MLA with its sequence split for the projections and its heads split for attention, for few or uneven
  prompts; one micro-batch, or two with a stream each.

Host launches are eager, and the host blocks on the split sizes of every dispatch. Embedding and LM head are tensor
parallel over all ranks and never overlapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.model import mla, moe, ops
from simulator.model.layout import blocks, deal, share, split
from simulator.model.mla import Kernels
from simulator.model.routing import routing_of
from simulator.program.rank import Event, Rank
from simulator.scenario import Case, Workload
from workloads.a3_prefill_memory import data_parallel_memory, sequence_parallel_memory

COMM = "comm"  # stream X; stream C is the current one


class Knobs(BaseModel):
    """The techniques that can be switched."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str = Field("sdma", description="what drives collectives: an engine of the machine (sdma, aiv, ...)")
    attention: Literal["ntd", "tnd"] = Field("ntd", description="layout of FlashAttention's operands")
    enqueue: Literal["interleaved", "in_order"] = Field(
        "interleaved", description="micro-batches: dispatches before combines, or each micro-batch to its end"
    )
    micro_batches: Literal[1, 2] = Field(2, description="sp_tp_sp only: streams that run whole layers")
    read_sizes: bool = Field(True, description="the host blocks on the split sizes of each dispatch")


# --- one stream -------------------------------------------------------------------------------------------------------


def data_parallel(npu: Rank, case: Case) -> None:
    """Every step of a layer after the other, compute and communication in one stream."""
    prompts = _prompts(npu)
    embed(npu, case)
    for layer in range(case.shapes.layers):
        with npu.scope(layer=layer):
            attend(npu, case, prompts)
            if layer < case.shapes.dense_layers:
                launch(npu, moe.dense(case.shapes, sum(prompts)))
                continue
            route(npu, case, sum(prompts))
            exchange = Exchange(npu, case, layer, 0, 1)
            launch(npu, moe.shared_expert(case.shapes, sum(prompts)))
            exchange.dispatch()
            launch(npu, moe.experts(case.shapes, exchange.rows))
            exchange.combine()
            launch(npu, moe.finalize_routing(case.shapes, sum(prompts)))
    head(npu, case)


# --- two micro-batches on two streams ---------------------------------------------------------------------------------


def micro_batch(npu: Rank, case: Case) -> None:
    """dispatch 0 under attention 1 and shared experts, dispatch 1 under experts 0, combine 0 under experts 1,
    combine 1 under the next layer's attention 0."""
    prompts = deal(_prompts(npu), 2)
    embed(npu, case)
    combined: Event | None = None  # combine of micro-batch 1 of the layer before
    for layer in range(case.shapes.layers):
        with npu.scope(layer=layer):
            if layer < case.shapes.dense_layers:
                dense_layer(npu, case, prompts)
            elif case.knobs.enqueue == "interleaved":
                combined = moe_layer(npu, case, layer, prompts, combined)
            else:
                combined = moe_layer_in_order(npu, case, layer, prompts, combined)
    finalize(npu, case, 1, sum(prompts[1]), combined)
    npu.wait(_end_of(npu, COMM))
    head(npu, case)


def dense_layer(npu: Rank, case: Case, prompts: list[tuple[int, ...]]) -> None:
    """Both micro-batches one after the other on C."""
    for number in (0, 1):
        with npu.scope(micro_batch=number):
            attend(npu, case, prompts[number])
            launch(npu, moe.dense(case.shapes, sum(prompts[number])))


def moe_layer(npu: Rank, case: Case, layer: int, prompts: list[tuple[int, ...]], combined: Event | None) -> Event:
    """One layer in the published order of launches."""
    tokens = [sum(prompts[0]), sum(prompts[1])]
    exchange = [Exchange(npu, case, layer, number, 2) for number in (0, 1)]

    with npu.scope(micro_batch=0):  # 1
        attend(npu, case, prompts[0])
    finalize(npu, case, 1, tokens[1], combined)
    with npu.scope(micro_batch=0):
        route(npu, case, tokens[0])
        routed_0 = npu.record()
    with npu.scope(micro_batch=1):  # 2
        attend(npu, case, prompts[1])
        route(npu, case, tokens[1])
        routed_1 = npu.record()
    for number in (0, 1):
        with npu.scope(micro_batch=number):
            launch(npu, moe.shared_expert(case.shapes, tokens[number]))

    dispatched_0 = exchange[0].on_comm(exchange[0].dispatch, routed_0)  # 3
    worked_0 = _experts(npu, case, exchange[0], dispatched_0)  # 4
    dispatched_1 = exchange[1].on_comm(exchange[1].dispatch, routed_1)  # 5
    combined_0 = exchange[0].on_comm(exchange[0].combine, worked_0)  # 6
    worked_1 = _experts(npu, case, exchange[1], dispatched_1)
    combined_1 = exchange[1].on_comm(exchange[1].combine, worked_1)
    finalize(npu, case, 0, tokens[0], combined_0)  # 7
    return combined_1


def moe_layer_in_order(
    npu: Rank, case: Case, layer: int, prompts: list[tuple[int, ...]], combined: Event | None
) -> Event:
    """For comparison: the communication stream gets each micro-batch's dispatch and combine one after the other."""
    finalize(npu, case, 1, sum(prompts[1]), combined)
    done = []
    for number in (0, 1):
        exchange = Exchange(npu, case, layer, number, 2)
        with npu.scope(micro_batch=number):
            attend(npu, case, prompts[number])
            route(npu, case, sum(prompts[number]))
            routed = npu.record()
            launch(npu, moe.shared_expert(case.shapes, sum(prompts[number])))
        dispatched = exchange.on_comm(exchange.dispatch, routed)
        worked = _experts(npu, case, exchange, dispatched)
        done.append(exchange.on_comm(exchange.combine, worked))
    finalize(npu, case, 0, sum(prompts[0]), done[0])
    return done[1]


def _experts(npu: Rank, case: Case, exchange: Exchange, dispatched: Event) -> Event:
    npu.wait(dispatched)
    with npu.scope(micro_batch=exchange.number):
        launch(npu, moe.experts(case.shapes, exchange.rows))
    return npu.record()


def finalize(npu: Rank, case: Case, number: int, tokens: int, combined: Event | None) -> None:
    """C waits for a combine and adds its experts' rows; nothing to do before the first MoE layer."""
    if combined is not None:
        npu.wait(combined)
        with npu.scope(micro_batch=number):
            launch(npu, moe.finalize_routing(case.shapes, tokens))


# --- sequence, tensor, sequence parallel ------------------------------------------------------------------------------


def sp_tp_sp(npu: Rank, case: Case) -> None:
    """Tokens split over ranks but for attention, where heads are; micro-batches run whole layers on own streams."""
    embed(npu, case)
    streams = [f"micro_batch_{number}" for number in range(case.knobs.micro_batches)]
    start = npu.record()
    for stream in streams:
        with npu.stream(stream):
            npu.wait(start)
    for layer in range(case.shapes.layers):
        blocks_of = [_sp_layer(npu, case, layer, number) for number in range(len(streams))]
        for together in zip(*blocks_of, strict=True):  # launches alternate per sub-block
            assert len(together) == len(streams)
    for stream in streams:
        npu.wait(_end_of(npu, stream))
    head(npu, case)


def _sp_layer(npu: Rank, case: Case, layer: int, number: int) -> Iterator[str]:
    """One layer of one micro-batch on its own stream; yields after each sub-block."""
    batch = case.micro_batch_lengths(number, case.knobs.micro_batches)
    own = split(sum(batch), case.ranks)[0]
    with _inside(npu, layer, number):
        sp_attention(npu, case, batch, own)
    yield "attention"
    if layer < case.shapes.dense_layers:
        with _inside(npu, layer, number):
            launch(npu, moe.dense(case.shapes, own))
        yield "dense"
        return
    exchange = Exchange(npu, case, layer, number, case.knobs.micro_batches, sequence_parallel=True)
    with _inside(npu, layer, number):
        route(npu, case, own)
        launch(npu, moe.shared_expert(case.shapes, own))
        exchange.dispatch()
    yield "dispatch"
    with _inside(npu, layer, number):
        launch(npu, moe.experts(case.shapes, exchange.rows))
        exchange.combine()
        launch(npu, moe.finalize_routing(case.shapes, own))
    yield "experts"


def sp_attention(npu: Rank, case: Case, batch: tuple[int, ...], own: int) -> None:
    """Down projections of own tokens, AllGather of the latents, attention of 1/ranks of the heads, All2All back."""
    s, world = case.shapes, npu.group("world")
    heads = share(s.heads, world.size, "heads")
    launch(npu, [("attention.norm", ops.add_rms_norm(own, s.hidden)), *mla.down_projections(s, own)])
    world.all_gather("attention.gather_q", 2 * own * s.q_lora, case.knobs.engine)
    world.all_gather("attention.gather_kv", 2 * own * (s.kv_lora + s.rope_dim), case.knobs.engine)
    launch(npu, mla.up_projections(s, sum(batch), heads))
    launch(npu, mla.attention(s, mla.causal(batch), heads, f"flash_attention_{case.knobs.attention}"))
    world.all_to_all("attention.heads_to_tokens", 2 * own * heads * s.v_dim, case.knobs.engine)
    launch(npu, mla.output_projection(s, own))


# --- parts ------------------------------------------------------------------------------------------------------------


def launch(npu: Rank, kernels: Kernels) -> None:
    """These kernels, one after the other, into the current stream; kernels without work are not launched."""
    for name, work in kernels:
        if work.hbm_bytes:
            npu.launch(work, name)


def attend(npu: Rank, case: Case, prompts: tuple[int, ...]) -> None:
    """Data-parallel attention of whole prompts."""
    launch(npu, mla.prefill(case.shapes, prompts, f"flash_attention_{case.knobs.attention}"))


def route(npu: Rank, case: Case, tokens: int) -> None:
    """Norm, gate, and the rank's own tokens sorted by expert."""
    launch(npu, moe.gate(case.shapes, tokens) + moe.init_routing(case.shapes, tokens))


class Exchange:
    """Dispatch and combine of one micro-batch in one layer."""

    def __init__(
        self, npu: Rank, case: Case, layer: int, number: int, parts: int, sequence_parallel: bool = False
    ) -> None:
        self.npu, self.case, self.number = npu, case, number
        self.group = npu.group("ep")
        tokens = _tokens_by_rank(case, number, parts, sequence_parallel)
        if not any(tokens):
            raise ValueError(_without_prompts(case, number, parts, sequence_parallel))
        size, s = self.group.size, case.shapes
        drawn = case.routing.skew is not None
        first = npu.rank // size * size if drawn or (len(set(tokens)) > 1 and size < case.ranks) else 0
        mine, seed = tokens[first : first + size], (case.seed, layer, number, first)
        self.routing = routing_of(mine, s.routed_experts, s.experts_per_token, case.routing.skew, seed)
        self.rows = self.routing.rows(npu.rank - first if drawn else 0)

    def dispatch(self) -> None:
        """Counts, then (once the host has read the split sizes and their total) tokens in INT8 and FP32 scales."""
        with self.npu.scope(micro_batch=self.number):
            self.group.all_to_all("dispatch.counts", 4 * len(self.rows), self.case.knobs.engine)
            if self.case.knobs.read_sizes:
                launch(self.npu, moe.split_sizes(self.case.shapes))
                self.npu.host_wait(self.npu.record(), reads=2)
            self._all_to_all("dispatch.tokens", self.case.shapes.hidden)
            self._all_to_all("dispatch.scales", 4)

    def combine(self) -> None:
        """Every expert's rows back to where they came from, BF16."""
        with self.npu.scope(micro_batch=self.number):
            self._all_to_all("combine.tokens", 2 * self.case.shapes.hidden, back=True)

    def on_comm(self, what: Callable[[], None], after: Event) -> Event:
        """Dispatch or combine on stream X, after an event of C."""
        with self.npu.stream(COMM):
            self.npu.wait(after)
            what()
            return self.npu.record()

    def _all_to_all(self, name: str, row_bytes: int, back: bool = False) -> None:
        pair = self.routing.pair_bytes(row_bytes)
        if pair is not None:
            self.group.all_to_all(name, pair, self.case.knobs.engine)
            return
        sizes = self.routing.sizes(row_bytes)
        self.group.all_to_all_uneven(name, tuple(zip(*sizes, strict=True)) if back else sizes, self.case.knobs.engine)


def embed(npu: Rank, case: Case) -> None:
    """Every rank looks up all tokens in its vocabulary shard; a ReduceScatter leaves each rank its own."""
    s, world = case.shapes, npu.group("world")
    tokens = sum(case.batch.lengths)
    launch(npu, moe.embedding_shard(s, tokens))
    world.reduce_scatter("embedding.reduce_scatter", -(-tokens // world.size) * s.hidden * 2, case.knobs.engine)


def head(npu: Rank, case: Case) -> None:
    """Norm and logits of the last token of every request, vocabulary sharded."""
    s, world, requests = case.shapes, npu.group("world"), len(case.batch.lengths)
    each = -(-requests // world.size)
    launch(npu, [("head.norm", ops.rms_norm(-(-sum(case.batch.lengths) // world.size), s.hidden))])
    world.all_gather("head.gather_tokens", each * s.hidden * 2, case.knobs.engine)
    launch(npu, moe.head_shard(s, requests, world.size))
    world.all_gather("head.gather_logits", each * s.vocabulary * 2 // world.size, case.knobs.engine)


def _prompts(npu: Rank) -> tuple[int, ...]:
    prompts = npu.where("prompts")
    assert isinstance(prompts, tuple)
    return prompts


def _tokens_by_rank(case: Case, number: int, parts: int, sequence_parallel: bool) -> tuple[int, ...]:
    """Tokens of every rank in one micro-batch."""
    if sequence_parallel:
        return (split(sum(case.micro_batch_lengths(number, parts)), case.ranks)[0],) * case.ranks
    hands = deal(case.batch.lengths, case.ranks)
    return tuple(sum(deal(hand, parts)[number]) for hand in hands)


def _without_prompts(case: Case, number: int, parts: int, sequence_parallel: bool) -> str:
    """Why a micro-batch cannot be, and how many prompts would do."""
    setting = "prompt_lengths" if case.batch.prompt_lengths else "requests"
    whose, enough = (" of every rank", parts * case.ranks) if not sequence_parallel else ("", parts)
    return (f"micro-batch {number + 1} of {parts} has no prompts: batch.{setting} gives {len(case.batch.lengths)}, and "
            f"{enough} are one for each{whose}")


def _end_of(npu: Rank, stream: str) -> Event:
    with npu.stream(stream):
        return npu.record()


@contextmanager
def _inside(npu: Rank, layer: int, number: int) -> Iterator[None]:
    """Into a micro-batch's own stream, labelled with its layer and number."""
    with npu.stream(f"micro_batch_{number}"), npu.scope(layer=layer, micro_batch=number):
        yield


# --- what a scenario needs to know ------------------------------------------------------------------------------------


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Expert-parallel groups of neighbours, and everybody."""
    ep = blocks(case.ranks, case.layout.expert_parallel, "layout.expert_parallel")
    return {"ep": ep, "world": blocks(case.ranks, case.ranks)}


def place(case: Case, rank: int) -> Mapping[str, object]:
    """The prompts that fall on a data-parallel rank."""
    return {"prompts": deal(case.batch.lengths, case.ranks)[rank]}


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Time to first token of the whole batch, and prompt tokens per second."""
    rate = sum(case.batch.lengths) / seconds
    return {
        "latency_ms": seconds * 1e3,
        "ttft_ms": seconds * 1e3,
        "throughput_tok_s": rate,
        "throughput_tok_s_per_card": rate / case.cards,
    }


DATA_PARALLEL = Workload(data_parallel, groups, place, data_parallel_memory, measures)
MICRO_BATCH = Workload(micro_batch, groups, place, data_parallel_memory, measures)
SP_TP_SP = Workload(sp_tp_sp, groups, place, sequence_parallel_memory, measures)
