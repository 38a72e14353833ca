"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the kernels of a prefill layer, in launch order.

Not absorbed: keys and values are expanded per head, as prefill does. Linear layers are INT8 but for the key/value
up-projection, which is BF16. The 7168-wide input is quantised once for each of q_a and kv_a. Attention wants its
operands head by head (NTD), so queries, keys, values and the result change layout on the way.
"""

from __future__ import annotations

from simulator.die.kernels import Work
from simulator.model import ops
from simulator.model.layout import shard_size
from simulator.spec.model import ModelShapes

Kernels = list[tuple[str, Work]]
Sequences = tuple[tuple[int, int, bool], ...]  # (queries, keys, causal)


def causal(lengths: tuple[int, ...]) -> Sequences:
    """Whole prompts of these lengths."""
    return tuple((length, length, True) for length in lengths)


def down_projections(s: ModelShapes, tokens: int) -> Kernels:
    """Queries and keys/values down to their latents, one quantisation each; then the latents' norms and the cache."""
    latent = s.kv_lora + s.rope_dim
    return [("attention.q_a.quantise", ops.quantise(tokens, s.hidden)),
            ("attention.q_a", ops.gemm(tokens, s.q_lora, s.hidden)),
            ("attention.q_a.norm", ops.rms_norm(tokens, s.q_lora)),
            ("attention.kv_a.quantise", ops.quantise(tokens, s.hidden)),
            ("attention.kv_a", ops.gemm(tokens, latent, s.hidden)),
            ("attention.kv_a.norm_rope_cache", ops.passes(2.0 * tokens * latent, 4.0 * tokens * latent))]


def up_projections(s: ModelShapes, tokens: int, heads: int) -> Kernels:
    """Latents up to per-head queries, keys and values, each part of a head in the layout that attention wants."""
    return [("attention.q_b.quantise", ops.quantise(tokens, s.q_lora)),
            ("attention.q_b", ops.gemm(tokens, heads * s.qk_dim, s.q_lora)),
            ("attention.q.rope", ops.copy(tokens * heads * s.rope_dim)),
            ("attention.q_rope.layout", ops.copy(tokens * heads * s.rope_dim)),
            ("attention.q_nope.layout", ops.copy(tokens * heads * s.nope_dim)),
            ("attention.kv_b", ops.gemm(tokens, heads * (s.nope_dim + s.v_dim), s.kv_lora, dtype="bf16")),
            ("attention.k_rope.repeat", ops.passes(2.0 * tokens * s.rope_dim, 2.0 * tokens * heads * s.rope_dim)),
            ("attention.k_rope.layout", ops.copy(tokens * heads * s.rope_dim)),
            ("attention.k_nope.layout", ops.copy(tokens * heads * s.nope_dim)),
            ("attention.v.layout", ops.copy(tokens * heads * s.v_dim))]


def attention(s: ModelShapes, sequences: Sequences, heads: int, family: str) -> Kernels:
    """FlashAttention and the layout of its result; the TND family reads and writes tokens in order, without layouts."""
    queries = sum(queries for queries, _, _ in sequences)
    return [("attention.flash", ops.flash_attention(sequences, heads, s.qk_dim, s.v_dim, family)),
            ("attention.o.layout", ops.copy(queries * heads * s.v_dim))]


def output_projection(s: ModelShapes, tokens: int, shards: int = 1, weights: str = "") -> Kernels:
    """Heads of these tokens back to the hidden size: quantise, and o_proj with 1/shards of its input."""
    width = shard_size(s.heads, shards, "heads") * s.v_dim
    return [("attention.o.quantise", ops.quantise(tokens, width)),
            ("attention.o", ops.gemm(tokens, s.hidden, width, weights=ops.named(weights, "o")))]


def prefill(s: ModelShapes, lengths: tuple[int, ...], family: str) -> Kernels:
    """A whole attention block of data-parallel prefill, from its norm on: all heads of its own prompts."""
    tokens = sum(lengths)
    return [("attention.norm", ops.add_rms_norm(tokens, s.hidden)),
            *down_projections(s, tokens),
            *up_projections(s, tokens, s.heads),
            *attention(s, causal(lengths), s.heads, family),
            *output_projection(s, tokens)]
