"""One layer of TensorRT-LLM at minimum latency, as a rank runs it: MLA of its heads, then the dense FFN or the experts.

Fuse_A -> two norms -> UQ_QR -> UK -> attention -> UV -> O -> AllReduce + add + norm; router -> top-k -> routed experts,
beside them the shared expert -> AllReduce + add + norm. RoPE and the KV cache run beside UQ_QR and UK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.die.kernels import Work
from simulator.model import choices, ops
from simulator.program.rank import Event, Rank
from simulator.stack.trtllm_min_latency import touched_experts
from workloads.trt_parts import all_reduce, of_family, quantise, small, vector

if TYPE_CHECKING:
    from workloads.trt_min_latency import Case

CACHE, NORMS, SHARED, PREFETCH = "cache", "norms", "shared", "prefetch"
SEPARATE_TOP_K = ("sigmoid", "bias", "group_scores", "group_top_k", "mask", "top_k")


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


def prefetch(npu: Rank, case: Case, following: int) -> None:
    """Fuse_A's weights while the AllReduce before it runs, as its prologue does."""
    before = npu.record()
    with npu.stream(PREFETCH):
        npu.wait(before)
        npu.prefetch(f"layer{following}.fuse_a", 2.0 * fuse_a_width(case) * case.shapes.hidden)


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
    """A shard of a dense FFN or shared expert: gate and up, SwiGLU (or in the first NVFP4 GEMM's epilogue), down."""
    s, quantises = case.shapes, dtype == "nvfp4"
    if quantises:
        quantise(npu, case, tokens, block)
    npu.launch(small(ops.gemm(tokens, 2 * width, s.hidden, dtype)), f"{block}.gate_up")
    if not (case.knobs.fused_kernels and quantises):
        npu.launch(vector(tokens, 3 * width), f"{block}.swiglu")
    if not case.knobs.fused_kernels and quantises:
        npu.launch(vector(tokens, width), f"{block}.quantise_inner")
    npu.launch(small(ops.gemm(tokens, s.hidden, width, dtype)), f"{block}.down")


def moe(npu: Rank, case: Case, tokens: int, number: int) -> None:
    """Router and routed experts, the shared expert beside or between them; MTP has a data type of its own."""
    dtype = "nvfp4" if number < case.shapes.layers else case.knobs.draft_dtype
    s, knobs = case.shapes, case.knobs
    normed = npu.record()
    if knobs.shared_beside:
        with npu.stream(SHARED):
            npu.wait(normed)
            shared_expert(npu, case, tokens, dtype)
            shared = npu.record()
    router = ops.gemm(tokens, s.routed_experts, s.hidden, "bf16", "fp32")
    npu.launch(small(of_family(router, "router_gemm") if knobs.router_kernel else router), "gate.router")
    for name in ("top_k",) if knobs.fused_top_k else SEPARATE_TOP_K:
        npu.launch(vector(tokens, s.routed_experts), f"gate.{name}")
    if not knobs.shared_beside:
        shared_expert(npu, case, tokens, dtype)
    routed(npu, case, tokens, local_rows(npu, case, tokens, number), dtype)
    if knobs.shared_beside:
        npu.wait(shared)
    if s.shared_experts and not knobs.fused_kernels:
        npu.launch(vector(tokens, s.hidden), "finalize.add_shared")


def shared_expert(npu: Rank, case: Case, tokens: int, dtype: str) -> None:
    """This rank's shard of it, if the model has one."""
    if width := case.shapes.shared_experts * case.shapes.expert_intermediate:
        gated(npu, case, "shared", tokens, width // case.ranks, dtype)


def routed(npu: Rank, case: Case, tokens: int, rows: tuple[int, ...], dtype: str) -> None:
    """This rank's share of the experts that its rows touch; in BF16 they are one operator of CUTLASS."""
    knobs, shards = case.knobs, case.layout.tensor_parallel
    if dtype != "nvfp4":
        width = case.shapes.expert_intermediate // shards
        npu.launch(small(touched_experts(rows, case.shapes.hidden, width, "experts_bf16", dtype)), "experts.grouped")
        return
    quantise(npu, case, tokens, "experts")
    if knobs.sparse == "gemms":
        for name in ("active_map", "strides"):
            npu.launch(vector(1, case.shapes.routed_experts), f"experts.{name}")
        products(npu, case, tuple(tokens if count else 0 for count in rows), "grouped_gemm_nvfp4")
    elif knobs.moe_backend == "cutlass":
        npu.launch(small(ops.sort_rows(sum(rows), rows, case.shapes.hidden)), "experts.sort")
        products(npu, case, rows, "grouped_gemm_nvfp4")
        npu.launch(vector(sum(rows), case.shapes.hidden), "experts.finalize")
    else:
        products(npu, case, rows, "grouped_gemm_trtllm")


def products(npu: Rank, case: Case, rows: tuple[int, ...], family: str) -> None:
    """Both products of every expert with rows (and launches without any); the TensorRT-LLM backend fuses SwiGLU.

    As plain GEMMs all tokens go through every active expert: nothing is sorted, and the AllReduce leaves out what was
    not chosen and sums up.
    """
    s, width = case.shapes, case.shapes.expert_intermediate // case.layout.tensor_parallel
    npu.launch(small(of_family(ops.grouped_gemm(rows, 2 * width, s.hidden, "nvfp4"), family)), "experts.gate_up")
    if family != "grouped_gemm_trtllm":
        npu.launch(vector(sum(rows), 3 * width), "experts.swiglu_quantise")
    npu.launch(small(of_family(ops.grouped_gemm(rows, s.hidden, width, "nvfp4"), family)), "experts.down")


def local_rows(npu: Rank, case: Case, tokens: int, number: int) -> tuple[int, ...]:
    """Rows of each local expert; of two copies of an expert every other active one is used."""
    s, ep = case.shapes, case.layout.expert_parallel
    if case.routing.skew is None:
        rows = choices.even_rows(tokens, s.routed_experts, s.experts_per_token)
    else:
        seed = (case.seed, number)
        limit = s.expert_groups, s.groups_per_token
        rows = choices.power_law_rows(tokens, s.routed_experts, s.experts_per_token, case.routing.skew, seed, *limit)
    group, copy = npu.coordinate("expert_group"), npu.coordinate("copy")
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
