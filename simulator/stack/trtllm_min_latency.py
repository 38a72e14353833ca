"""TensorRT-LLM at minimum latency: kernels for the few tokens of one request, latent attention and NVFP4 experts.

The down projections of query, key/value and rotary key are one product, Fuse_A, whole on every rank. Fields of
`MinLatency` are the fusions that were published one after the other; without all of them it is what the first version
did. Everything stays in L2 but weights and the cache. What is between passes is PyTorch's: a launch each.

Source: NVIDIA, TensorRT-LLM tech blog "Pushing Latency Boundaries: Optimizing DeepSeek-R1 Performance on NVIDIA B200
GPUs"; NVIDIA/TensorRT-LLM, `_torch/models/modeling_deepseekv3.py`, `_torch/speculative/mtp.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simulator.die.kernels import ELEMENT_BYTES, Work
from simulator.errors import InputError
from simulator.model import ops
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Experts, Latent, Model
from simulator.stack.gpu import GpuStack, Kernels
from simulator.stack.trtllm import OPERATORS

TOP_K = ("sigmoid", "bias", "group_scores", "group_top_k", "mask", "top_k")
ACCEPT = ("compare", "cumulative_product", "count", "store", "positions", "last_tokens", "lengths")


@dataclass(frozen=True)
class MinLatency(GpuStack):
    """What is fused.

    fused_kernels: SwiGLU, RoPE and the last sum are inside their neighbours' kernels. fused_top_k: one kernel, not six.
    fuse_a_kernel, router_kernel: kernels of their own for few tokens. quantised: the AllReduce before a block gives
    NVFP4. moe: grouped products of CUTLASS, between a sort and a sum; all tokens through plain products of every active
    expert, where nothing is sorted, and the AllReduce leaves out what was not chosen; or TensorRT-LLM's own.
    """

    fused_kernels: bool = True
    fused_top_k: bool = True
    fuse_a_kernel: bool = True
    router_kernel: bool = True
    quantised: bool = True
    moe: Literal["cutlass", "gemms", "trtllm"] = "trtllm"

    def embed(self, model: Model, tokens: int, shards: int) -> Kernels:
        return [("embedding.lookup", framework(tokens, model.hidden))]

    def norm(self, model: Model, tokens: int, block: str) -> Kernels:
        return [(f"{block}.norm", vector(tokens, 2 * model.hidden))]

    def inputs(self, model: Model, attention: Attention, tokens: int, tp: int, packed: bool) -> Kernels:
        latent = _latent(model, attention)
        return [*self.fuse_a(model, latent, tokens), *grouped_norms(latent, tokens)]

    def fuse_a(self, model: Model, latent: Latent, tokens: int, weights: str = "") -> Kernels:
        """Fuse_A of these tokens, its weights known to L2 by this name."""
        work = ops.gemm(tokens, latent.q_lora + latent.cached_values, model.hidden, "bf16", weights=weights)
        return [("attention.fuse_a", small(replace(work, family="fuse_a_gemm") if self.fuse_a_kernel else work))]

    def rope_cache(self, latent: Latent, tokens: int) -> Kernels:
        """RoPE, and keys with their rotary part into the cache."""
        rope = [] if self.fused_kernels else [("attention.rope", vector(tokens, latent.rope_dim))]
        return [*rope, ("attention.concat_cache", vector(tokens, latent.cached_values))]

    def attend(self, model: Model, attention: Attention, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        latent = _latent(model, attention)
        if batch.prompts or cp > 1:
            raise InputError(f"{self.name}: its kernels are of decode on whole contexts, without prompts and layout.cp")
        return [*up(latent, batch.tokens, tp), *self.rope_cache(latent, batch.tokens), *core(latent, batch.decodes, tp)]

    def output(self, model: Model, attention: Attention, tokens: int, shards: int) -> Kernels:
        width = attention.heads * _latent(model, attention).v_dim // shards
        return [("attention.o", small(ops.gemm(tokens, model.hidden, width, "bf16")))]

    def gated(self, model: Model, block: str, tokens: int, width: int, dtype: str, two: bool = True) -> Kernels:
        quantises = dtype == "nvfp4"
        fused = self.fused_kernels and quantises
        return [*self.quantise(model, tokens, block, dtype),
                (f"{block}.gate_up", small(ops.gemm(tokens, 2 * width, model.hidden, dtype))),
                *([] if fused else [(f"{block}.swiglu", vector(tokens, 3 * width))]),
                *([] if fused or not quantises else [(f"{block}.quantise_inner", vector(tokens, width))]),
                (f"{block}.down", small(ops.gemm(tokens, model.hidden, width, dtype)))]

    def quantise(self, model: Model, tokens: int, block: str, dtype: str) -> Kernels:
        """To NVFP4, in a kernel of its own unless the AllReduce has done it."""
        needed = dtype == "nvfp4" and not self.quantised
        return [(f"{block}.quantise", vector(tokens, model.hidden))] if needed else []

    def route(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        router = ops.gemm(tokens, experts.routed, model.hidden, "bf16", "fp32")
        top_k = TOP_K[-1:] if self.fused_top_k else TOP_K
        return [("gate.router", small(replace(router, family="router_gemm") if self.router_kernel else router)),
                *((f"gate.{name}", vector(tokens, experts.routed)) for name in top_k)]

    def experts(self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int) -> Kernels:
        each, width, dtype = tuple(rows), experts.intermediate // shards, model.precision.experts
        if dtype == "bf16":
            return [("experts.grouped", small(touched_experts(each, model.hidden, width, "experts_bf16", dtype)))]
        quantise = self.quantise(model, tokens, "experts", "nvfp4")
        if self.moe == "gemms":
            maps = [(f"experts.{name}", vector(1, experts.routed)) for name in ("active_map", "strides")]
            each = tuple(tokens if count else 0 for count in each)
            return [*quantise, *maps, *_products(each, model.hidden, width, "grouped_gemm_nvfp4")]
        if self.moe == "trtllm":
            return [*quantise, *_products(each, model.hidden, width, "grouped_gemm_trtllm")]
        return [*quantise, ("experts.sort", small(ops.sort_rows(sum(each), each, model.hidden))),
                *_products(each, model.hidden, width, "grouped_gemm_nvfp4"),
                ("experts.finalize", vector(sum(each), model.hidden))]

    def finalize(self, model: Model, experts: Experts, tokens: int, by_row: bool) -> Kernels:
        added = bool(experts.shared_intermediate) and not self.fused_kernels
        return [("finalize.add_shared", vector(tokens, model.hidden))] if added else []

    def head(self, model: Model, rows: int, shards: int) -> Kernels:
        return [("head.logits", small(ops.gemm(rows, -(-model.vocabulary // shards), model.hidden, "bf16")))]

    def sample(self, model: Model, rows: int, candidates: int) -> Kernels:
        return [(f"head.{name}", framework(1, candidates)) for name in ("to_fp32", "sample")]

    def project(self, model: Model, tokens: int) -> Kernels:
        norms = [(f"draft.{name}_norm", vector(tokens, model.hidden)) for name in ("embedding", "hidden")]
        return [*norms, *joined(model, tokens, 1)]


def vector(tokens: int, width: int) -> Work:
    """An element-wise kernel of the library on a few rows."""
    return small(ops.copy(tokens * width))


def framework(tokens: int, width: int = 1) -> Work:
    """One of PyTorch's own."""
    return replace(vector(tokens, width), family="framework")


def small(work: Work) -> Work:
    """Activations of a few tokens stay in L2."""
    return ops.cached(work)


def grouped_norms(latent: Latent, tokens: int) -> Kernels:
    """The norms of query and key/value behind Fuse_A, in one kernel."""
    return [("attention.norms", vector(tokens, latent.q_lora + latent.kv_lora))]


def up(latent: Latent, tokens: int, tp: int) -> Kernels:
    """This rank's heads of queries, up and into the latent space."""
    heads, qk_dim = latent.heads // tp, latent.nope_dim + latent.rope_dim
    return [("attention.uq_qr", small(ops.gemm(tokens, heads * qk_dim, latent.q_lora, "bf16"))),
            ("attention.uk", small(ops.batched_gemm(tokens, heads, latent.kv_lora, latent.nope_dim)))]


def core(latent: Latent, contexts: tuple[tuple[int, int], ...], tp: int) -> Kernels:
    """Attention over the latent cache and the way back; contexts: (queries, cached tokens)."""
    heads, tokens = latent.heads // tp, sum(queries for queries, _ in contexts)
    attention = ops.latent_attention(contexts, heads, latent.kv_lora, latent.rope_dim, "mla")
    return [("attention.core", small(attention)),
            ("attention.uv", small(ops.batched_gemm(tokens, heads, latent.v_dim, latent.kv_lora)))]


def joined(model: Model, tokens: int, shards: int) -> Kernels:
    """Hidden state and embedding side by side, and 1/shards of the projection of both to one."""
    product = ops.gemm(tokens, model.hidden, 2 * model.hidden // shards, "bf16")
    return [("draft.concat", framework(tokens, 2 * model.hidden)), ("draft.project", small(product))]


def accept(tokens: int, vocabulary: int, relaxed: bool) -> Kernels:
    """How many drafts were right, and where draft steps begin. relaxed: a draft token among the best few will do, which
    PyTorch finds digit by digit, eight bits of 32 at a time."""
    candidates: Kernels = []
    for digit in range(4):
        candidates += [(f"top_k.histogram_{digit}", framework(tokens, vocabulary)),
                       (f"top_k.digit_{digit}", framework(tokens, 256))]
    found = [("softmax", framework(tokens, vocabulary)), *candidates, ("top_k.gather", framework(tokens, vocabulary)),
             ("top_k.sort", framework(tokens, 16))] if relaxed else []  # fmt: skip
    return [(f"accept.{name}", work) for name, work in (*found, *((name, framework(tokens)) for name in ACCEPT))]


def touched_experts(rows: tuple[int, ...], hidden: int, width: int, family: str, dtype: str = "nvfp4") -> Work:
    """Sort rows by expert, both products of every expert that has rows, and sum up: one operator, as where few tokens
    touch few experts.

    rows: of every local expert, zeros included. width: of a rank's share of an expert. It counts as one grouped product
    of the hidden size and all three matrices of an expert.
    """
    size = 2.0 * sum(rows) * hidden
    weight_bytes = sum(map(bool, rows)) * 3 * width * hidden * ELEMENT_BYTES[dtype]
    return Work(family, kind="grouped_gemm", dtype=dtype, rows=rows, n=3 * width, k=hidden, read_bytes=size,
                write_bytes=size, weight_bytes=weight_bytes)


def _products(rows: tuple[int, ...], hidden: int, width: int, family: str) -> Kernels:
    """Both products of every expert with rows (and launches without any); TensorRT-LLM's own have SwiGLU inside."""
    swiglu = [("experts.swiglu_quantise", vector(sum(rows), 3 * width))]
    first, second = (small(replace(ops.grouped_gemm(rows, n, k, "nvfp4"), family=family))
                     for n, k in ((2 * width, hidden), (hidden, width)))  # fmt: skip
    return [("experts.gate_up", first), *(swiglu if family != "grouped_gemm_trtllm" else []), ("experts.down", second)]


def _latent(model: Model, attention: Attention) -> Latent:
    if not isinstance(attention, Latent):
        raise InputError(f"{STACK.name}: its kernels are of latent attention; {model.name} has grouped-query attention")
    return attention


STACK = MinLatency("trtllm_1_3", norm_in_all_reduce=True, rope=(), names_weights=False, operators=OPERATORS)
