"""Prefill of DeepSeek-R1 on Atlas 800I A2, two nodes of 8 cards: four steps of layer-internal parallelism.

* `all_reduce`: attention tensor parallel, hidden states replicated; an AllReduce after attention and one after the MoE;
  norms, gate and down projections are computed by every rank on all tokens.
* `flashcomm`: the AllReduces become ReduceScatter (BF16) and AllGather (INT8) on both sides of MLA; what was replicated
  is computed on a rank's own tokens.
* `convert`: down projections on own tokens, AllGather of the latents, attention tensor parallel, All2All inside the
  node, o_proj with one half of its input per node, ReduceScatter between the nodes.
* `micro_batch`: MLA data parallel, two micro-batches on two streams.

In all of them the experts are expert parallel with AllGather and ReduceScatter, the dense FFN data parallel, embedding
and head tensor parallel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.model import mla, moe, ops
from simulator.model.layout import blocks, deal, shard_size, strides
from simulator.model.mla import Kernels
from simulator.model.routing import routing_of
from simulator.program.rank import Event, Rank
from simulator.spec.model import ModelShapes
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Workload

COMM = "comm"


class Knobs(BaseModel):
    """How a layer is split."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str = Field("sdma", description="what drives collectives: an engine of the machine")
    split: Literal["all_reduce", "flashcomm", "convert", "micro_batch"] = Field(
        "convert", description="parallelism inside a layer, in the order in which it was published"
    )
    attention: Literal["ntd"] = Field("ntd", description="layout of FlashAttention's operands")
    algorithm: Literal["hierarchical", "direct"] = Field("hierarchical", description="collectives over both nodes")


Case = scenario.Case[scenario.Prompts, scenario.Layout, Knobs]


def prefill(npu: Rank, case: Case) -> None:
    """Embedding, all layers, head."""
    embed(npu, case)
    {"all_reduce": _replicated, "flashcomm": _split_tokens, "convert": _split_tokens, "micro_batch": _two_streams}[
        case.knobs.split
    ](npu, case)
    head(npu, case)


# --- layers on one stream ---------------------------------------------------------------------------------------------


def _replicated(npu: Rank, case: Case) -> None:
    """Every rank holds all tokens between the parts."""
    s, total = case.shapes, _total(case)
    for layer in range(s.layers):
        with npu.scope(layer=layer):
            launch(npu, [("attention.norm", ops.add_rms_norm(total, s.hidden)), *mla.down_projections(s, total)])
            heads_attention(npu, case)
            launch(npu, _o_shard(case))
            _all_reduce(npu, case, "attention.all_reduce", total)
            if layer < s.dense_layers:
                launch(npu, moe.dense(s, _own(case)))
                _gather(npu, case, "dense.gather", 2 * _own(case) * s.hidden)
                continue
            launch(npu, moe.gate(s, total))
            launch(npu, [("gate.quantise", ops.quantise(total, s.hidden))])
            _group_experts(npu, case, layer)
            launch(npu, moe.shared_expert(s, _own(case)))
            _all_reduce(npu, case, "combine.all_reduce", total)


def _split_tokens(npu: Rank, case: Case) -> None:
    """Every rank holds its own tokens between the parts."""
    s, own = case.shapes, _own(case)
    for layer in range(s.layers):
        with npu.scope(layer=layer):
            (converted_attention if case.knobs.split == "convert" else flashcomm_attention)(npu, case)
            if layer < s.dense_layers:
                launch(npu, moe.dense(s, own))
                continue
            moe_layer(npu, case, layer)


def flashcomm_attention(npu: Rank, case: Case) -> None:
    """AllGather of the quantised hidden state, attention of own heads, ReduceScatter of o_proj's partial sums."""
    s, own, total = case.shapes, _own(case), _total(case)
    launch(npu, [("attention.norm", ops.add_rms_norm(own, s.hidden)),
                 ("attention.quantise", ops.quantise(own, s.hidden))])  # fmt: skip
    _gather(npu, case, "attention.gather", own * s.hidden)
    launch(npu, [kernel for kernel in mla.down_projections(s, total) if "quantise" not in kernel[0]])
    heads_attention(npu, case)
    launch(npu, _o_shard(case))
    _scatter(npu, case, "attention.reduce_scatter", 2 * own * s.hidden)


def converted_attention(npu: Rank, case: Case) -> None:
    """Down projections of own tokens; latents to all; own heads; heads to tokens; o_proj of half its input."""
    s, own, node = case.shapes, _own(case), npu.group("node")
    nodes = npu.group("peers").size
    launch(npu, [("attention.norm", ops.add_rms_norm(own, s.hidden)), *mla.down_projections(s, own)])
    _gather(npu, case, "attention.gather_latents", 2 * own * (s.q_lora + s.kv_values))
    heads_attention(npu, case)
    heads = shard_size(s.heads, npu.group("world").size, "heads")
    tokens = own * nodes  # those that a pair of counterparts projects together
    algorithm = "pairwise" if case.knobs.algorithm == "hierarchical" else "direct"
    node.all_to_all("attention.heads_to_tokens", 2 * tokens * heads * s.v_dim, case.knobs.engine, algorithm)
    width = heads * node.size * s.v_dim
    launch(npu, [("attention.o.quantise", ops.quantise(tokens, width)),
                 ("attention.o", ops.gemm(tokens, s.hidden, width))])  # fmt: skip
    npu.group("peers").reduce_scatter("attention.reduce_scatter", 2 * own * s.hidden, case.knobs.engine)


def heads_attention(npu: Rank, case: Case) -> None:
    """Up-projections and attention of this rank's heads, all tokens."""
    s, heads = case.shapes, shard_size(case.shapes.heads, npu.group("world").size, "heads")
    launch(npu, mla.up_projections(s, _total(case), heads))
    launch(npu, mla.attention(s, mla.causal(case.batch.lengths), heads, f"flash_attention_{case.knobs.attention}"))


def _o_shard(case: Case) -> Kernels:
    """o_proj of this rank's heads, partial sums of all tokens."""
    s, total = case.shapes, _total(case)
    width = shard_size(s.heads, case.ranks, "heads") * s.v_dim
    return [("attention.o.quantise", ops.quantise(total, width)), ("attention.o", ops.gemm(total, s.hidden, width))]


def moe_layer(npu: Rank, case: Case, layer: int) -> None:
    """Gate of own tokens, AllGather, own experts on all tokens, ReduceScatter, shared expert of own tokens."""
    s, own = case.shapes, _own(case)
    launch(npu, moe.gate(s, own))
    launch(npu, [("gate.quantise", ops.quantise(own, s.hidden))])
    gather_tokens(npu, case, own)
    _group_experts(npu, case, layer)
    _scatter(npu, case, "combine.sums", 2 * own * s.hidden, "ep")
    launch(npu, moe.shared_expert(s, own))
    launch(npu, _add_shared(s, own))


def gather_tokens(npu: Rank, case: Case, own: int) -> None:
    """Activations in INT8, their scales, the chosen experts and their weights."""
    _gather(npu, case, "dispatch.activations", own * case.shapes.hidden, "ep")
    _gather(npu, case, "dispatch.scales", 4 * own, "ep")
    _gather(npu, case, "dispatch.choices", 8 * own * case.shapes.experts_per_token, "ep")


def _group_experts(npu: Rank, case: Case, layer: int) -> None:
    """Own experts on the tokens of the expert-parallel group."""
    tokens = _own(case) * npu.group("ep").size
    own_experts(npu, case, layer, tokens, tokens)


def own_experts(npu: Rank, case: Case, layer: int, gathered: int, routed: int) -> None:
    """Rows of own experts among the gathered tokens (`routed` without padding), the experts, and their weighted sums
    per token (BF16)."""
    s, ep = case.shapes, npu.group("ep")
    drawn = case.routing.skew is not None
    tokens = (-(-routed // ep.size),) * ep.size
    routing = routing_of(tokens, s.routed_experts, s.experts_per_token, case.routing.skew, (case.seed, layer))
    rows = routing.rows(npu.rank % ep.size if drawn else 0)
    kernels = dict(moe.experts(s, rows))
    kept = ("experts.gate_up", "experts.swiglu", "experts.down")
    launch(npu, [("experts.select", ops.copy(sum(rows) * s.hidden, 1.0)), *((name, kernels[name]) for name in kept)])
    sums = 2.0 * gathered * s.hidden
    launch(npu, [("finalize.zero", ops.passes(0.0, sums)),
                 ("finalize.sum", ops.passes(sums + 2.0 * sum(rows) * s.hidden, sums))])  # fmt: skip


# --- two micro-batches on two streams ---------------------------------------------------------------------------------


def _two_streams(npu: Rank, case: Case) -> None:
    """MLA data parallel: every rank has prompts of its own; while one micro-batch exchanges, the other computes."""
    s, halves = case.shapes, [Half(npu, case, number) for number in (0, 1)]
    halves = [half for half in halves if half.padded]  # with a prompt per rank there is no second one
    given: list[Event | None] = [None] * len(halves)
    for layer in range(s.layers):
        with npu.scope(layer=layer):
            ready: list[Event] = []
            for half, back in zip(halves, given, strict=True):
                with npu.scope(micro_batch=half.number):
                    _finish(npu, case, layer - 1, back, half.own)
                    half.launch(mla.prefill(s, half.prompts, f"flash_attention_{case.knobs.attention}"))
                    if layer < s.dense_layers:
                        half.launch(moe.dense(s, half.own))
                        continue
                    half.launch(moe.gate(s, half.own))
                    half.launch([("gate.quantise", ops.quantise(half.own, s.hidden))])
                    ready.append(npu.record())
            if layer >= s.dense_layers:
                given = [*_exchange_all(npu, case, layer, halves, ready)]
    for half, back in zip(halves, given, strict=True):
        with npu.scope(micro_batch=half.number):
            _finish(npu, case, s.layers - 1, back, half.own)


class Half:
    """A micro-batch: a rank's own prompts and their tokens; those of the fullest rank, to which others are padded in
    AllGather and ReduceScatter; and those of all ranks."""

    def __init__(self, npu: Rank, case: Case, number: int) -> None:
        dealt = [deal(prompts, 2)[number] for prompts in deal(case.batch.lengths, case.ranks)]
        own = npu.coordinate("prompts")
        assert isinstance(own, tuple)
        self.npu, self.number = npu, number
        self.prompts = deal(own, 2)[number]
        self.own = sum(self.prompts)
        self.padded, self.total = max(map(sum, dealt)), sum(map(sum, dealt))

    def launch(self, kernels: Kernels) -> None:
        """Kernels of own tokens, if there are any."""
        if self.own:
            launch(self.npu, kernels)


def _exchange_all(npu: Rank, case: Case, layer: int, halves: list[Half], ready: list[Event]) -> list[Event]:
    """The AllGathers, then each micro-batch's experts and ReduceScatter as its tokens have come."""
    s, ep, gathered, given = case.shapes, npu.group("ep"), [], []
    with npu.stream(COMM):
        for half, event in zip(halves, ready, strict=True):
            with npu.scope(micro_batch=half.number):
                npu.wait(event)
                gather_tokens(npu, case, half.padded)
                gathered.append(npu.record())
    for half, event in zip(halves, gathered, strict=True):
        with npu.scope(micro_batch=half.number):
            half.launch(moe.shared_expert(s, half.own))
            npu.wait(event)
            own_experts(npu, case, layer, half.padded * ep.size, -(-half.total * ep.size // case.ranks))
            worked = npu.record()
            with npu.stream(COMM):
                npu.wait(worked)
                given.append(_scatter(npu, case, "combine.sums", 2 * half.padded * s.hidden, "ep"))
    return given


def _finish(npu: Rank, case: Case, layer: int, given: Event | None, own: int) -> None:
    """Add the shared expert to what came back from a layer."""
    if given is not None:
        npu.wait(given)
        with npu.scope(layer=layer):
            launch(npu, _add_shared(case.shapes, own))


def _add_shared(s: ModelShapes, own: int) -> Kernels:
    """The shared expert's results to the routed ones', if there is one."""
    size = 2.0 * own * s.hidden
    return [("finalize.add_shared", ops.passes(2.0 * size, size))] if s.shared_experts else []


# --- parts ------------------------------------------------------------------------------------------------------------


def launch(npu: Rank, kernels: Kernels) -> None:
    """These kernels, one after the other, into the current stream."""
    for name, work in kernels:
        npu.launch(work, name)


def _gather(npu: Rank, case: Case, name: str, shard_bytes: int, group: str = "world") -> Event:
    return npu.group(group).all_gather(name, shard_bytes, case.knobs.engine, case.knobs.algorithm)


def _scatter(npu: Rank, case: Case, name: str, shard_bytes: int, group: str = "world") -> Event:
    return npu.group(group).reduce_scatter(name, shard_bytes, case.knobs.engine, case.knobs.algorithm)


def _all_reduce(npu: Rank, case: Case, name: str, tokens: int) -> Event:
    size = 2 * tokens * case.shapes.hidden
    return npu.group("world").all_reduce(name, size, case.knobs.engine, case.knobs.algorithm)


def embed(npu: Rank, case: Case) -> None:
    """All tokens in a vocabulary shard; a ReduceScatter leaves each rank its own (all of them for `all_reduce`)."""
    launch(npu, moe.embedding_shard(case.shapes, _total(case)))
    if case.knobs.split == "all_reduce":
        _all_reduce(npu, case, "embedding.all_reduce", _total(case))
    else:
        _scatter(npu, case, "embedding.reduce_scatter", 2 * _own(case) * case.shapes.hidden)


def head(npu: Rank, case: Case) -> None:
    """Logits of the last token of every prompt, vocabulary sharded."""
    s, requests = case.shapes, len(case.batch.lengths)
    each = -(-requests // case.ranks)
    launch(npu, [("head.norm", ops.rms_norm(_own(case), s.hidden))])
    _gather(npu, case, "head.gather_tokens", 2 * each * s.hidden)
    launch(npu, moe.head_shard(s, requests, case.ranks))
    _gather(npu, case, "head.gather_logits", 2 * each * s.vocabulary // case.ranks)


def _total(case: Case) -> int:
    return int(sum(case.batch.lengths))


def _own(case: Case) -> int:
    return -(-_total(case) // case.ranks)


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Everybody, expert-parallel groups, nodes, and counterparts in the nodes."""
    per_node = case.layout.tensor_parallel
    return {
        "world": blocks(case.ranks, case.ranks),
        "ep": blocks(case.ranks, case.layout.expert_parallel, "layout.expert_parallel"),
        "node": blocks(case.ranks, per_node, "layout.tensor_parallel"),
        "peers": strides(case.ranks, case.ranks // per_node),
    }


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """The prompts of a rank where MLA is data parallel; otherwise all ranks are alike."""
    return {"prompts": deal(case.batch.lengths, case.ranks)[rank]} if case.knobs.split == "micro_batch" else {}


def memory(case: Case) -> list[MemoryItem]:
    """INT8 weights but for the BF16 key/value up-projection, embedding and head; all tokens once per rank."""
    s, total, own = case.shapes, _total(case), _own(case)
    up = s.heads * (s.q_lora * s.qk_dim + 2 * s.kv_lora * (s.nope_dim + s.v_dim))
    attention: float = s.mla_parameters + s.kv_lora * s.heads * (s.nope_dim + s.v_dim)
    if case.knobs.split == "micro_batch":
        own = max(map(sum, deal(case.batch.lengths, case.ranks)))
    else:
        attention = s.hidden * (s.q_lora + s.kv_values) + up / case.ranks + s.o_proj_parameters / 2
    local = s.routed_experts // case.layout.expert_parallel
    return [
        ("attention", "weights", s.layers * attention),
        ("dense FFN", "weights", s.dense_layers * s.dense_parameters),
        ("routed experts", "weights", s.moe_layers * local * s.expert_parameters),
        ("shared expert", "weights", s.moe_layers * s.shared_experts * s.expert_parameters),
        ("router", "weights", s.moe_layers * 4 * s.router_parameters),
        ("embedding and head shards", "weights", 2 * 2 * s.embedding_parameters / case.ranks),
        ("latent cache, BF16", "KV", 2 * own * s.kv_values * s.layers),
        ("gathered tokens and their sums", "activations", 3 * total * s.hidden),
        ("exchange buffers", "communication", 3 * total * s.hidden),
    ]


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Time to first token of the batch, and prompt tokens per second."""
    rate = _total(case) / seconds
    return {
        "latency_ms": seconds * 1e3,
        "ttft_ms": seconds * 1e3,
        "throughput_tok_s": rate,
        "throughput_tok_s_per_card": rate / case.cards,
    }


PREFILL = Workload(prefill, groups, coordinates, memory, measures)
