"""Kernels of a decode layer with weight-absorbed MLA (DeepSeek-V2, arXiv 2405.04434), INT8, in launch order.

Queries are carried into the latent space (`absorb_k`), where all heads attend to one cached latent per token, and the
result is carried back (`absorb_v`): 2 x heads x (576 + 512) FLOP per query and cached token. Weights have names, so
that a prefetch or the micro-batch before may leave them in L2; activations are small enough to stay in L2. `tokens` are
the query tokens of a rank: requests times (1 + draft tokens).
"""

from __future__ import annotations

from dataclasses import replace

from simulator.die.kernels import Work
from simulator.model import mla, moe, ops
from simulator.model.mla import Kernels
from simulator.spec.model import ModelShapes

Contexts = tuple[tuple[int, int], ...]  # (query tokens, cached tokens) of every request


def prolog(s: ModelShapes, tokens: int, weights: str = "", fused: bool = True) -> Kernels:
    """Down projections, norms, query up-projection, absorption, RoPE and the cache, as one kernel (MLAProlog) or many.

    HBM bytes of DeepSeek-R1: 69.7 MB of weights (INT8; absorb_k BF16).
    """
    latent = s.kv_lora + s.rope_dim
    parts: Kernels = [
        ("attention.q_a", ops.gemm(tokens, s.q_lora, s.hidden, weights=ops.named(weights, "q_a"))),
        ("attention.q_a.norm", ops.rms_norm(tokens, s.q_lora)),
        ("attention.q_b", ops.gemm(tokens, s.heads * s.qk_dim, s.q_lora, weights=ops.named(weights, "q_b"))),
        ("attention.absorb_k",
         ops.batched_gemm(tokens, s.heads, s.kv_lora, s.nope_dim, weights=ops.named(weights, "absorb_k"))),
        ("attention.q_rope", ops.copy(tokens * s.heads * s.rope_dim)),
        ("attention.kv_a", ops.gemm(tokens, latent, s.hidden, weights=ops.named(weights, "kv_a"))),
        ("attention.kv_a.norm_rope_cache", ops.passes(2.0 * tokens * latent, 4.0 * tokens * latent)),
    ]  # fmt: skip
    if not fused:
        return in_l2(parts)
    work = ops.fused("mla_prolog", "gemm", tuple(work for _, work in parts), ops.named(weights, "prolog"))
    return in_l2([("attention.prolog", work)])


def attention(s: ModelShapes, contexts: Contexts, family: str, weights: str = "",
              awaited_bytes: float = 0.0) -> Kernels:
    """The attention kernel over the latent cache, and the way back from the latent space.

    awaited_bytes: the first bytes of the cache, which a prefetch may have left in L2.
    """
    tokens = sum(queries for queries, _ in contexts)
    core = ops.latent_attention(contexts, s.heads, s.kv_lora, s.rope_dim, family)
    if awaited := min(awaited_bytes, core.streamed_bytes):
        streamed = core.streamed_bytes - awaited
        core = replace(core, streamed_bytes=streamed, weight_bytes=awaited, weights=ops.named(weights, "cache"))
    return in_l2([("attention.core", core)]) + absorb_v(s, tokens, weights)


def absorb_v(s: ModelShapes, tokens: int, weights: str = "") -> Kernels:
    """The way back from the latent space."""
    product = ops.batched_gemm(tokens, s.heads, s.v_dim, s.kv_lora, weights=ops.named(weights, "absorb_v"))
    return in_l2([("attention.absorb_v", product)])


def output_projection(s: ModelShapes, tokens: int, shards: int = 1, weights: str = "") -> Kernels:
    """Quantise, and o_proj with 1/shards of its input."""
    return in_l2(mla.output_projection(s, tokens, shards, weights))


def gate(s: ModelShapes, tokens: int, weights: str = "") -> Kernels:
    """Router in FP32 and top-k."""
    return in_l2(moe.router(s, tokens, weights))


def ffn(s: ModelShapes, block: str, tokens: int, width: int, weights: str = "", quantise: bool = True) -> Kernels:
    """A gated FFN of `width` on these tokens: dense, shared expert, or a shard of either."""
    return in_l2(moe.ffn(s, block, tokens, width, weights, quantise))


def experts(s: ModelShapes, rows: tuple[int, ...], weights: str = "") -> Kernels:
    """The local experts on the rows that came for each of them."""
    return in_l2(moe.products(s, rows, weights))


def mla_blocks(s: ModelShapes, contexts: Contexts, fused: bool = True,
               cache_bytes: float = 0.0) -> list[tuple[str, float]]:
    """What a prefetch can bring for one layer's MLA, in the order of its use: names and bytes of weights, and so many
    bytes of the cache."""
    kernels = prolog(s, 1, "layer", fused) + attention(s, contexts, "", "layer", cache_bytes)
    kernels += output_projection(s, 1, weights="layer")
    return [(work.weights.removeprefix("layer."), _weight_bytes(work)) for _, work in kernels if work.weights]


def _weight_bytes(work: Work) -> float:
    return work.weight_bytes + sum(map(_weight_bytes, work.parts))


def in_l2(kernels: Kernels) -> Kernels:
    """These kernels with activations that stay in L2."""
    return [(name, ops.cached(work)) for name, work in kernels]
