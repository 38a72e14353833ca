"""Decode of one request of DeepSeek-R1 at minimum latency, as TensorRT-LLM does it on 8 GPUs: one rank's program.

Published in TensorRT-LLM's tech blog "Pushing Latency Boundaries: Optimizing DeepSeek-R1 Performance on NVIDIA B200
GPUs". Attention is split over all ranks by heads (TP), routed experts by expert and by width (TP x EP), the shared
expert by width; the down projections (Fuse_A) and the router are on every rank. An iteration verifies 1 + draft tokens
in one pass, then the MTP module drafts the next ones, one after the other (`MTPEagleWorker` in the library's sources):
its first step sees all tokens of the verify pass, later ones a single token. `trt_layer` is the layer; its kernels, and
those between passes, are `simulator.stack.trtllm_min_latency`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from simulator.errors import InputError
from simulator.model.drafts import check_drafts, draft_passes
from simulator.model.layout import shard_size
from simulator.model.transformer import Latent, Layer, Model, experts_of, with_precision
from simulator.parallel.ledger import cache_bytes, weights_of
from simulator.parallel.mesh import Mesh, coordinates_of, groups_of
from simulator.program.rank import Rank
from simulator.stack.trtllm_min_latency import STACK, MinLatency, accept, framework, joined, vector
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload
from workloads.trt_layer import NORMS, Pass


class Request(Part):
    """One request. Simulated is the iteration half-way through its output.

    accepted: output tokens per iteration by number of draft tokens, 0 first, as published. relaxed_accepted: the same
    with relaxed acceptance, which is published for three draft tokens only (others get no more than without it).
    """

    prompt_tokens: PositiveInt = 1024
    output_tokens: PositiveInt = 2048
    draft_tokens: int = Field(0, ge=0, le=5)
    accepted: tuple[PositiveFloat, ...] = (1.00, 1.92, 2.58, 2.82, 2.99, 3.01)
    relaxed_accepted: float = Field(3.10, gt=0)

    @property
    def cached_tokens(self) -> int:
        """Half-way through the output."""
        return self.prompt_tokens + self.output_tokens // 2


class Knobs(Part):
    """The published optimisations, one switch each; off is what the first version did."""

    cuda_graph: bool = Field(True, description="one captured graph per iteration instead of eager launches")
    programmatic_launch: bool = Field(False, description="a kernel's prologue runs beside its predecessor's end (PDL)")
    shared_beside: bool = Field(False, description="shared expert on a stream beside router and routed experts")
    norms: Literal["in_order", "streams", "grouped"] = Field("in_order", description="the two norms after Fuse_A")
    cache_beside: bool = Field(False, description="RoPE and KV cache beside the query's GEMMs")
    fused_top_k: bool = Field(False, description="one top-k kernel instead of six")
    fused_kernels: bool = Field(False, description="SwiGLU, RoPE and the last sum inside their neighbours' kernels")
    fuse_a_kernel: bool = Field(False, description="Fuse_A kernel for few tokens, weights prefetched under AllReduce")
    router_kernel: bool = Field(False, description="router kernel for few tokens")
    engine: Literal["one_shot", "nccl"] = Field("one_shot", description="AllReduce: one-shot kernel or NCCL")
    fused_all_reduce: bool = Field(False, description="add, norm and quantise inside the AllReduce kernel")
    sparse: Literal["grouped", "gemms"] = Field(
        "grouped", description="routed experts: sort + grouped GEMM + sum, or all tokens through each active expert"
    )
    moe_backend: Literal["cutlass", "trtllm"] = Field("cutlass", description="grouped GEMM of the routed experts")
    draft_dtype: Literal["bf16", "nvfp4"] = Field(
        "bf16", description="experts of the MTP module: checkpoint nvidia/DeepSeek-R1-FP4 does not quantise it"
    )
    relaxed_acceptance: bool = Field(False, description="accept a draft token among the best few while thinking")
    smart_router: bool = Field(False, description="two copies of the experts, on half of the ranks each")


Case = scenario.Case[Request, scenario.Layout, Knobs]


def iteration(npu: Rank, case: Case) -> None:
    """Verify, sample, draft."""
    npu.program.captured, npu.program.operators = case.knobs.cuda_graph, STACK.operators
    npu.program.programmatic = case.knobs.programmatic_launch
    model, drafted = model_of(case), case.batch.draft_tokens
    verify = Pass(npu, case, model, stack_of(case), 1 + drafted)
    verify.launch([*verify.stack.embed(model, verify.tokens, 1),
                   ("embedding.norm", vector(verify.tokens, model.hidden))])  # fmt: skip
    for number, layer in enumerate(model.layers):
        with npu.scope(layer=number):
            verify.layer(layer, number, last=number + 1 == len(model.layers))
    head(verify)
    if not drafted:
        return
    verify.launch(accept(verify.tokens, model.vocabulary, case.knobs.relaxed_acceptance))
    drafts = with_precision(model, dict.fromkeys(("experts", "shared"), case.knobs.draft_dtype))
    for number, layer, tokens in draft_passes(model, drafted):
        with npu.scope(layer=number):
            draft(replace(verify, model=drafts, tokens=tokens), layer, number)
    verify.launch([("draft.stack", framework(verify.tokens))])


def head(one: Pass) -> None:
    """A vocabulary shard of logits, gathered by NCCL, in FP32, and the best of all."""
    tensor = one.npu.group("tensor")
    one.launch(one.stack.head(one.model, one.tokens, tensor.size))
    tensor.all_gather("head.gather", 2 * one.tokens * -(-one.model.vocabulary // tensor.size), "nccl")
    one.launch(one.stack.sample(one.model, one.tokens, one.tokens * one.model.vocabulary))


def draft(one: Pass, layer: Layer, number: int) -> None:
    """Embedding (every rank has the whole table) and hidden state normed, beside each other or in order, and projected
    together; one MoE layer, the head, one token further."""
    tokens, hidden = one.tokens, one.model.hidden
    embedded = [("draft.embedding", framework(tokens, hidden)), ("draft.embedding_norm", vector(tokens, hidden))]
    normed = [("draft.hidden_norm", vector(tokens, hidden))]
    if one.case.knobs.norms == "in_order":
        one.launch([*embedded, *normed])
    else:
        done = one.beside(NORMS, one.npu.record(), embedded)
        one.launch(normed)
        one.npu.wait(done)
    one.launch(joined(one.model, tokens, one.case.ranks))
    one.sum("draft")
    one.launch([("draft.input_norm", vector(tokens, hidden))])
    one.layer(layer, number, last=True)
    one.launch([("draft.last_token", framework(1, hidden))])
    head(replace(one, tokens=1))
    one.launch([(f"draft.{name}", framework(1)) for name in ("lengths", "positions")])


def stack_of(case: Case) -> MinLatency:
    """What is fused; add, norm and quantisation are inside the one-shot AllReduce alone."""
    knobs = case.knobs
    return replace(STACK, fused_kernels=knobs.fused_kernels, fused_top_k=knobs.fused_top_k,
                   fuse_a_kernel=knobs.fuse_a_kernel, router_kernel=knobs.router_kernel,
                   quantised=knobs.fused_all_reduce and knobs.engine == "one_shot",
                   moe="gemms" if knobs.sparse == "gemms" else knobs.moe_backend)  # fmt: skip


def model_of(case: Case) -> Model:
    """Attention in BF16, experts and dense FFN in NVFP4, as checkpoint nvidia/DeepSeek-R1-FP4; `drafts`: in the ledger
    the whole MTP module is as its experts are."""
    whole = {"all": "nvfp4", "drafts": case.knobs.draft_dtype}
    return with_precision(case.model, whole | dict.fromkeys(("attention", "router", "embedding", "head", "kv"), "bf16"))


def mesh_of(case: Case) -> Mesh:
    """All ranks split the one request's layers; the embedding is whole on each."""
    return Mesh(tp=case.ranks, ep=case.layout.expert_parallel, replicas=_copies(case), embedding=1)


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Those of the mesh; what cannot be run is refused."""
    known = len(case.batch.accepted)
    if known <= case.batch.draft_tokens:
        have = f"batch.accepted has {known} values, for 0 to {known - 1} draft tokens"
        raise ValueError(f"{have}, but batch.draft_tokens is {case.batch.draft_tokens}")
    check_drafts(case.model, case.batch.draft_tokens, "batch.draft_tokens")
    check_accepted(case)
    check_split(case)
    return groups_of(mesh_of(case))


def check_accepted(case: Case) -> None:
    """An iteration yields a token of its own, and no more than were drafted beside it."""
    known = [("accepted", drafted, tokens) for drafted, tokens in enumerate(case.batch.accepted)]
    for name, drafted, tokens in known + ([("relaxed_accepted", 3, case.batch.relaxed_accepted)] * _relaxed(case)):
        if not 1 <= tokens <= 1 + drafted:
            right = f"it must be from 1 to {1 + drafted}"
            raise ValueError(f"batch.{name} has {tokens:g} for {drafted} draft tokens: {right}")


def _relaxed(case: Case) -> bool:
    """Whether relaxed acceptance is on and published for as many draft tokens."""
    return bool(case.knobs.relaxed_acceptance) and case.batch.draft_tokens == 3


def check_split(case: Case) -> None:
    """Splits that do not use all ranks, or that do not come out even, are refused."""
    attention, experts = case.model.layers[0].attention, experts_of(case.model)
    layout, copies = case.layout, _copies(case)
    if not isinstance(attention, Latent):
        raise InputError(f"{case.model.name} has grouped-query attention, and this program is for latent attention")
    used = layout.expert_parallel * layout.tensor_parallel * copies
    if used != case.ranks:
        twice = "two copies (knobs.smart_router) of " if copies > 1 else ""
        split = f"layout.tensor_parallel {layout.tensor_parallel} x layout.expert_parallel {layout.expert_parallel}"
        raise ValueError(f"{twice}routed experts take {split} = {used} ranks, but there are {case.ranks}")
    for what, size, over in (
        ("heads", attention.heads, case.ranks),
        ("routed experts", experts.routed, layout.expert_parallel),
        ("columns of an expert", experts.intermediate, layout.tensor_parallel),
    ):
        shard_size(size, over, what)


def _copies(case: Case) -> int:
    """Of all routed experts."""
    return 2 if case.knobs.smart_router else 1


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """Where it is in the mesh: its place among experts, and the block of ranks that have all of them."""
    return coordinates_of(mesh_of(case), rank)


def memory(case: Case) -> list[MemoryItem]:
    """Weights of a rank and the latent cache of all layers, those of the MTP module too."""
    model, tokens = model_of(case), case.batch.prompt_tokens + case.batch.output_tokens
    return [*weights_of(model, mesh_of(case), 0, drafts=True),
            ("latent cache, BF16", "KV", cache_bytes(model, mesh_of(case), [tokens], drafts=True))]


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Iteration, tokens that it yields, and output tokens per second of the one request."""
    batch = case.batch
    accepted = batch.relaxed_accepted if _relaxed(case) else batch.accepted[batch.draft_tokens]
    return {
        "iteration_ms": seconds * 1e3,
        "accepted_tokens": accepted,
        "tpot_ms": seconds * 1e3 / accepted,
        "throughput_tok_s": accepted / seconds,
    }


ITERATION = Workload(iteration, groups, coordinates, memory, measures)
