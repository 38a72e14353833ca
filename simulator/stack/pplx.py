"""DeepSeek-V3-shaped layers in FP8 on GPUs of 2025: cuBLAS, DeepGEMM, FlashMLA, and MoE kernels that pack and shuffle.

Linear layers are FP8 with BF16 out, the absorbed projections BF16; dispatched rows are FP8 with a scale per 128 values.
Rows come out of an exchange in the layout of the grouped products and leave it summed, so neither sort nor sum is a
kernel here. What lies in L2 is not tracked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import InputError
from simulator.model import ops
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Experts, Latent, Model
from simulator.stack.gpu import GpuStack, Kernels, value_dim


@dataclass(frozen=True)
class PplxStack(GpuStack):
    """As a serving stack outside attention and experts. in_l2: activations stay in L2, as in decode."""

    in_l2: bool = True

    def norm(self, model: Model, tokens: int, block: str) -> Kernels:
        """Residual add and RMSNorm before a block."""
        return self._kept([(f"{block}.norm", ops.add_rms_norm(tokens, model.hidden))])

    def attend(self, model: Model, attention: Attention, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        """Absorbed products around attention to the latent cache in decode; keys and values per head for prompts."""
        if not isinstance(attention, Latent):
            raise InputError(f"{model.name} has grouped-query attention, and the kernels of {self.name} are for latent "
                             "attention")
        heads, tokens, qk_dim = attention.heads // tp, batch.tokens, attention.nope_dim + attention.rope_dim
        kernels = [
            ("attention.qkv_a", ops.gemm(tokens, attention.q_lora + attention.cached_values, model.hidden, "fp8")),
            ("attention.q_b", ops.gemm(tokens, heads * qk_dim, attention.q_lora or model.hidden, "fp8")),
        ]
        if batch.decodes:
            kernels += _decode(attention, batch, heads, cp)
        if batch.prompts:
            kernels += _prompts(attention, batch, heads)
        return self._kept(kernels)

    def output(self, model: Model, attention: Attention, tokens: int, shards: int) -> Kernels:
        """What 1/shards of the heads give, back to the hidden size."""
        width = attention.heads * value_dim(attention) // shards
        return self._kept([("attention.o", ops.gemm(tokens, model.hidden, width, "fp8"))])

    def route(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        """Router and top-k of these tokens."""
        scores = 4.0 * tokens * experts.routed
        return self._kept([("gate.router", ops.gemm(tokens, experts.routed, model.hidden, "bf16")),
                           ("gate.top_k", ops.passes(scores, 8.0 * tokens * experts.per_token))])  # fmt: skip

    def shared(self, model: Model, experts: Experts, tokens: int, shards: int) -> Kernels:
        """1/shards of the shared experts' columns, if there are any."""
        width = experts.shared_intermediate // shards
        return _ffn(model, "shared", (tokens,), width) if width else []

    def experts(self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int) -> Kernels:
        """1/shards of the columns of the local experts on the rows of each."""
        return _ffn(model, "experts", tuple(rows), experts.intermediate // shards)

    def finalize(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        """Nothing: copies of a token are summed as they are collected."""
        return []

    def _kept(self, kernels: Kernels) -> Kernels:
        return _in_l2(kernels) if self.in_l2 else kernels


def _decode(attention: Latent, batch: MicroBatch, heads: int, cp: int) -> Kernels:
    queries = sum(count for count, _ in batch.decodes)
    seen = tuple((count, -(-keys // cp)) for count, keys in batch.decodes)
    return [
        ("attention.absorb_k", ops.batched_gemm(queries, heads, attention.kv_lora, attention.nope_dim)),
        ("attention.core", ops.latent_attention(seen, heads, attention.kv_lora, attention.rope_dim, "mla_decode")),
        ("attention.absorb_v", ops.batched_gemm(queries, heads, attention.v_dim, attention.kv_lora)),
    ]  # fmt: skip


def _prompts(attention: Latent, batch: MicroBatch, heads: int) -> Kernels:
    keys = sum(new + before for new, before in batch.prompts)
    prompts = tuple((new, new + before, True) for new, before in batch.prompts)
    return [
        ("attention.kv_b", ops.gemm(keys, heads * (attention.nope_dim + attention.v_dim), attention.kv_lora, "fp8")),
        ("attention.flash", ops.flash_attention(prompts, heads, attention.nope_dim + attention.rope_dim,
                                                attention.v_dim, "flash_attention")),
    ]  # fmt: skip


def _ffn(model: Model, block: str, rows: tuple[int, ...], width: int) -> Kernels:
    total = sum(rows)
    return _in_l2([
        (f"{block}.gate_up", ops.grouped_gemm(rows, 2 * width, model.hidden, "fp8")),
        (f"{block}.swiglu", ops.passes(4.0 * total * width, 1.0 * total * width)),
        (f"{block}.down", ops.grouped_gemm(rows, model.hidden, width, "fp8")),
    ]) if total else []  # fmt: skip


def _in_l2(kernels: Kernels) -> Kernels:
    return [(name, ops.cached(work)) for name, work in kernels]


STACK = PplxStack("pplx", norm_in_all_reduce=False, rope=("rope", "cache"), wire_bytes=1.0 + 4.0 / 128,
                  engines=("nvlink", "nccl"))  # fmt: skip
