"""SGLang of 2025 (0.4.10), of which tables of single kernels are public: what it launches by itself and what it fuses.

The input of every FP8 product is quantised per block of 128 by a kernel of its own; queries and keys of grouped-query
attention are normalised, rotated and cached in one pass; choices are sorted by expert behind the top-k
(`moe_align_block_size`). The shared expert is a choice more of every token where all ranks have slices of all experts
(shared experts fusion).

Where a rank has all experts, their products are Triton's `fused_moe_kernel`, whose tiles fetch the tokens that they
need: tokens are quantised once, and no row is copied. Experts that are shared out over ranks (`ep_moe`) are DeepGEMM's,
over rows that were copied in the order of their experts.

What it allocates beside weights and cache is counted as its code does: a step with prompts at its fullest, in the first
product of sliced experts (`fused_experts_impl`), and the logits of the largest captured batch of all ranks, once as
they are gathered and once in order (`GroupCoordinator.all_gather`).

Source: sgl-project/sglang 0.4.10, `srt/models/deepseek_v2.py`, `srt/layers/moe/fused_moe_triton/fused_moe.py`,
`srt/layers/moe/ep_moe/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.die.kernels import Work
from simulator.model import ops
from simulator.model.transformer import Experts, Model, experts_of
from simulator.stack.gpu import BLOCK, AttentionFamilies, GpuStack, Kernels
from simulator.stack.sglang import OPERATORS

CAPTURED = (1, 2, 4)  # small batch sizes for which graphs are captured; beyond, multiples of 8
FUSED_CHUNK = 64 * 1024  # tokens that sliced experts take at once
NORMS = {"dense": "ffn", "gate": "ffn"}  # one norm before either feed-forward


class Sglang2025(GpuStack):
    """Its names of kernels, and the sort."""

    def norm(self, model: Model, tokens: int, block: str) -> Kernels:
        return super().norm(model, tokens, NORMS.get(block, block))

    def route(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        sort = ("gate.sort", ops.copy(tokens * experts.per_token, 8.0))
        return [*super().route(model, experts, tokens), *self.in_l2([sort])]

    def experts(self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int) -> Kernels:
        if len(rows) < experts.routed or not sum(rows):
            return super().experts(model, experts, tokens, rows, shards)
        width, total, dtype = experts.intermediate // shards, sum(rows), model.precision.experts
        return self.in_l2([
            *self.quantising("experts", tokens, model.hidden, dtype),
            ("experts.gate_up", fetching(tuple(rows), 2 * width, model.hidden, dtype, tokens)),
            ("experts.silu", ops.passes(4.0 * total * width, 2.0 * total * width)),
            *self.quantising("experts.down", total, width, dtype),
            ("experts.down", fetching(tuple(rows), model.hidden, width, dtype, total)),
            ("experts.sum", ops.passes(2.0 * total * model.hidden, 2.0 * tokens * model.hidden)),
        ])  # fmt: skip

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


def fetching(rows: tuple[int, ...], n: int, k: int, dtype: str, tokens: int) -> Work:
    """A grouped product whose tiles fetch the rows that they need out of so many."""
    work = ops.grouped_gemm(rows, n, k, "fp8" if dtype.startswith("fp8") else dtype)
    return replace(work, family=f"fused_{work.family.removeprefix('grouped_')}",
                   read_bytes=work.read_bytes * tokens / sum(rows))  # fmt: skip


STACK = Sglang2025("sglang_2025", norm_in_all_reduce=False, rope=("norm_rope_cache",), quantises=True,
                   families=AttentionFamilies("mla_decode", "gqa_decode", "flash_attention", "flash_attention"),
                   fuses_shared=True, logit_bytes=2.0, names_weights=False, algorithm="ring",
                   operators=OPERATORS)


def graph_size(tokens: int, largest: int) -> int:
    """Tokens to which so many in decode are padded in a captured graph, of which the largest takes `largest`; beyond,
    none is used. Data parallel ranks each fill up their own (0.4.10; before, to the sum of all)."""
    if tokens > largest:
        return tokens
    return min(next((size for size in CAPTURED if size >= tokens), -(-tokens // 8) * 8), largest)


def captured_bytes(model: Model, largest: int, groups: int) -> float:
    """BF16 logits of the largest batch for which a graph is captured, of all data-parallel groups, two copies."""
    return 2 * 2.0 * model.vocabulary * largest * groups


def prompt_step_bytes(model: Model, tokens: int, groups: int, ranks: int, ep: int) -> float:
    """BF16, a step with so many tokens of prompts in each data-parallel group: what experts read, the residual, buffers
    of experts. With several groups the residual is of own tokens, and so is what attention gave and the sum comes back
    to. Sliced experts write their sum over what they read; whole ones need room for it, and for rows of local experts.
    """
    width, together = 2.0 * model.hidden, tokens * groups
    hidden = together + (2 * tokens if groups > 1 else tokens)
    if ep == 1:
        return width * hidden + sliced_experts_bytes(model, together, ranks)
    return width * (hidden + together + together * experts_of(model).per_token // ep)


def sliced_experts_bytes(model: Model, tokens: int, ranks: int) -> float:
    """Buffers of fused experts over so many ranks, of which the shared one is a choice more of every token: one for the
    results of both products, one for what the activation gives, both BF16; in FP8, the quantised input of either."""
    experts, hidden, tokens = experts_of(model), model.hidden, min(tokens, FUSED_CHUNK)
    choices = experts.per_token + experts.shared_intermediate // experts.intermediate
    rows, width = tokens * choices, experts.intermediate // ranks
    fp8 = model.precision.experts == "fp8_block"
    quantised = max(tokens * hidden, rows * width) * (1.0 + 4.0 / BLOCK) if fp8 else 0.0
    return 2.0 * rows * (max(2 * width, hidden) + width) + quantised
