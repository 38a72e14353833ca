"""Kernels of the public inference libraries on GPUs, as `braid calibrate kernels --chip` fits them.

Products quantise their own input, attention writes the cache, and routed experts are one operator of a few kernels
(`model.library_kernels`); what stands between them (norms, rotation, activations) is that of `GpuStack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.model import library_kernels as library
from simulator.model import ops
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Dense, Experts, Grouped, Latent, Model
from simulator.stack.gpu import GpuStack, Kernels, _own, in_l2, known, value_dim


@dataclass(frozen=True)
class LibraryStack(GpuStack):
    """A stack whose products, attention and experts are measured operators."""

    def _grouped(self, model: Model, a: Grouped, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        heads, kv_heads, tokens, kv = a.heads // tp, max(a.kv_heads // tp, 1), batch.tokens, model.precision.kv
        width = (heads * (1 + a.gated) + 2 * kv_heads) * a.head_dim
        kernels = [linear("attention.qkv", tokens, width, model.hidden, model.precision.attention)]
        kernels += [(f"attention.{name}", ops.copy(tokens * width)) for name in self.rope]
        if batch.decodes:
            contexts = tuple((queries, -(-keys // cp)) for queries, keys in batch.decodes)
            core = library.generation_attention(contexts, heads, kv_heads, a.head_dim, a.window, kv)
            kernels.append(("attention.core", core))
        if batch.prompts:
            own = tuple(_own(batch.prompts, cp))
            kernels.append(("attention.flash", library.context_attention(own, heads, kv_heads, a.head_dim, a.window, kv)))
        if a.gated:
            gate = 2.0 * tokens * heads * a.head_dim
            kernels.append(("attention.gate", ops.passes(2 * gate, gate)))
        return kernels

    def _latent(self, model: Model, a: Latent, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        heads, tokens, dtype, kv = a.heads // tp, batch.tokens, model.precision.attention, model.precision.kv
        latent, qk_dim = a.kv_lora + a.rope_dim, a.nope_dim + a.rope_dim
        kernels = [linear("attention.qkv_a", tokens, a.q_lora + latent, model.hidden, dtype),
                   ("attention.qkv_a.norm", ops.rms_norm(tokens, a.q_lora + latent)),
                   linear("attention.q_b", tokens, heads * qk_dim, a.q_lora or model.hidden, dtype)]
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
            keys = sum(count + had for count, had in batch.prompts)
            own = tuple(_own(batch.prompts, cp))
            kernels += [
                linear("attention.kv_b", keys, heads * (a.nope_dim + a.v_dim), a.kv_lora, dtype),
                ("attention.prompt_rope_cache",
                 ops.copy(sum(count for count, _ in batch.prompts) * (heads * (a.rope_dim + qk_dim) + latent))),
                ("attention.flash", library.context_mla(own, heads, a.nope_dim, a.rope_dim, a.v_dim)),
            ]
        return kernels

    def output(self, model: Model, attention: Attention, tokens: int, shards: int) -> Kernels:
        width = attention.heads * value_dim(attention) // shards
        return known([linear("attention.o", tokens, model.hidden, width, model.precision.attention)])

    def dense(self, model: Model, dense: Dense, tokens: int, shards: int) -> Kernels:
        return known(gated(model, "dense", tokens, dense.intermediate // shards, model.precision.dense, dense.gated))

    def route(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        scores = 4.0 * tokens * experts.routed
        return known([linear("gate.router", tokens, experts.routed, model.hidden, model.precision.router),
                      ("gate.top_k", ops.passes(scores, 8.0 * tokens * experts.per_token))])

    def shared(self, model: Model, experts: Experts, tokens: int, shards: int) -> Kernels:
        width = experts.shared_intermediate // shards
        return known(gated(model, "shared", tokens, width, model.precision.shared)) if width else []

    def experts(self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int) -> Kernels:
        works = library.routed(tokens or sum(rows), tuple(rows), model.hidden, experts.intermediate // shards, model.precision.experts,
                               copies=tokens * experts.per_token)
        names = ("experts.sort", "experts.gate_up", "experts.silu", "experts.down", "experts.sum")
        kernels = in_l2(list(zip(names, works, strict=True)))
        return kernels if tokens else kernels[1:4]

    def head(self, model: Model, rows: int, shards: int) -> Kernels:
        return known([linear("head.logits", rows, -(-model.vocabulary // shards), model.hidden, model.precision.head)])

    def project(self, model: Model, tokens: int) -> Kernels:
        return known([("draft.norm", ops.rms_norm(tokens, 2 * model.hidden)),
                      linear("draft.project", tokens, model.hidden, 2 * model.hidden, model.precision.drafts)])


def linear(name, tokens, n, k, dtype):
    return name, library.linear(tokens, n, k, dtype)


def gated(model, block, tokens, width, dtype, two=True) -> Kernels:
    first, copies = (f"{block}.gate_up", 2) if two else (f"{block}.up", 1)
    return [linear(first, tokens, copies * width, model.hidden, dtype),
            (f"{block}.silu", ops.passes(2.0 * copies * tokens * width, 2.0 * tokens * width)),
            linear(f"{block}.down", tokens, model.hidden, width, dtype)]
