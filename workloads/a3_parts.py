"""What every prefill program of Atlas A3 is made of: attention, routing, dispatch and combine, embedding and LM head.

Host launches are eager, and the host blocks on the split sizes of every dispatch. Embedding and LM head are tensor
parallel over all ranks and never overlapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.model import mla, moe, ops
from simulator.model.layout import blocks, deal, split
from simulator.model.mla import Kernels
from simulator.model.routing import Balanced, Drawn, routing_of
from simulator.program.rank import Event, Rank
from simulator.program.task import Collective
from simulator.study import scenario

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


Case = scenario.Case[scenario.Prompts, scenario.Layout, Knobs]


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
        self.tokens = _tokens_by_rank(case, number, parts, sequence_parallel)
        if not any(self.tokens):
            raise ValueError(_without_prompts(case, number, parts, sequence_parallel))
        self.drawn = case.routing.skew is not None
        self._routing = cache(partial(self._routing_of, layer))
        own = self.drawn or (len(set(self.tokens)) > 1 and self.group.size < case.ranks)
        # kernels without rows are not launched: where a rank gets none its program is its own
        self.by_rank = self.drawn and all(map(sum, map(self.rows, range(case.ranks))))
        self.rank = npu.first if self.by_rank else npu.rank if own else 0

    def _routing_of(self, layer: int, group: int) -> Balanced | Drawn:
        """That of one group; they are counted."""
        s, first, skew = self.case.shapes, group * self.group.size, self.case.routing.skew
        mine, seed = self.tokens[first : first + self.group.size], (self.case.seed, layer, self.number, first)
        return routing_of(mine, s.routed_experts, s.experts_per_token, skew, seed)

    def rows(self, rank: int) -> tuple[int, ...]:
        """Those that arrive for each expert of a rank."""
        group, place = divmod(rank, self.group.size)
        return self._routing(group).rows(place if self.drawn else 0)

    def experts(self) -> None:
        """The local experts on what arrived."""
        s = self.case.shapes
        if self.by_rank:
            self.npu.launch_all_by_rank(lambda rank: moe.experts(s, self.rows(rank)))
        else:
            launch(self.npu, moe.experts(s, self.rows(self.rank)))

    def dispatch(self) -> None:
        """Counts, then (once the host has read the split sizes and their total) tokens in INT8 and FP32 scales."""
        with self.npu.scope(micro_batch=self.number):
            self.group.all_to_all("dispatch.counts", 4 * len(self.rows(self.rank)), self.case.knobs.engine)
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
        routing, engine = self._routing(self.rank // self.group.size), self.case.knobs.engine
        pair = routing.pair_bytes(row_bytes)
        if pair is not None:
            self.group.all_to_all(name, pair, engine)
        elif self.by_rank:
            of_group = cache(lambda group: self._exchange(self._routing(group), row_bytes, back))
            self.npu.launch_by_rank(lambda rank: of_group(rank // self.group.size), name)
        else:
            self.npu.launch(self._exchange(routing, row_bytes, back), name)

    def _exchange(self, routing: Balanced | Drawn, row_bytes: int, back: bool) -> Collective:
        sizes = routing.sizes(row_bytes)
        return Collective("all_to_all", self.group.name, self.case.knobs.engine,
                          sizes=tuple(zip(*sizes, strict=True)) if back else sizes)  # fmt: skip


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


def end_of(npu: Rank, stream: str) -> Event:
    """When all that is in a stream has ended."""
    with npu.stream(stream):
        return npu.record()


# --- what a scenario needs to know ------------------------------------------------------------------------------------


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Expert-parallel groups of neighbours, and everybody."""
    ep = blocks(case.ranks, case.layout.expert_parallel, "layout.expert_parallel")
    return {"ep": ep, "world": blocks(case.ranks, case.ranks)}


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
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
