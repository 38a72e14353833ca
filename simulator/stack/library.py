"""Kernels of the public inference libraries on GPUs, as `braid calibrate kernels --chip` fits them.

Products quantise their own input, attention writes the cache, and routed experts are one operator of a few kernels
(`model.library_kernels`); what stands between them (norms, rotation, activations) is that of `GpuStack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.model import library_kernels as library
from simulator.model import ops
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Experts, Grouped, Latent, Model
from simulator.stack.gpu import GpuStack, Kernels, own_queries
from simulator.stack.sparse import sparse_latent

PROMPT_COPIES = 4
"""Calls between products and attention of latent prompts: rotation, two copies into keys of all heads, the cache. Like
all counts of calls here it is of the operations that a layer needs, assumed to be a call each, not of a trace."""
EXPERTS = ("experts.sort", "experts.gate_up", "experts.silu", "experts.down", "experts.sum")


@dataclass(frozen=True)
class LibraryStack(GpuStack):
    """A stack whose products, attention and experts are operators that were measured as a whole.

    scaled: data types in which the kernel before a product writes its result quantised, so that the product is of a
    family without that (gemm_fp8_scaled). attention_scales: so does attention. one_call: one call launches all kernels
    of the routed experts after their input is quantised; else every one has a call of its own.
    """

    scaled: tuple[str, ...] = ()
    attention_scales: bool = True
    one_call: bool = False

    def _grouped(self, model: Model, a: Grouped, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        heads, kv_heads, kv = a.heads // tp, max(a.kv_heads // tp, 1), model.precision.kv
        kernels = self.rotated(a, batch.tokens, tp)
        if batch.decodes:
            contexts = tuple((queries, -(-keys // cp)) for queries, keys in batch.decodes)
            core = library.generation_attention(contexts, heads, kv_heads, a.head_dim, a.window, kv)
            kernels.append(("attention.core", core))
        if batch.prompts:
            own = tuple(own_queries(batch.prompts, cp))
            core = library.context_attention(own, heads, kv_heads, a.head_dim, a.window, kv)
            kernels.append(("attention.flash", core))
        return [*kernels, *self.gate(a, batch.tokens, tp)]

    def _latent(self, model: Model, a: Latent, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        if a.indexer:
            return sparse_latent(self, model, a, batch, tp, cp)
        heads, dtype, kv = a.heads // tp, model.precision.attention, model.precision.kv
        latent, qk_dim = a.cached_values, a.nope_dim + a.rope_dim
        kernels = self.linear("attention.q_b", batch.tokens, heads * qk_dim, a.q_lora or model.hidden, dtype)
        if batch.decodes:
            queries = sum(count for count, _ in batch.decodes)
            contexts = tuple((count, -(-keys // cp)) for count, keys in batch.decodes)
            kernels += [
                ("attention.absorb_k", library.absorbed(queries, heads, a.kv_lora, a.nope_dim)),
                ("attention.rope_cache", ops.copy(queries * (heads * a.rope_dim + latent))),
                ("attention.core", library.generation_mla(contexts, heads, a.kv_lora, a.rope_dim, kv)),
                ("attention.absorb_v", library.absorbed(queries, heads, a.v_dim, a.kv_lora)),
            ]
        if batch.prompts:
            new, keys = sum(count for count, _ in batch.prompts), sum(map(sum, batch.prompts))
            own = tuple(own_queries(batch.prompts, cp))
            kernels += [
                *self.linear("attention.kv_b", keys, heads * (a.nope_dim + a.v_dim), a.kv_lora, dtype),
                ("attention.prompt_rope_cache", replace(ops.copy(new * (heads * (a.rope_dim + qk_dim) + latent)),
                                                        calls=PROMPT_COPIES)),
                ("attention.flash", library.context_mla(own, heads, a.nope_dim, a.rope_dim, a.v_dim)),
            ]
        return kernels

    def experts(self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int) -> Kernels:
        """As `GpuStack.experts`; the operator goes through the rows of all its tokens, wherever their experts lie, and
        through those of a shared expert that is one of them."""
        if not sum(rows):
            return []
        copies = max(tokens * experts.per_token, sum(rows))
        works = library.routed(tokens or sum(rows), tuple(rows), model.hidden, experts.intermediate // shards,
                               model.precision.experts, copies=copies,
                               calls=self._calls_of_experts(model.precision.experts))  # fmt: skip
        return self.in_l2(list(zip(EXPERTS, works, strict=True)))

    def _calls_of_experts(self, dtype: str) -> tuple[int, ...]:
        """Of each kernel in `EXPERTS`; rows are aligned to tiles in two, and one more quantises them."""
        quantises = int(_quantises(dtype))
        return (1 + quantises, 0, 0, 0, 0) if self.one_call else (2 + quantises, 1, 1 + quantises, 1, 1)

    def linear(self, name: str, tokens: int, n: int, k: int, dtype: str) -> Kernels:
        """A linear layer, [tokens, k] x [k, n], with the quantisation of its input."""
        work = library.linear(tokens, n, k, dtype)
        scaled = dtype in self.scaled and (self.attention_scales or name != "attention.o")
        if scaled:
            return [(name, replace(work, family=f"{work.family}_scaled"))]
        return [(name, replace(work, calls=2) if _quantises(dtype) else work)]


def _quantises(dtype: str) -> bool:
    """Whether activations are quantised for products of this data type, in a call of its own."""
    return library.QUANTISATIONS[dtype].activation_bytes < library.BF16
