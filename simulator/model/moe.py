"""Router, products of experts and FFNs of decode in launch order, INT8 where they are quantised.

The first GEMM of an expert writes int32, which SwiGLU reads again; the second one writes BF16.
"""

from __future__ import annotations

from simulator.model import ops
from simulator.model.mla import Kernels
from simulator.spec.model import ModelShapes


def router(s: ModelShapes, tokens: int, weights: str = "") -> Kernels:
    """Router in FP32 and top-k."""
    scores, name = 4.0 * tokens * s.routed_experts, ops.named(weights, "router")
    return [("gate.router", ops.gemm(tokens, s.routed_experts, s.hidden, "fp32", "fp32", name)),
            ("gate.top_k", ops.passes(2.0 * scores, scores))]


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
