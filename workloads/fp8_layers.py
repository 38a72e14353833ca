"""Kernels of a DeepSeek-V3-shaped layer in FP8 on GPUs: decode with absorbed MLA, prefill with keys per head.

Linear layers are FP8 with BF16 out, the absorbed projections BF16. Activations of decode stay in L2.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.model import ops
from simulator.model.mla import Kernels
from simulator.program.rank import Rank
from simulator.spec.model import ModelShapes


def launch(npu: Rank, kernels: Kernels) -> None:
    """Into the current stream, one after the other."""
    for name, work in kernels:
        npu.launch(work, name)


def decode_attention(s: ModelShapes, requests: int, queries: int, cached_tokens: int) -> Kernels:
    """All heads of this rank's requests (data parallel)."""
    tokens, contexts = requests * queries, ((queries, cached_tokens),) * requests
    return _in_l2([
        ("attention.norm", ops.add_rms_norm(tokens, s.hidden)),
        ("attention.qkv_a", ops.gemm(tokens, s.q_lora + s.kv_values, s.hidden, dtype="fp8")),
        ("attention.q_b", ops.gemm(tokens, s.heads * s.qk_dim, s.q_lora, dtype="fp8")),
        ("attention.absorb_k", ops.batched_gemm(tokens, s.heads, s.kv_lora, s.nope_dim)),
        ("attention.core", ops.latent_attention(contexts, s.heads, s.kv_lora, s.rope_dim, "mla_decode")),
        ("attention.absorb_v", ops.batched_gemm(tokens, s.heads, s.v_dim, s.kv_lora)),
        ("attention.o", ops.gemm(tokens, s.hidden, s.heads * s.v_dim, dtype="fp8")),
        *_gate(s, tokens),
    ])  # fmt: skip


def prefill_attention(s: ModelShapes, tokens: int) -> Kernels:
    """One prompt of so many tokens, all heads."""
    heads = s.heads * (s.nope_dim + s.v_dim)
    return [
        ("attention.norm", ops.add_rms_norm(tokens, s.hidden)),
        ("attention.qkv_a", ops.gemm(tokens, s.q_lora + s.kv_values, s.hidden, dtype="fp8")),
        ("attention.q_b", ops.gemm(tokens, s.heads * s.qk_dim, s.q_lora, dtype="fp8")),
        ("attention.kv_b", ops.gemm(tokens, heads, s.kv_lora, dtype="fp8")),
        ("attention.flash", ops.flash_attention(((tokens, tokens, True),), s.heads, s.qk_dim, s.v_dim,
                                                "flash_attention")),
        ("attention.o", ops.gemm(tokens, s.hidden, s.heads * s.v_dim, dtype="fp8")),
        *_gate(s, tokens),
    ]  # fmt: skip


def shared_expert(s: ModelShapes, tokens: int) -> Kernels:
    """The expert that every token visits, if there is one."""
    return _ffn(s, "shared", (tokens,), s.shared_experts * s.expert_intermediate) if s.shared_experts else []


def experts(s: ModelShapes, rows: Sequence[int]) -> Kernels:
    """The local experts on the rows that came for each of them."""
    return _ffn(s, "experts", tuple(rows), s.expert_intermediate)


def _gate(s: ModelShapes, tokens: int) -> Kernels:
    return [
        ("gate.norm", ops.add_rms_norm(tokens, s.hidden)),
        ("gate.router", ops.gemm(tokens, s.routed_experts, s.hidden, dtype="bf16")),
        ("gate.top_k", ops.passes(4.0 * tokens * s.routed_experts, 8.0 * tokens * s.experts_per_token)),
    ]


def _ffn(s: ModelShapes, block: str, rows: tuple[int, ...], width: int) -> Kernels:
    total = sum(rows)
    return _in_l2([
        (f"{block}.gate_up", ops.grouped_gemm(rows, 2 * width, s.hidden, dtype="fp8")),
        (f"{block}.swiglu", ops.passes(4.0 * total * width, 1.0 * total * width)),
        (f"{block}.down", ops.grouped_gemm(rows, s.hidden, width, dtype="fp8")),
    ]) if total else []  # fmt: skip


def _in_l2(kernels: Kernels) -> Kernels:
    return [(name, ops.cached(work)) for name, work in kernels]
