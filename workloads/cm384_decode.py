"""Decode of DeepSeek-R1 on CloudMatrix384: one iteration of a die, in launch order.

Every die computes MLA for its own requests (absorbed weights, o_proj over the two dies of the package) and holds expert
slots in one of two roles: routed experts, or the shared expert, which is a ninth expert that every token chooses. Fused
dispatch and combine exchange token copies one-sidedly: a die writes when it is ready and collects when all have.

Two micro-batches run on two streams with cores of their own: the attention stream computes MLA of one micro-batch while
the MoE stream gates, dispatches, computes and combines the other; the second one finds the first one's weights in L2.
An iteration verifies the drafts of the one before, samples, runs the MTP layer once per draft token, and pays the
bubble until the next iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from simulator.die.kernels import Work
from simulator.model import decode, ops
from simulator.model.expert_load import ExpertLoad
from simulator.model.layout import cached_lengths, on_ranks, shard_size
from simulator.model.mla import Kernels
from simulator.program.rank import Event, Rank
from simulator.program.task import Collective
from simulator.study import scenario
from simulator.study.scenario import Layout

ATTENTION, MOE = "attention", "moe"
VECTOR_PER_CUBE = 2
DISPATCH_BYTES = 7168 + 512  # of a token copy: INT8, and a slot with its scale
FRACTAL = 16  # rows that a cube core multiplies at once

Launches = Callable[[int], Sequence[tuple[str, Work | Collective]]]  # of a rank


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


@dataclass
class Half:
    """One of `parts` micro-batches of a die, and when its last layer has ended."""

    number: int
    parts: int
    lengths: Sequence[tuple[int, ...]]  # cached tokens of every rank's requests
    padded: int  # requests with those that pad it to the fullest die's
    done: Event | None = None
    _cores: dict[tuple[int, int], Kernels] = field(default_factory=dict, repr=False)

    def attention(self, case: Case, rank: int, queries: int) -> Kernels:
        """Over what the requests of a rank have cached: of every other one. The same in every layer."""
        if (rank, queries) not in self._cores:
            contexts = tuple((queries, length) for length in self.lengths[rank][self.number :: self.parts])
            self._cores[rank, queries] = decode.attention(case.shapes, contexts, case.knobs.attention)[:1]
        return self._cores[rank, queries]

    def tokens(self, rank: int, queries: int) -> int:
        """Query tokens of a rank's own requests."""
        return queries * len(self.lengths[rank][self.number :: self.parts])


# --- an iteration -----------------------------------------------------------------------------------------------------


def iteration(npu: Rank, case: Case) -> None:
    """Verify, sample, draft."""
    npu.program.captured = True
    partition(npu, case)
    # with one request per die there is one micro-batch, on the cores of a half
    halves = [half for half in halves_of(case, case.knobs.micro_batches) if half.padded]
    with _main(npu, case):
        embed(npu, case, case.batch.queries)
    layers(npu, case, halves, range(case.shapes.layers), case.batch.queries)
    with _main(npu, case):
        head(npu, case, case.batch.queries)
    for draft in range(case.batch.draft_tokens):
        queries = case.batch.queries if draft == 0 else 1  # the first one catches up with what was verified
        with _main(npu, case):
            project(npu, case, queries)
        layers(npu, case, halves, range(case.shapes.layers, case.shapes.layers + 1), queries)
        with _main(npu, case):
            head(npu, case, queries)
    with _main(npu, case):
        launch(npu, [("bubble", ops.delay("iteration_bubble"))])


def layers(npu: Rank, case: Case, halves: list[Half], which: range, queries: int) -> None:
    """Layer after layer; with two micro-batches each one's attention beside the other one's feed-forward."""
    with _main(npu, case):
        for half in halves:
            half.done = npu.record()
    for layer in which:
        for half in halves:
            with npu.scope(layer=layer, micro_batch=half.number):
                one_layer(npu, case, layer, half, queries)
    with _main(npu, case):
        for half in halves:
            assert half.done is not None
            npu.wait(half.done)


def one_layer(npu: Rank, case: Case, layer: int, half: Half, queries: int) -> None:
    """Attention, then feed-forward, each on its stream."""
    assert half.done is not None
    with _stream(npu, case, ATTENTION):
        npu.wait(half.done)
        attention(npu, case, layer, half, queries)
        attended = npu.record()
    with _stream(npu, case, MOE):
        npu.wait(attended)
        if layer < case.shapes.dense_layers:
            dense(npu, case, layer, half, queries)
        else:
            moe(npu, case, layer, half, queries)
        half.done = npu.record()


def attention(npu: Rank, case: Case, layer: int, half: Half, queries: int) -> None:
    """MLAProlog, attention, o_proj over the dies of the package: gather its tokens, a shard of the heads, sum back."""
    s, package, weights = case.shapes, npu.group("package"), f"layer{layer}"
    tokens = half.padded * queries
    launch(npu, decode.in_l2([("attention.norm", ops.add_rms_norm(tokens, s.hidden))]))
    launch(npu, decode.prolog(s, tokens, weights, case.knobs.fused_prolog))
    uneven = case.batch.length_spread > 0
    back = cache(partial(decode.absorb_v, s, weights=weights))
    launch_own(npu, uneven, lambda rank: half.attention(case, rank, queries) + back(half.tokens(rank, queries)))
    quantise, product = decode.output_projection(s, tokens * package.size, package.size, weights)
    launch(npu, [quantise])
    package.all_gather("attention.gather", tokens * s.heads * s.v_dim, case.knobs.engine)
    launch(npu, [product])
    package.reduce_scatter("attention.reduce_scatter", 2 * tokens * s.hidden, case.knobs.engine)


def dense(npu: Rank, case: Case, layer: int, half: Half, queries: int) -> None:
    """Dense FFN over the dies of the package."""
    s, package, tokens = case.shapes, npu.group("package"), half.padded * queries
    launch(npu, decode.in_l2([("dense.norm", ops.add_rms_norm(tokens, s.hidden)),
                              ("dense.quantise", ops.quantise(tokens, s.hidden))]))  # fmt: skip
    package.all_gather("dense.gather", tokens * s.hidden, case.knobs.engine)
    width = shard_size(s.dense_intermediate, package.size, "columns of the dense FFN")
    launch(npu, decode.ffn(s, "dense", tokens * package.size, width, f"layer{layer}", quantise=False))
    package.reduce_scatter("dense.reduce_scatter", 2 * tokens * s.hidden, case.knobs.engine)


def moe(npu: Rank, case: Case, layer: int, half: Half, queries: int) -> None:
    """Norm and gate; dispatch quantises and writes every copy to its expert's die; experts; combine writes back and
    sums."""
    s, tokens = case.shapes, half.padded * queries
    rows, uneven = own_rows(npu, case, layer, half, queries)
    away = copies(case, tokens)
    launch(npu, decode.in_l2([("gate.norm", ops.add_rms_norm(tokens, s.hidden))]))
    launch(npu, decode.gate(s, tokens, f"layer{layer}"))
    exchange(npu, case, "dispatch", uneven, lambda rank: (away * DISPATCH_BYTES, sum(rows(rank)) * DISPATCH_BYTES))
    experts = cache(partial(decode.experts, s, weights=f"layer{layer}"))
    launch_own(npu, uneven, lambda rank: experts(_fractals(rows(rank))))
    exchange(npu, case, "combine", uneven, lambda rank: (sum(rows(rank)) * 2 * s.hidden, away * 2 * s.hidden))


def exchange(npu: Rank, case: Case, name: str, uneven: bool, sizes: Callable[[int], tuple[int, int]]) -> None:
    """A fused kernel, without counts: write own bytes, wait until everybody has. sizes: bytes out and in by rank."""
    ep, via = npu.group("ep"), case.knobs.dispatch if name == "dispatch" else f"{case.knobs.dispatch}_{name}"

    @cache
    def put(*sizes: int) -> list[tuple[str, Collective]]:
        out, into = (size * (ep.size - 1) // ep.size for size in sizes)
        return [(f"{name}.write", Collective("put", ep.name, via, sent_bytes=out, received_bytes=into))]

    launch_own(npu, uneven, lambda rank: put(*sizes(rank)))
    ep.collect(f"{name}.arrive", via)


def copies(case: Case, tokens: int) -> int:
    """Token copies that leave a die: to the routed experts and to the shared one."""
    return tokens * (case.shapes.experts_per_token + case.shapes.shared_experts)


def own_rows(
    npu: Rank, case: Case, layer: int, half: Half, queries: int
) -> tuple[Callable[[int], tuple[int, ...]], bool]:
    """Rows that come for each expert slot of a die by its rank, and whether ranks of one role differ in them."""
    load, ep = ExpertLoad.of(case.shapes, case.layout, case.routing.skew, case.seed), case.layout.expert_parallel
    tokens = half.padded * queries * ep
    if npu.coordinate("role") == "shared":
        return (lambda _: (load.shared_rows(tokens),)), False
    if case.routing.skew is None:
        return (lambda _: load.even_rows(tokens)), False
    drawn = cache(partial(load.drawn_rows, tokens, layer, half.number))
    return (lambda rank: drawn(rank // ep)[rank % ep]), True


def _fractals(rows: tuple[int, ...]) -> tuple[int, ...]:
    """Rows that a product computes: whole fractals of 16."""
    return tuple(-(-count // FRACTAL) * FRACTAL for count in rows)


# --- before and after the layers --------------------------------------------------------------------------------------


def embed(npu: Rank, case: Case, queries: int) -> None:
    """The whole embedding lies on every die."""
    tokens = _padded(case) * queries
    launch(npu, decode.in_l2([("embedding.lookup", ops.copy(tokens * case.shapes.hidden))]))


def head(npu: Rank, case: Case, queries: int) -> None:
    """Norm, the group's tokens gathered, a vocabulary shard of logits, the best of each shard gathered, sampling."""
    s, group, tokens, engine = case.shapes, npu.group("head"), _padded(case) * queries, case.knobs.engine
    together, shard = tokens * group.size, -(-s.vocabulary // group.size)
    launch(npu, decode.in_l2([("head.norm", ops.rms_norm(tokens, s.hidden))]))
    group.all_gather("head.gather", 2 * tokens * s.hidden, engine)
    launch(npu, decode.in_l2([("head.logits", ops.gemm(together, shard, s.hidden, dtype="bf16"))]))
    launch(npu, [("head.best", ops.passes(2.0 * together * shard, 8.0 * together))])
    group.all_gather("head.gather_best", 8 * together, engine)
    launch(npu, decode.in_l2([("head.sample", ops.passes(64.0 * together, 8.0 * tokens))]))


def project(npu: Rank, case: Case, queries: int) -> None:
    """Into the MTP layer: embed the sampled tokens, norm both halves of its input, one product."""
    s, tokens = case.shapes, _padded(case) * queries
    if case.knobs.draft_graphs == "separate":
        launch(npu, [("draft.graph", ops.delay("draft_graph"))])
    embed(npu, case, queries)
    launch(npu, decode.in_l2([("draft.norm", ops.rms_norm(tokens, 2 * s.hidden)),
                              ("draft.project", ops.gemm(tokens, s.hidden, 2 * s.hidden))]))  # fmt: skip


# --- parts ------------------------------------------------------------------------------------------------------------


def launch(npu: Rank, kernels: Kernels) -> None:
    """These kernels, one after the other, into the current stream."""
    for name, work in kernels:
        npu.launch(work, name)


def launch_own(npu: Rank, uneven: bool, kernels_of: Launches) -> None:
    """Launches whose numbers depend on the rank, where they do."""
    if uneven:
        npu.launch_all_by_rank(kernels_of)
        return
    for name, work in kernels_of(npu.first):
        npu.launch(work, name)


def partition(npu: Rank, case: Case) -> None:
    """Cores of their own for the two streams; without a split they take what is free."""
    if case.knobs.micro_batches == 2 and case.knobs.split != "none":
        for stream, cubes in zip((ATTENTION, MOE), case.knobs.split.split("/"), strict=True):
            npu.confine(stream, {"cube": int(cubes), "vector": VECTOR_PER_CUBE * int(cubes)})


@contextmanager
def _stream(npu: Rank, case: Case, name: str) -> Iterator[None]:
    """One of the two streams; with one micro-batch everything runs in one."""
    with npu.stream(name if case.knobs.micro_batches == 2 else ATTENTION):
        yield


def _main(npu: Rank, case: Case) -> AbstractContextManager[None]:
    return _stream(npu, case, ATTENTION)


def halves_of(case: Case, parts: int) -> list[Half]:
    """A die's requests as micro-batches."""
    padded, held = _padded(case), lengths_of(case)
    return [Half(number, parts, held, len(range(number, padded, parts))) for number in range(parts)]


def lengths_of(case: Case) -> list[tuple[int, ...]]:
    """Cached tokens of every rank's requests."""
    batch = case.batch
    drawn = _cached_lengths(case.cards, batch.per_card, batch.cached_tokens, batch.length_spread, case.seed)
    return _on_ranks(drawn, case.ranks, batch.placement == "length_aware")


@lru_cache(maxsize=4)
def _cached_lengths(*how: float) -> tuple[int, ...]:
    return tuple(cached_lengths(*how))  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def _on_ranks(drawn: tuple[int, ...], ranks: int, length_aware: bool) -> list[tuple[int, ...]]:
    return on_ranks(list(drawn), ranks, length_aware)


def _padded(case: Case) -> int:
    """Requests of the fullest die: a captured graph pads the others to it."""
    return -(-case.batch.per_card * case.cards // case.ranks)
