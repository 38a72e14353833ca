"""SGLang of 2025 (0.4.10), of which tables of single kernels are public: what it launches by itself and what it fuses.

The input of every FP8 product is quantised per block of 128 by a kernel of its own; queries and keys of grouped-query
attention are normalised, rotated and cached in one pass; rows are sorted by expert once more behind the top-k. The
shared expert is a choice more of every token where all ranks have slices of all experts (shared experts fusion).

Source: sgl-project/sglang 0.4.10, `srt/models/deepseek_v2.py`, `srt/layers/moe/fused_moe_triton/fused_moe.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.model import ops
from simulator.model.transformer import Experts, Model
from simulator.stack.gpu import AttentionFamilies, GpuStack, Kernels

NORMS = {"dense": "ffn", "gate": "ffn"}  # one norm before either feed-forward


class Sglang2025(GpuStack):
    """Its names of kernels, and the sort."""

    def norm(self, model: Model, tokens: int, block: str) -> Kernels:
        return super().norm(model, tokens, NORMS.get(block, block))

    def route(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        sort = ("gate.sort", ops.copy(tokens * experts.per_token, 8.0))
        return [*super().route(model, experts, tokens), *self.in_l2([sort])]

    def experts(self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int) -> Kernels:
        kernels = super().experts(model, experts, tokens, rows, shards)
        return [("experts.quantise" if name == "experts.gate_up.quantise" else name, work) for name, work in kernels]

    def finalize(self, model: Model, experts: Experts, tokens: int, by_row: bool) -> Kernels:
        return [("shared.add", work) for _, work in super().finalize(model, experts, tokens, by_row)]

    def add(self, model: Model, name: str, tokens: int) -> Kernels:
        """Residual added to what a piece gave."""
        size = 2.0 * tokens * model.hidden
        return self.in_l2([(name, ops.passes(2 * size, size))])

    def own_rows(self, model: Model, name: str, tokens: int) -> Kernels:
        """Own rows out of those of all ranks: a buffer is zeroed, then they are copied into it."""
        size = 2.0 * tokens * model.hidden
        return self.in_l2([(f"{name}.zero", ops.passes(0.0, size)), (name, ops.passes(size, size))])

    def norm_alone(self, model: Model, name: str, tokens: int) -> Kernels:
        """RMSNorm where the residual is added already."""
        return self.in_l2([(name, ops.rms_norm(tokens, model.hidden))])


STACK = Sglang2025("sglang_2025", norm_in_all_reduce=False, rope=("norm_rope_cache",), quantises=True,
                   families=AttentionFamilies("mla_decode", "gqa_decode", "flash_attention", "flash_attention"),
                   fuses_shared=True, logit_bytes=2.0, names_weights=False, algorithm="ring")
