"""Kernels of latent attention with an indexer (DSA), as vLLM launches them.

Decode and prompts are one batch for attention, which is absorbed for both; scores and choice are apart, for keys of
prompts are gathered first. Heads of a rank are padded to what FlashMLA takes, so that its work does not fall with more
ranks, and all ranks do the whole indexer.

Source: vllm-project/vllm, `v1/attention/backends/mla/flashmla_sparse.py` (BF16 cache: `flash_mla_sparse_fwd` for all
tokens, heads padded to a multiple of 64 on Hopper and 128 on Blackwell; FP8 cache and fewer than 32 heads: the decode
kernel for all tokens), `model_executor/layers/sparse_attn_indexer.py` and `models/deepseek_v2.py` (order of the
indexer's kernels), `models/config.py` (the cache is BF16 unless FP8 is asked for).
"""

from __future__ import annotations

from simulator.errors import InputError
from simulator.model import library_kernels as library
from simulator.model import ops
from simulator.model import sparse_kernels as sparse
from simulator.model.indexer import Indexer
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Latent, Model
from simulator.stack.gpu import GpuStack, Kernels


def sparse_latent(stack: GpuStack, model: Model, a: Latent, batch: MicroBatch, tp: int, cp: int) -> Kernels:
    """From latents to this rank's heads. InputError with context parallelism, for each rank would have to choose from
    the keys of all."""
    if cp > 1:
        raise InputError(f"layout.cp is {cp}: with sparse attention (an indexer) it must be 1")
    heads, tokens, dtype = a.heads // tp, batch.tokens, model.precision.attention
    padded = -(-heads // stack.sparse_heads) * stack.sparse_heads
    latent = a.cached_values
    return [
        *stack.linear("attention.q_b", tokens, heads * (a.nope_dim + a.rope_dim), a.q_lora, dtype),
        *indexing(stack, model, a, batch),
        ("attention.rope_cache", ops.copy(tokens * (heads * a.rope_dim + latent))),
        ("attention.absorb_k", library.absorbed(tokens, heads, a.kv_lora, a.nope_dim)),
        ("attention.join_q", ops.copy(tokens * heads * latent)),
        *([("attention.pad_heads", ops.copy(tokens * heads * latent))] if padded > heads else []),
        ("attention.sparse", sparse.attention(a, batch.decodes, batch.prompts, padded, model.precision.kv)),
        ("attention.absorb_v", library.absorbed(tokens, heads, a.v_dim, a.kv_lora)),
    ]


def indexing(stack: GpuStack, model: Model, a: Latent, batch: MicroBatch) -> Kernels:
    """From hidden states and the latent of queries to the cache slots that each query attends to."""
    assert a.indexer is not None
    one, tokens, dtype = a.indexer, batch.tokens, model.precision.attention
    queries, indices = tokens * one.heads * one.head_dim, 4.0 * tokens * one.top_k
    return [
        *stack.linear("attention.index_q", tokens, one.heads * one.head_dim, a.q_lora, dtype),
        *stack.linear("attention.index_k", tokens, one.head_dim, model.hidden, dtype),
        ("attention.index_k.norm", ops.rms_norm(tokens, one.head_dim)),
        *stack.linear("attention.index_weights", tokens, one.heads, model.hidden, "bf16"),
        ("attention.index_rope", ops.copy(queries + tokens * one.head_dim)),
        ("attention.index_quantise", ops.passes(2.0 * queries, queries + 4.0 * tokens * one.heads)),
        ("attention.index_scale", ops.passes(6.0 * tokens * one.heads, 4.0 * tokens * one.heads)),
        ("attention.index_cache", ops.passes(2.0 * tokens * one.head_dim, tokens * one.cached_bytes)),
        ("attention.index_clear", ops.passes(0.0, indices)),
        *_chosen(one, batch),
        ("attention.index_slots", ops.passes(indices, indices)),
    ]


def _chosen(indexer: Indexer, batch: MicroBatch) -> Kernels:
    """Scores and choice of requests that decode, then of prompts, whose keys are gathered."""
    kernels: Kernels = []
    if batch.decodes:
        scores = sparse.decode_logits(indexer, batch.decodes)
        kernels += [("attention.index_logits_decode", scores),
                    ("attention.index_top_k_decode", sparse.choice(indexer, scores.scores))]
    if batch.prompts:
        scores = sparse.prompt_logits(indexer, batch.prompts)
        kernels += [("attention.index_gather", ops.copy(scores.streamed_bytes, 1.0)),
                    ("attention.index_logits", scores),
                    ("attention.index_top_k", sparse.choice(indexer, scores.scores))]
    return kernels
