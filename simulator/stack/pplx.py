"""DeepSeek-V3-shaped layers in FP8 on GPUs of 2025: cuBLAS, DeepGEMM, FlashMLA, and MoE kernels that pack and shuffle.

Linear layers are FP8 with BF16 out, the absorbed projections BF16; dispatched rows are FP8 with a scale per 128 values.
Rows come out of an exchange in the layout of the grouped products and leave it summed, so neither sort nor sum is a
kernel here, and no rotation is counted. What lies in L2 of weights is not tracked; activations of decode stay there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from simulator.errors import InputError
from simulator.model import ops
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Experts, Latent, Model
from simulator.stack.gpu import AttentionFamilies, GpuStack, Kernels, own_queries


@dataclass(frozen=True)
class PplxStack(GpuStack):
    """As a serving stack outside attention and feed-forward."""

    def inputs(self, model: Model, attention: Attention, tokens: int, tp: int, packed: bool) -> Kernels:
        """From normed hidden states to latents; InputError for attention without."""
        if not isinstance(attention, Latent):
            raise _without_latents(model)
        width = attention.q_lora + attention.cached_values
        return self.in_l2(self.linear("attention.qkv_a", tokens, width, model.hidden, model.precision.attention))

    def _latent(self, model: Model, a: Latent, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        """Absorbed products around attention to the cache in decode; keys and values per head for prompts."""
        heads, qk_dim, dtype = a.heads // tp, a.nope_dim + a.rope_dim, model.precision.attention
        kernels = self.linear("attention.q_b", batch.tokens, heads * qk_dim, a.q_lora or model.hidden, dtype)
        if batch.decodes:
            queries = sum(count for count, _ in batch.decodes)
            seen = tuple((count, -(-keys // cp)) for count, keys in batch.decodes)
            kernels += [
                ("attention.absorb_k", ops.batched_gemm(queries, heads, a.kv_lora, a.nope_dim)),
                ("attention.core", ops.latent_attention(seen, heads, a.kv_lora, a.rope_dim, self.families.latent)),
                ("attention.absorb_v", ops.batched_gemm(queries, heads, a.v_dim, a.kv_lora)),
            ]
        if batch.prompts:
            keys = sum(new + before for new, before in batch.prompts)
            prompts = tuple((new, before + new, True) for new, before in own_queries(batch.prompts, cp))
            kernels += [
                *self.linear("attention.kv_b", keys, heads * (a.nope_dim + a.v_dim), a.kv_lora, dtype),
                ("attention.flash", ops.flash_attention(prompts, heads, qk_dim, a.v_dim, self.families.latent_prompts)),
            ]
        return kernels

    def experts(self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int) -> Kernels:
        """1/shards of the columns of the local experts on the rows of each."""
        return self._ffn(model, "experts", tuple(rows), experts.intermediate // shards, model.precision.experts)

    def shared(self, model: Model, experts: Experts, tokens: int, shards: int, packed: bool) -> Kernels:
        """1/shards of the shared experts' columns, if there are any."""
        width = experts.shared_intermediate // shards
        return self._ffn(model, "shared", (tokens,), width, model.precision.shared) if width else []

    def finalize(self, model: Model, experts: Experts, tokens: int, by_row: bool) -> Kernels:
        """Nothing: copies of a token are summed as they are collected."""
        return []

    def grouped(self, name: str, rows: tuple[int, ...], n: int, k: int, dtype: str) -> Kernels:
        """One product for each group of rows, FP8 in blocks."""
        return super().grouped(name, rows, n, k, "fp8" if dtype.startswith("fp8") else dtype)

    def _ffn(self, model: Model, block: str, rows: tuple[int, ...], width: int, dtype: str) -> Kernels:
        """Gate and up in one product, SwiGLU that quantises, down; all in L2, of prompts too."""
        total = sum(rows)
        kernels = [*self.grouped(f"{block}.gate_up", rows, 2 * width, model.hidden, dtype),
                   (f"{block}.swiglu", ops.passes(4.0 * total * width, 1.0 * total * width)),
                   *self.grouped(f"{block}.down", rows, model.hidden, width, dtype)]
        return [(name, ops.cached(work)) for name, work in kernels] if total else []


FP8_BYTES = 1.0 + 4.0 / 128  # of a value and its share of a scale

STACK = PplxStack("pplx", norm_in_all_reduce=False, rope=(), gathered_bytes=FP8_BYTES, wire_bytes=FP8_BYTES,
                  names_weights=False, engines=("nvlink", "nccl"), l2_bytes=inf,
                  families=AttentionFamilies(latent="mla_decode", latent_prompts="flash_attention"))  # fmt: skip


def for_latents(model: Model, phase: str, dtypes: Collection[str]) -> PplxStack:
    """For models with latent attention; InputError for others."""
    if not all(isinstance(layer.attention, Latent) for layer in model.layers):
        raise _without_latents(model)
    return STACK


def _without_latents(model: Model) -> InputError:
    return InputError(f"{model.name} has grouped-query attention, and the kernels of {STACK.name} are for latent "
                      "attention")
