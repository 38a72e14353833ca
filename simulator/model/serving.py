"""Kernels of one layer of a serving iteration on GPUs: tokens that decode and prompts that are prefilled, in one batch.

Decoding tokens attend to the latent cache with absorbed up-projections (DeepSeek-V2, arXiv 2405.04434); prompts expand
keys and values per head. Linear layers are FP8 with activations quantised per block of 128 before each of them, or
BF16; the absorbed products, the router and the LM head are BF16. `heads` and `width` are those of one rank. Activations
are read and written through HBM; `decode.in_l2` says that they stay in L2.
"""

from __future__ import annotations

from simulator.die.kernels import ELEMENT_BYTES, Work
from simulator.model import ops
from simulator.model.decode import Contexts
from simulator.model.mla import Kernels, causal
from simulator.spec.model import ModelShapes

BLOCK = 128  # elements that share an FP8 scale


def linear(name: str, tokens: int, n: int, k: int, dtype: str) -> Kernels:
    """A product, after quantising its input where it is FP8."""
    quantised = [(f"{name}.quantise", quantise(tokens, k))] if dtype == "fp8" else []
    return [*quantised, (name, ops.gemm(tokens, n, k, dtype))]


def quantise(tokens: int, width: int) -> Work:
    """BF16 to FP8 with an FP32 scale per block."""
    return ops.passes(2.0 * tokens * width, tokens * width * (1.0 + 4.0 / BLOCK))


def projections(s: ModelShapes, tokens: int, heads: int, dtype: str) -> Kernels:
    """Norm, both down projections as one product, their norms, queries up."""
    latent = s.q_lora + s.kv_values
    return [("attention.norm", ops.add_rms_norm(tokens, s.hidden)),
            *linear("attention.qkv_a", tokens, latent, s.hidden, dtype),
            ("attention.qkv_a.norm", ops.rms_norm(tokens, latent)),
            *linear("attention.q_b", tokens, heads * s.qk_dim, s.q_lora, dtype)]


def decode_attention(s: ModelShapes, contexts: Contexts, heads: int) -> Kernels:
    """Absorption, RoPE and cache, attention in the latent space, and the way back from it."""
    tokens = sum(queries for queries, _ in contexts)
    return [("attention.absorb_k", ops.batched_gemm(tokens, heads, s.kv_lora, s.nope_dim)),
            ("attention.rope_cache", ops.copy(tokens * (heads * s.rope_dim + s.kv_values))),
            ("attention.core", ops.latent_attention(contexts, heads, s.kv_lora, s.rope_dim, "mla_decode")),
            ("attention.absorb_v", ops.batched_gemm(tokens, heads, s.v_dim, s.kv_lora))]


def prompt_attention(s: ModelShapes, prompts: tuple[int, ...], heads: int, dtype: str) -> Kernels:
    """Keys and values up, RoPE and cache, FlashAttention of whole prompts."""
    tokens = sum(prompts)
    return [*linear("attention.kv_b", tokens, heads * (s.nope_dim + s.v_dim), s.kv_lora, dtype),
            ("attention.prompt_rope_cache", ops.copy(tokens * (heads * (s.rope_dim + s.qk_dim) + s.kv_values))),
            ("attention.flash",
             ops.flash_attention(causal(prompts), heads, s.qk_dim, s.v_dim, "flash_attention"))]


def output(s: ModelShapes, tokens: int, heads: int, dtype: str) -> Kernels:
    """These heads back to the hidden size."""
    return linear("attention.o", tokens, s.hidden, heads * s.v_dim, dtype)


def gate(s: ModelShapes, tokens: int) -> Kernels:
    """Router, top-k, and the sort of rows by expert."""
    scores = 4.0 * tokens * s.routed_experts
    return [("gate.router", ops.gemm(tokens, s.routed_experts, s.hidden, "bf16")),
            ("gate.top_k", ops.passes(scores, 8.0 * tokens * s.experts_per_token)),
            ("gate.sort", ops.copy(tokens * s.experts_per_token, 8.0))]


def experts(s: ModelShapes, tokens: int, rows: tuple[int, ...], width: int, dtype: str) -> Kernels:
    """Rows of each local expert out of `tokens`, `width` of its intermediate size, and the sum of a token's rows."""
    total = sum(rows)
    return [("experts.sort", sort(s, tokens, rows)),
            *([("experts.quantise", quantise(total, s.hidden))] if dtype == "fp8" else []),
            ("experts.gate_up", ops.grouped_gemm(rows, 2 * width, s.hidden, dtype)),
            ("experts.silu", silu(total, width)),
            *([("experts.down.quantise", quantise(total, width))] if dtype == "fp8" else []),
            ("experts.down", ops.grouped_gemm(rows, s.hidden, width, dtype)),
            ("experts.sum", ops.passes(2.0 * total * s.hidden, 2.0 * tokens * s.hidden))]


def touched_experts(s: ModelShapes, rows: tuple[int, ...], shards: int, family: str, dtype: str = "nvfp4") -> Work:
    """Sort rows by expert, both products of every expert that has rows, and sum up: one operator, as where few tokens
    touch few experts.

    rows: of every local expert, zeros included. shards: over how many ranks each expert is split. It counts as one
    grouped product of the hidden size and all three matrices of an expert.
    """
    width, size = 3 * s.expert_intermediate // shards, 2.0 * sum(rows) * s.hidden
    weight_bytes = sum(map(bool, rows)) * width * s.hidden * ELEMENT_BYTES[dtype]
    return Work(family, kind="grouped_gemm", dtype=dtype, rows=rows, n=width, k=s.hidden, read_bytes=size,
                write_bytes=size, weight_bytes=weight_bytes)


def sort(s: ModelShapes, tokens: int, rows: tuple[int, ...]) -> Work:
    """Copy tokens to rows in the order of their experts. rows: of every local expert, zeros included."""
    read, write = 2.0 * tokens * s.hidden, 2.0 * sum(rows) * s.hidden
    return Work("experts_sort", kind="vector", dtype="fp32", rows=rows, read_bytes=read, write_bytes=write)


def ffn(s: ModelShapes, block: str, tokens: int, width: int, dtype: str) -> Kernels:
    """A gated FFN: dense or shared expert, or a shard of either."""
    return [*linear(f"{block}.gate_up", tokens, 2 * width, s.hidden, dtype),
            (f"{block}.silu", silu(tokens, width)),
            *linear(f"{block}.down", tokens, s.hidden, width, dtype)]


def silu(rows: int, width: int) -> Work:
    """SiLU of one half times the other, BF16."""
    return ops.passes(4.0 * rows * width, 2.0 * rows * width)
