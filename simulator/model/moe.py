"""Mixture-of-experts layers, dense FFN, embedding and head: kernels in launch order, INT8 where it is quantised.

Routing is computed twice in prefill: `init_routing` sorts a rank's own tokens by expert before the dispatch,
`re_routing` sorts what arrived by local expert; `unsort` and `finalize_routing` undo both. The first GEMM of an expert
writes int32, which SwiGLU reads again; the second one writes BF16. Kernels that only handle indices, counts or weights
move few bytes, but an eager host launches each of them.
"""

from __future__ import annotations

from simulator.model import ops
from simulator.model.mla import Kernels
from simulator.spec.model import ModelShapes


def gate(s: ModelShapes, tokens: int) -> Kernels:
    """Norm, router in FP32 (cast, GEMM), then scores, groups and top-k."""
    return [("gate.norm", ops.add_rms_norm(tokens, s.hidden)),
            ("gate.cast", ops.passes(2.0 * tokens * s.hidden, 4.0 * tokens * s.hidden)),
            *router(s, tokens),
            ("gate.scale", ops.copy(tokens * s.experts_per_token, 4.0))]


def router(s: ModelShapes, tokens: int, weights: str = "") -> Kernels:
    """Router in FP32 and top-k."""
    scores, name = 4.0 * tokens * s.routed_experts, ops.named(weights, "router")
    return [("gate.router", ops.gemm(tokens, s.routed_experts, s.hidden, "fp32", "fp32", name)),
            ("gate.top_k", ops.passes(2.0 * scores, scores))]


def init_routing(s: ModelShapes, tokens: int) -> Kernels:
    """Quantise and sort: one INT8 row per token and chosen expert, by expert."""
    rows = tokens * s.experts_per_token
    return [("init_routing.sort", ops.passes(2.0 * tokens * s.hidden, rows * (s.hidden + 4.0))),
            ("init_routing.counts", ops.copy(s.routed_experts, 8.0))]


def split_sizes(s: ModelShapes) -> Kernels:
    """From the exchanged counts to the split sizes that the host reads: stack, sum per rank, sum of all."""
    return [(f"dispatch.counts_{what}", ops.copy(2 * s.routed_experts, 8.0)) for what in ("stack", "sum", "total")]


def experts(s: ModelShapes, rows: tuple[int, ...]) -> Kernels:
    """The local experts on the rows that arrived for each of them, sorted by expert before and unsorted after."""
    total = sum(rows)
    return [("experts.re_routing", ops.copy(total * (s.hidden + 4.0), 1.0)),
            *products(s, rows),
            ("experts.unsort_to_float", ops.copy(total, 4.0)),
            ("experts.unsort_argsort", ops.copy(total, 4.0)),
            ("experts.unsort_to_int", ops.copy(total, 4.0)),
            ("experts.unsort", ops.copy(total * s.hidden))]


def products(s: ModelShapes, rows: tuple[int, ...], weights: str = "") -> Kernels:
    """Both products of the local experts on the rows of each of them."""
    width = s.expert_intermediate
    up, down = (ops.named(weights, f"experts.{part}") for part in ("gate_up", "down"))
    return [("experts.gate_up", ops.grouped_gemm(rows, 2 * width, s.hidden, out="int32", weights=up)),
            ("experts.swiglu", ops.swiglu_quantise(sum(rows), width)),
            ("experts.down", ops.grouped_gemm(rows, s.hidden, width, weights=down))]


def ffn(s: ModelShapes, block: str, tokens: int, width: int, weights: str = "", quantise: bool = True) -> Kernels:
    """A gated FFN of `width` on these tokens: dense, shared expert, or a shard of either."""
    up, down = (ops.named(weights, f"{block}.{part}") for part in ("gate_up", "down"))
    return [*([(f"{block}.quantise", ops.quantise(tokens, s.hidden))] if quantise else []),
            (f"{block}.gate_up", ops.gemm(tokens, 2 * width, s.hidden, out="int32", weights=up)),
            (f"{block}.swiglu", ops.swiglu_quantise(tokens, width)),
            (f"{block}.down", ops.gemm(tokens, s.hidden, width, weights=down))]


def shared_expert(s: ModelShapes, tokens: int) -> Kernels:
    """The expert that every token visits, if there is one."""
    width = s.shared_experts * s.expert_intermediate
    return ffn(s, "shared", tokens, width) if width else []


def finalize_routing(s: ModelShapes, tokens: int) -> Kernels:
    """Weighted sum of a token's expert rows, in its own order, plus the shared expert."""
    rows = tokens * s.experts_per_token
    return [("finalize.weights", ops.copy(rows, 4.0)),
            ("finalize.sum", ops.passes(2.0 * (rows + tokens) * s.hidden, 2.0 * tokens * s.hidden))]


def dense(s: ModelShapes, tokens: int) -> Kernels:
    """The FFN of the first layers."""
    return [("dense.norm", ops.add_rms_norm(tokens, s.hidden)), *ffn(s, "dense", tokens, s.dense_intermediate)]


def embedding_shard(s: ModelShapes, tokens: int) -> Kernels:
    """One vocabulary shard looks up every token of the group, then zeroes those that are not its own."""
    size = 2.0 * tokens * s.hidden
    return [("embedding.lookup", ops.passes(0.0, size)), ("embedding.mask", ops.passes(size, size))]


def head_shard(s: ModelShapes, rows: int, shards: int) -> Kernels:
    """One vocabulary shard's logits of these rows, BF16."""
    return [("head.logits", ops.gemm(rows, -(-s.vocabulary // shards), s.hidden, dtype="bf16"))]
