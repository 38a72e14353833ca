"""Kernels of grouped-query attention in a serving iteration: heads in groups that share a head of keys and values.

The same three parts as `serving` has for latent attention, with the same arguments: `heads` are the query heads of one
rank. Where a model has fewer key and value heads than ranks that split them, every rank has one whole, a copy of its
neighbour's: tensor parallelism then keeps the cache more than once. Keys and values are cached as they are, BF16;
nothing is absorbed. Queries and keys are normalised per head and rotated in one pass with the write to the cache.
"""

from __future__ import annotations

from simulator.model import ops, serving
from simulator.model.decode import Contexts
from simulator.model.mla import Kernels, causal
from simulator.spec.model import ModelShapes


def projections(s: ModelShapes, tokens: int, heads: int, dtype: str) -> Kernels:
    """Norm, queries, keys and values as one product, their norms and rotation, the write to the cache."""
    kv = s.kv_values_of(s.heads // heads)
    width = heads * s.qk_dim + kv
    return [("attention.norm", ops.add_rms_norm(tokens, s.hidden)),
            *serving.linear("attention.qkv", tokens, width, s.hidden, dtype),
            ("attention.norm_rope_cache", ops.copy(tokens * width))]


def decode_attention(s: ModelShapes, contexts: Contexts, heads: int) -> Kernels:
    """One query token a request over its keys and values; queries of a group are rows of one tile."""
    kv_heads = s.kv_heads_of(s.heads // heads)
    return [("attention.core", ops.grouped_attention(contexts, heads, kv_heads, s.qk_dim, s.v_dim, "gqa_decode"))]


def prompt_attention(s: ModelShapes, prompts: tuple[int, ...], heads: int, dtype: str) -> Kernels:
    """FlashAttention of whole prompts; a group reads its keys once."""
    kv_heads = s.kv_heads_of(s.heads // heads)
    return [("attention.flash",
             ops.flash_attention(causal(prompts), heads, s.qk_dim, s.v_dim, "flash_attention", kv_heads=kv_heads))]
