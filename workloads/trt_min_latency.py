"""Decode of one request of DeepSeek-R1 at minimum latency, as TensorRT-LLM does it on 8 GPUs: one rank's program.

Published in TensorRT-LLM's tech blog "Pushing Latency Boundaries: Optimizing DeepSeek-R1 Performance on NVIDIA B200
GPUs". Attention is split over all ranks by heads (TP), routed experts by expert and by width (TP x EP), the shared
expert by width; the down projections (Fuse_A) and the router are on every rank. An iteration verifies 1 + draft tokens
in one pass, then the MTP module drafts the next ones, one after the other.

A layer: Fuse_A -> two norms -> UQ_QR -> UK -> attention -> UV -> O -> AllReduce + add + norm; router -> top-k ->
routed experts, beside them the shared expert -> AllReduce + add + norm. RoPE and the KV cache run beside UQ_QR and UK.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from simulator.machine.kernels import Work
from simulator.model import choices, ops, sparse
from simulator.model.layout import blocks
from simulator.program.rank import Event, Rank
from simulator.scenario import Case, MemoryItem, Part, Workload

CACHE, NORMS, SHARED, PREFETCH = "cache", "norms", "shared", "prefetch"
SEPARATE_TOP_K = ("sigmoid", "bias", "group_scores", "group_top_k", "mask", "top_k")


class Request(Part):
    """One request. Simulated is the iteration half-way through its output.

    accepted: output tokens per iteration by number of draft tokens, 0 first, as published. relaxed_accepted: the same
    with relaxed acceptance, which is published for three draft tokens only (others get no more than without it).
    """

    prompt_tokens: PositiveInt = 1024
    output_tokens: PositiveInt = 2048
    draft_tokens: int = Field(0, ge=0, le=5)
    accepted: tuple[float, ...] = (1.00, 1.92, 2.58, 2.82, 2.99, 3.01)
    relaxed_accepted: float = Field(3.10, gt=0)

    @property
    def cached_tokens(self) -> int:
        """Half-way through the output."""
        return self.prompt_tokens + self.output_tokens // 2


class Knobs(BaseModel):
    """The published optimisations, one switch each; off is what the first version did."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


def iteration(npu: Rank, case: Case) -> None:
    """Verify, sample, draft."""
    npu.program.captured = case.knobs.cuda_graph
    npu.program.programmatic = case.knobs.programmatic_launch
    tokens, s = 1 + case.batch.draft_tokens, case.shapes
    npu.launch(vector(tokens, s.hidden), "embedding.lookup")
    all_reduce(npu, case, tokens, "embedding")
    for number in range(s.layers):
        with npu.scope(layer=number):
            layer(npu, case, tokens, number, last=number + 1 == s.layers)
    head(npu, case, tokens)
    if case.batch.draft_tokens:
        npu.launch(vector(tokens, 64), "accept.compare")
        npu.launch(vector(tokens, s.hidden), "accept.select")
    if case.knobs.relaxed_acceptance:
        npu.launch(vector(tokens, s.vocabulary), "accept.relaxed")
    for step in range(case.batch.draft_tokens):
        with npu.scope(layer=s.layers + step):
            draft(npu, case, tokens if step == 0 else 1, s.layers + step)


def layer(npu: Rank, case: Case, tokens: int, number: int, last: bool) -> None:
    """Attention, then the dense FFN or the experts; each half ends with an AllReduce and the next norm."""
    attention(npu, case, tokens, number)
    all_reduce(npu, case, tokens, "attention")
    if number < case.shapes.dense_layers:
        gated(npu, case, "dense", tokens, case.shapes.dense_intermediate // case.ranks)
    else:
        moe(npu, case, tokens, number)
    if case.knobs.fuse_a_kernel and not last:
        prefetch(npu, case, number + 1)
    all_reduce(npu, case, tokens, "ffn")


# --- attention --------------------------------------------------------------------------------------------------------


def attention(npu: Rank, case: Case, tokens: int, number: int) -> None:
    """Absorbed MLA of this rank's heads."""
    s, heads = case.shapes, case.shapes.heads // case.ranks
    npu.launch(fuse_a(case, tokens, number), "attention.fuse_a")
    cached = norms_and_cache(npu, case, tokens)
    npu.launch(small(ops.gemm(tokens, heads * s.qk_dim, s.q_lora, "bf16")), "attention.uq_qr")
    npu.launch(small(ops.batched_gemm(tokens, heads, s.kv_lora, s.nope_dim)), "attention.uk")
    if not case.knobs.cache_beside:
        rope_and_cache(npu, case, tokens)
    else:
        npu.wait(cached)
    context = ((tokens, case.batch.cached_tokens),)
    npu.launch(small(ops.latent_attention(context, heads, s.kv_lora, s.rope_dim, "mla")), "attention.core")
    npu.launch(small(ops.batched_gemm(tokens, heads, s.v_dim, s.kv_lora)), "attention.uv")
    npu.launch(small(ops.gemm(tokens, s.hidden, heads * s.v_dim, "bf16")), "attention.o")


def fuse_a(case: Case, tokens: int, number: int) -> Work:
    """Down projections of query, key/value and k-rope, on every rank whole."""
    work = ops.gemm(tokens, fuse_a_width(case), case.shapes.hidden, "bf16", weights=f"layer{number}.fuse_a")
    return small(of_family(work, "fuse_a_gemm") if case.knobs.fuse_a_kernel else work)


def fuse_a_width(case: Case) -> int:
    """2112 columns."""
    return case.shapes.q_lora + case.shapes.kv_lora + case.shapes.rope_dim


def norms_and_cache(npu: Rank, case: Case, tokens: int) -> Event:
    """The query's norm on the current stream, the key/value's after it, beside it or with it; then maybe the cache."""
    s, down = case.shapes, npu.record()
    if case.knobs.norms == "grouped":
        npu.launch(vector(tokens, s.q_lora + s.kv_lora), "attention.norms")
        normed = npu.record()
    elif case.knobs.norms == "in_order":
        npu.launch(vector(tokens, s.kv_lora), "attention.kv_a.norm")
        npu.launch(vector(tokens, s.q_lora), "attention.q_a.norm")
        normed = npu.record()
    else:
        with npu.stream(NORMS):
            npu.wait(down)
            normed = npu.launch(vector(tokens, s.kv_lora), "attention.kv_a.norm")
        npu.launch(vector(tokens, s.q_lora), "attention.q_a.norm")
    if not case.knobs.cache_beside:
        npu.wait(normed)
        return normed
    with npu.stream(CACHE):
        npu.wait(normed)
        return rope_and_cache(npu, case, tokens)


def rope_and_cache(npu: Rank, case: Case, tokens: int) -> Event:
    """RoPE, and keys with their rotary part into the cache."""
    s = case.shapes
    if not case.knobs.fused_kernels:
        npu.launch(vector(tokens, s.rope_dim), "attention.rope")
    return npu.launch(vector(tokens, s.kv_values), "attention.concat_cache")


# --- FFN --------------------------------------------------------------------------------------------------------------


def gated(npu: Rank, case: Case, block: str, tokens: int, width: int, dtype: str = "nvfp4") -> None:
    """A shard of a dense FFN or shared expert: gate and up, SwiGLU (or in the first GEMM's epilogue), down."""
    s = case.shapes
    npu.launch(small(ops.gemm(tokens, 2 * width, s.hidden, dtype)), f"{block}.gate_up")
    if not case.knobs.fused_kernels:
        npu.launch(vector(tokens, 3 * width), f"{block}.swiglu")
    npu.launch(small(ops.gemm(tokens, s.hidden, width, dtype)), f"{block}.down")


def moe(npu: Rank, case: Case, tokens: int, number: int) -> None:
    """Router and routed experts, the shared expert beside or between them; MTP has a data type of its own."""
    dtype = "nvfp4" if number < case.shapes.layers else case.knobs.draft_dtype
    s, knobs, width = case.shapes, case.knobs, case.shapes.shared_experts * case.shapes.expert_intermediate
    normed = npu.record()
    if knobs.shared_beside:
        with npu.stream(SHARED):
            npu.wait(normed)
            gated(npu, case, "shared", tokens, width // case.ranks, dtype)
            shared = npu.record()
    router = ops.gemm(tokens, s.routed_experts, s.hidden, "bf16", "fp32")
    npu.launch(small(of_family(router, "router_gemm") if knobs.router_kernel else router), "gate.router")
    for name in ("top_k",) if knobs.fused_top_k else SEPARATE_TOP_K:
        npu.launch(vector(tokens, s.routed_experts), f"gate.{name}")
    if not knobs.shared_beside:
        gated(npu, case, "shared", tokens, width // case.ranks, dtype)
    routed(npu, case, tokens, local_rows(npu, case, tokens, number), dtype)
    if knobs.shared_beside:
        npu.wait(shared)
    if not knobs.fused_kernels:
        npu.launch(vector(tokens, s.hidden), "finalize.add_shared")


def routed(npu: Rank, case: Case, tokens: int, rows: tuple[int, ...], dtype: str) -> None:
    """This rank's share of the experts that its rows touch; in BF16 there is only the grouped GEMM of CUTLASS."""
    s, shards = case.shapes, case.layout.tensor_parallel
    if case.knobs.sparse == "grouped" or dtype != "nvfp4":
        backend = case.knobs.moe_backend if dtype == "nvfp4" else "cutlass"
        npu.launch(small(sparse.experts(s, rows, shards, f"experts_{backend}", dtype)), "experts.grouped")
        return
    npu.launch(vector(tokens, s.routed_experts), "experts.active_map")
    every, width = tuple(tokens for count in rows if count), s.expert_intermediate // shards
    if not every:
        return
    npu.launch(small(active(every, 2 * width, s.hidden)), "experts.gate_up")
    npu.launch(vector(sum(every), 3 * width), "experts.swiglu_quantise")
    npu.launch(small(active(every, s.hidden, width)), "experts.down")


def active(rows: tuple[int, ...], n: int, k: int) -> Work:
    """All tokens through every active expert in one launch; a mask in the epilogue leaves out what was not chosen."""
    return of_family(ops.grouped_gemm(rows, n, k, "nvfp4"), "grouped_gemm_nvfp4")


def local_rows(npu: Rank, case: Case, tokens: int, number: int) -> tuple[int, ...]:
    """Rows of each local expert; of two copies of an expert every other active one is used."""
    s, ep = case.shapes, case.layout.expert_parallel
    if case.routing.skew is None:
        rows = choices.even_rows(tokens, s.routed_experts, s.experts_per_token)
    else:
        seed = (case.seed, number)
        rows = choices.chosen_rows(tokens, s.routed_experts, s.experts_per_token, case.routing.skew, seed)
    group, copy = npu.where("expert_group"), npu.where("copy")
    assert isinstance(group, int)
    own = choices.blocks_of(rows, ep)[group]
    if not case.knobs.smart_router:
        return own
    turn = -1
    shared_out = []
    for count in own:
        turn += bool(count)
        shared_out.append(count if turn % 2 == copy else 0)
    return tuple(shared_out)


# --- exchange, head, draft --------------------------------------------------------------------------------------------


def all_reduce(npu: Rank, case: Case, tokens: int, block: str) -> None:
    """Sum over all ranks, add, norm and quantise, in one kernel or two."""
    knobs, algorithm = case.knobs, "one_shot" if case.knobs.engine == "one_shot" else "direct"
    npu.group("tp").all_reduce(f"{block}.all_reduce", 2 * tokens * case.shapes.hidden, knobs.engine, algorithm)
    if not (knobs.fused_all_reduce and knobs.engine == "one_shot"):
        npu.launch(vector(tokens, 2 * case.shapes.hidden), f"{block}.add_norm")


def prefetch(npu: Rank, case: Case, following: int) -> None:
    """Fuse_A's weights while the AllReduce before it runs, as its prologue does."""
    before = npu.record()
    with npu.stream(PREFETCH):
        npu.wait(before)
        npu.prefetch(f"layer{following}.fuse_a", 2.0 * fuse_a_width(case) * case.shapes.hidden)


def head(npu: Rank, case: Case, tokens: int) -> None:
    """A vocabulary shard of logits, gathered by NCCL, and the best of all."""
    s, tp = case.shapes, npu.group("tp")
    shard = -(-s.vocabulary // tp.size)
    npu.launch(small(ops.gemm(tokens, shard, s.hidden, "bf16")), "head.logits")
    tp.all_gather("head.gather", 2 * tokens * shard, "nccl")
    npu.launch(vector(tokens, s.vocabulary), "head.sample")


def draft(npu: Rank, case: Case, tokens: int, number: int) -> None:
    """The MTP module: norms of embedding and hidden state, a projection of both, one MoE layer, the head."""
    s = case.shapes
    npu.launch(vector(tokens, s.hidden), "draft.embedding")
    npu.launch(vector(tokens, 2 * s.hidden), "draft.norms")
    npu.launch(small(ops.gemm(tokens, s.hidden, 2 * s.hidden // case.ranks, "bf16")), "draft.project")
    all_reduce(npu, case, tokens, "draft")
    layer(npu, case, tokens, number, last=True)
    head(npu, case, 1)


# --- parts ------------------------------------------------------------------------------------------------------------


def vector(tokens: int, width: int) -> Work:
    """An element-wise kernel on a few rows."""
    return small(ops.copy(tokens * width))


def small(work: Work) -> Work:
    """Activations of a few tokens stay in L2."""
    return ops.cached(work)


def of_family(work: Work, family: str) -> Work:
    """The same work by another kernel."""
    return replace(work, family=family)


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """All ranks in one group; splits that do not use them all are refused."""
    copies = 2 if case.knobs.smart_router else 1
    used = case.layout.expert_parallel * case.layout.tensor_parallel * copies
    if used != case.ranks:
        raise ValueError(f"experts over {used} ranks ({copies} x TP x EP), but there are {case.ranks}")
    return {"tp": blocks(case.ranks, case.ranks)}


def place(case: Case, rank: int) -> Mapping[str, object]:
    """Which experts a rank holds, and of which copy."""
    held = case.layout.expert_parallel * case.layout.tensor_parallel
    return {"expert_group": rank % held // case.layout.tensor_parallel, "copy": rank // held}


def memory(case: Case) -> list[MemoryItem]:
    """Weights of a rank: attention in BF16, experts and dense FFN in NVFP4."""
    s, fp4 = case.shapes, 0.5625
    layers, drafted = s.layers + s.mtp_layers, s.mtp_layers * (2.0 if case.knobs.draft_dtype == "bf16" else fp4)
    moe_layers = s.moe_layers * fp4 + drafted  # in bytes per parameter
    down = s.hidden * fuse_a_width(case)
    held = s.routed_experts / (case.layout.expert_parallel * case.layout.tensor_parallel)
    tokens = case.batch.prompt_tokens + case.batch.output_tokens
    return [
        ("Fuse_A", "weights", 2.0 * layers * down),
        ("attention by heads", "weights", 2.0 * layers * (s.mla_parameters - down) / case.ranks),
        ("dense FFN", "weights", fp4 * s.dense_layers * s.dense_parameters / case.ranks),
        ("routed experts", "weights", moe_layers * held * s.expert_parameters),
        ("shared expert", "weights", moe_layers * s.shared_experts * s.expert_parameters / case.ranks),
        ("router", "weights", 2.0 * (s.moe_layers + s.mtp_layers) * s.router_parameters),
        ("embedding and head", "weights", 2.0 * s.embedding_parameters * (1.0 + 1.0 / case.ranks)),
        ("latent cache, BF16", "KV", 2.0 * layers * s.kv_values * tokens),
    ]


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Iteration, tokens that it yields, and output tokens per second of the one request."""
    batch = case.batch
    relaxed = case.knobs.relaxed_acceptance and batch.draft_tokens == 3
    accepted = batch.relaxed_accepted if relaxed else batch.accepted[batch.draft_tokens]
    return {
        "iteration_ms": seconds * 1e3,
        "accepted_tokens": accepted,
        "tpot_ms": seconds * 1e3 / accepted,
        "throughput_tok_s": accepted / seconds,
    }


ITERATION = Workload(iteration, groups, place, memory, measures)
