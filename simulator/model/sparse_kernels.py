"""Kernels of DeepSeek Sparse Attention (DSA): the indexer's scores, the choice of tokens, attention to those chosen.

As `library_kernels`: sizes and bytes, never time. Every rank has all heads of the indexer and its own of attention.

    scores     heads x queries x keys in FP8, summed over heads with a weight each to one FP32 logit per query and key:
               quadratic in a prompt's length, linear in the context of a request that decodes
    choice     a thread block for each query that sees more than `top_k` tokens goes through its row of logits
    attention  absorbed, each query with the latents of its own min(tokens before it, top_k)

Worked example. A prompt of 8,192 tokens, 32 heads of 128 values, top 2,048: 33.6 M logits of 8,192 FLOP (275 GFLOP) in
134 MB, 6,144 rows to choose from; then 14.7 M scores for each head instead of 33.6 M.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.die.kernels import Work, score_elements
from simulator.model import ops
from simulator.model.indexer import Indexer
from simulator.model.library_kernels import BF16, cache_variant
from simulator.model.transformer import Latent, cached_bytes

FP32 = 4.0
Pairs = Sequence[tuple[int, int]]
"""(query tokens, tokens in the cache before or with them) of each request."""


def prompt_logits(indexer: Indexer, prompts: Pairs) -> Work:
    """Scores of prompts, (new tokens, tokens cached before them), whose keys were gathered."""
    scores = tuple((new, new + before, True) for new, before in prompts)
    return _logits("index_logits", indexer, scores)


def decode_logits(indexer: Indexer, contexts: Pairs) -> Work:
    """Scores of requests, (query tokens, tokens in the cache with them), whose keys lie in pages and are split over
    cores."""
    return _logits("index_logits_paged", indexer, tuple((count, keys, False) for count, keys in contexts))


def _logits(family: str, indexer: Indexer, scores: tuple[tuple[int, int, bool], ...]) -> Work:
    queries, keys = sum(count for count, _, _ in scores), sum(seen for _, seen, _ in scores)
    return Work(family, kind="attention", dtype="fp8", out_dtype="fp32", scores=scores, heads=indexer.heads, kv_heads=1,
                kv_dim=indexer.head_dim, qk_dim=indexer.head_dim, v_dim=0,
                read_bytes=queries * indexer.heads * (indexer.head_dim + FP32),
                write_bytes=FP32 * sum(map(score_elements, scores)), streamed_bytes=keys * indexer.cached_bytes)


def choice(indexer: Indexer, scores: Sequence[tuple[int, int, bool]]) -> Work:
    """The top_k of each query's row; (queries, keys, causal). Queries that see no more take all: their indices are
    written, and nothing is compared."""
    queries = sum(count for count, _, _ in scores)
    written = FP32 * queries * indexer.top_k
    long = [_beyond(one, indexer.top_k) for one in scores]
    rows, logits = sum(count for count, _ in long), sum(count * mean for count, mean in long)
    if not rows:
        return ops.passes(0.0, written)
    return ops.loop("index_top_k", rows, rows, FP32 * logits, written, round(logits / rows))


def _beyond(scores: tuple[int, int, bool], top_k: int) -> tuple[int, float]:
    """Queries that see more than so many keys, and how many these see on average."""
    queries, keys, causal = scores
    if not causal:
        return (queries, float(keys)) if keys > top_k else (0, 0.0)
    count = min(queries, max(keys - top_k, 0))
    return count, keys - (count - 1) / 2.0


def chosen(contexts: Pairs, prompts: Pairs, top_k: int) -> tuple[tuple[int, int, bool], ...]:
    """(queries, keys, causal) of what attention meets: of requests, (query tokens, tokens in the cache with them), and
    of prompts, (new tokens, tokens before them), of which only the first see fewer than top_k."""
    found = [(count, min(keys, top_k), False) for count, keys in contexts]
    for new, before in prompts:
        free = min(new, max(top_k - before, 0))
        found += [(free, before + free, True)] * (free > 0) + [(new - free, top_k, False)] * (new > free)
    return tuple(found)


def attention(latent: Latent, contexts: Pairs, prompts: Pairs, heads: int, cache: str) -> Work:
    """Absorbed attention of requests and prompts, as of `chosen`, in one kernel of so many heads; all of them share the
    latents that a query chose, which come out of HBM once for each request and prompt."""
    assert latent.indexer is not None
    top_k, values = latent.indexer.top_k, latent.cached_values
    each = cached_bytes(latent, cache) - latent.indexer.cached_bytes
    queries = sum(count for count, _ in (*contexts, *prompts))
    spans = [*contexts, *((new, new + before) for new, before in prompts)]
    return Work(f"sparse_mla{cache_variant(cache)}", kind="attention", dtype="bf16",
                scores=chosen(contexts, prompts, top_k), heads=heads, kv_heads=1, kv_dim=values, qk_dim=values,
                v_dim=latent.kv_lora, stored_bytes=each / values, read_bytes=BF16 * queries * heads * values,
                write_bytes=BF16 * queries * heads * latent.kv_lora,
                streamed_bytes=float(each * sum(min(keys, count * top_k) for count, keys in spans)))
