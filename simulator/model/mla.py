"""The output projection of latent attention with INT8 weights, and the type of a list of kernels."""

from __future__ import annotations

from simulator.die.kernels import Work
from simulator.model import ops
from simulator.model.layout import shard_size
from simulator.spec.model import ModelShapes

Kernels = list[tuple[str, Work]]


def output_projection(s: ModelShapes, tokens: int, shards: int = 1, weights: str = "") -> Kernels:
    """Heads of these tokens back to the hidden size: quantise, and o_proj with 1/shards of its input."""
    width = shard_size(s.heads, shards, "heads") * s.v_dim
    return [("attention.o.quantise", ops.quantise(tokens, width)),
            ("attention.o", ops.gemm(tokens, s.hidden, width, weights=ops.named(weights, "o")))]
