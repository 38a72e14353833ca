"""Kernels of a transformer on GPUs, piece by piece, as vLLM, SGLang and TensorRT-LLM launch them.

Every piece is a list of (name, work) in launch order for one rank's shard. Families are those of a fitted software
generation: ``gemm_DTYPE`` is the framework's linear layer, with the quantisation of its input; ``context_attention``
and ``generation_attention`` (``context_mla``, ``generation_mla``) are its attention operators; ``grouped_gemm_DTYPE``
between ``experts_sort`` and ``experts_sum`` are its routed experts. What one stack fuses and another launches by itself
is said by `GpuStack`. Activations stay in L2 while they are small, and a later micro-batch may find weights there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.model import ops
from simulator.model.linear_attention import GatedDelta
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Dense, Experts, Grouped, Latent, Model, weight_bytes
from simulator.stack import gated_delta
from simulator.stack.gated_delta import Kernels

BLOCK = 128  # elements that share an FP8 scale
IN_L2_BYTES = 16e6
"""Activations of a kernel that the next one finds in L2: less than half of the smallest L2, 40 MB of an A100."""


class AttentionFamilies(NamedTuple):
    """Kernel families of attention: absorbed latent and grouped-query decode, prompts of latent and of grouped-query
    attention."""

    latent: str = "generation_mla"
    grouped: str = "generation_attention"
    latent_prompts: str = "context_mla"
    grouped_prompts: str = "context_attention"


LIBRARY = AttentionFamilies()


@dataclass(frozen=True)
class GpuStack:
    """What a software stack fuses.

    norm_in_all_reduce: residual add and RMSNorm are part of the AllReduce before them. rope: the kernels between the
    query/key/value projection and attention, by name; none where attention rotates and writes the cache itself.
    quantises: a kernel of its own quantises the input of each FP8 product, per block of 128; else its family includes
    that. fuses_shared: where every rank has a slice of every expert, the shared one is a choice more of every token.
    shared_beside: captured graphs of up to so many tokens run it beside router and routed experts.
    l2_bytes: activations of a kernel stay in L2 up to so many. logit_bytes: of a logit that is sampled from.
    operators: calls of framework operators for each eager launch, in those of an AllReduce by vLLM. sparse_heads: to a
    multiple of so many are the heads of a rank padded in sparse attention (0: the stack has no kernels of it).
    """

    name: str
    norm_in_all_reduce: bool
    rope: tuple[str, ...]
    gathered_bytes: float = 2.0  # of an activation that is gathered for attention or a dense block: BF16
    wire_bytes: float = 2.0  # of one that goes to experts
    scale_bytes: float = 0.0
    gathers_at_once: bool = True
    names_weights: bool = True
    engines: tuple[str, ...] = ("nccl",)  # what drives collectives, by preference
    algorithm: str = "auto"
    families: AttentionFamilies = LIBRARY
    quantises: bool = False
    fuses_shared: bool = False
    shared_beside: int = 0
    l2_bytes: float = IN_L2_BYTES
    logit_bytes: float = 4.0
    operators: float = 1.0
    sparse_heads: int = 0

    @property
    def reducing_engines(self) -> tuple[str, ...]:
        """What drives AllReduce inside a node, by preference."""
        return f"custom_all_reduce_{self.name}", "custom_all_reduce", "one_shot"

    def embed(self, model: Model, tokens: int, shards: int) -> Kernels:
        """Rows of the embedding; a shard of it gives zeros for tokens that are not its own."""
        size = 2.0 * tokens * model.hidden
        return self.in_l2([("embedding.lookup", ops.passes(size / shards, size))])

    def norm(self, model: Model, tokens: int, block: str) -> Kernels:
        """Residual add and RMSNorm before a block."""
        return self.in_l2([(f"{block}.norm", ops.add_rms_norm(tokens, model.hidden))])

    def pack(self, model: Model, tokens: int, block: str) -> Kernels:
        """What quantises hidden states before they are gathered: nothing, they go in BF16."""
        return []

    def inputs(self, model: Model, attention: Attention, tokens: int, tp: int, packed: bool) -> Kernels:
        """From normed hidden states to this rank's heads of queries, keys and values, or to the latents of all."""
        dtype = model.precision.attention
        if isinstance(attention, Latent):
            latents = attention.q_lora + attention.cached_values
            return self.in_l2([*self.linear("attention.qkv_a", tokens, latents, model.hidden, dtype),
                               ("attention.qkv_a.norm", replace(ops.rms_norm(tokens, latents), calls=2))])
        if isinstance(attention, GatedDelta):
            own = attention.on(tp)
            return self.in_l2([*self.linear("attention.qkvz", tokens, own.projected, model.hidden, dtype),
                               *self.linear("attention.ba", tokens, 2 * own.heads, model.hidden, "bf16"),
                               *gated_delta.split(own, tokens)])
        return self.in_l2(self.linear("attention.qkv", tokens, _qkv_width(attention, tp), model.hidden, dtype))

    def latents(self, attention: Latent) -> list[tuple[str, int]]:
        """What is gathered between `inputs` and `attend` where latents are: name and values per token."""
        return [("attention.gather_latents", attention.q_lora + attention.cached_values)]

    def attend(self, model: Model, attention: Attention, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        """From what `inputs` gave to this rank's heads; with cp, of 1/cp of the cached tokens of each request."""
        if isinstance(attention, Latent):
            return self.in_l2(self._latent(model, attention, batch, tp, cp))
        if isinstance(attention, GatedDelta):
            return self.in_l2(gated_delta.attend(attention.on(tp), batch, weight_bytes(model.precision.state, 1.0)))
        return self.in_l2(self._grouped(model, attention, batch, tp, cp))

    def _grouped(self, model: Model, a: Grouped, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        heads, kv_heads, tokens = a.heads // tp, max(a.kv_heads // tp, 1), batch.tokens
        kernels = self.rotated(a, tokens, tp)
        kv = model.precision.kv
        if batch.decodes:
            seen = tuple((queries, -(-_seen(a, keys) // cp)) for queries, keys in batch.decodes)
            kernels.append(("attention.core", ops.grouped_attention(seen, heads, kv_heads, a.head_dim, a.head_dim,
                                                                    self.families.grouped, kv)))  # fmt: skip
        if batch.prompts:
            prompts = windowed(own_queries(batch.prompts, cp), a.window)
            family = self.families.grouped_prompts
            core = ops.flash_attention(prompts, heads, a.head_dim, a.head_dim, family, kv, kv_heads)
            kernels.append(("attention.flash", core))
        return [*kernels, *self.gate(a, tokens, tp)]

    def rotated(self, a: Grouped, tokens: int, tp: int) -> Kernels:
        """Rotation of queries and keys, and the write to the cache, where attention does not do so itself."""
        return [(f"attention.{name}", ops.copy(tokens * _qkv_width(a, tp))) for name in self.rope]

    def gate(self, a: Grouped, tokens: int, tp: int) -> Kernels:
        """What the heads give times its gate, if there is one."""
        size = 2.0 * tokens * a.heads // tp * a.head_dim
        return [("attention.gate", ops.passes(2 * size, size))] if a.gated else []

    def _latent(self, model: Model, a: Latent, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        heads, tokens, dtype = a.heads // tp, batch.tokens, model.precision.attention
        latent, qk_dim = a.kv_lora + a.rope_dim, a.nope_dim + a.rope_dim
        kernels = self.linear("attention.q_b", tokens, heads * qk_dim, a.q_lora or model.hidden, dtype)
        if batch.decodes:
            queries = sum(count for count, _ in batch.decodes)
            seen = tuple((count, -(-keys // cp)) for count, keys in batch.decodes)
            kernels += [
                ("attention.absorb_k", ops.batched_gemm(queries, heads, a.kv_lora, a.nope_dim)),
                ("attention.rope_cache", ops.copy(queries * (heads * a.rope_dim + latent))),
                ("attention.core", ops.latent_attention(seen, heads, a.kv_lora, a.rope_dim, self.families.latent,
                                                        model.precision.kv)),
                ("attention.absorb_v", ops.batched_gemm(queries, heads, a.v_dim, a.kv_lora)),
            ]  # fmt: skip
        if batch.prompts:
            new, keys = sum(count for count, _ in batch.prompts), sum(count + had for count, had in batch.prompts)
            kernels += [
                *self.linear("attention.kv_b", keys, heads * (a.nope_dim + a.v_dim), a.kv_lora, dtype),
                ("attention.prompt_rope_cache", ops.copy(new * (heads * (a.rope_dim + qk_dim) + latent))),
                ("attention.flash", ops.flash_attention(windowed(own_queries(batch.prompts, cp), 0), heads, qk_dim,
                                                        a.v_dim, self.families.latent_prompts)),
            ]  # fmt: skip
        return kernels

    def output(self, model: Model, attention: Attention, tokens: int, shards: int) -> Kernels:
        """What 1/shards of the heads give, back to the hidden size."""
        width = attention.heads * value_dim(attention) // shards
        return self.in_l2(self.linear("attention.o", tokens, model.hidden, width, model.precision.attention))

    def merge(self, tokens: int, width: int, parts: int) -> Kernels:
        """Partial results of attention over `parts` of the cached tokens, put together for `width` values per token."""
        if not tokens:
            return []
        return self.in_l2([("attention.merge_parts", ops.passes(2.0 * parts * tokens * width, 2.0 * tokens * width))])

    def cores(self, count: int) -> dict[str, int]:
        """So many cores of a stream of its own, by pool."""
        return {"sm": count}

    def dense(self, model: Model, dense: Dense, tokens: int, shards: int, packed: bool) -> Kernels:
        """1/shards of the columns of a dense FFN."""
        return self.in_l2(self.gated(model, "dense", tokens, dense.intermediate // shards, model.precision.dense,
                                     dense.gated))

    def route(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        """Router and top-k of these tokens."""
        scores = 4.0 * tokens * experts.routed
        return self.in_l2([*self.linear("gate.router", tokens, experts.routed, model.hidden, model.precision.router),
                           ("gate.top_k", ops.passes(scores, 8.0 * tokens * experts.per_token))])  # fmt: skip

    def to_rows(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        """What makes the rows that are sent out of tokens: nothing, the exchange does."""
        return []

    def split_sizes(self, experts: Experts) -> Kernels:
        """What makes the sizes that the host reads out of exchanged counts: nothing, it reads the counts."""
        return []

    def shared(self, model: Model, experts: Experts, tokens: int, shards: int, packed: bool) -> Kernels:
        """1/shards of the shared experts' columns, if there are any."""
        width = experts.shared_intermediate // shards
        return self.in_l2(self.gated(model, "shared", tokens, width, model.precision.shared)) if width else []

    def experts(self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int) -> Kernels:
        """1/shards of the columns of the local experts on the rows of each, out of `tokens` that are here (0: rows came
        by themselves)."""
        width, total, dtype = experts.intermediate // shards, sum(rows), model.precision.experts
        if not total:
            return []
        each, here = tuple(rows), tokens or total
        return self.in_l2([
            ("experts.sort", ops.sort_rows(here, each, model.hidden)),
            *self.grouped("experts.gate_up", each, 2 * width, model.hidden, dtype),
            ("experts.silu", ops.passes(4.0 * total * width, 2.0 * total * width)),
            *self.grouped("experts.down", each, model.hidden, width, dtype),
            ("experts.sum", ops.passes(2.0 * total * model.hidden, 2.0 * here * model.hidden)),
        ])  # fmt: skip

    def finalize(self, model: Model, experts: Experts, tokens: int, by_row: bool) -> Kernels:
        """The shared expert's results added to the routed ones', if there is one."""
        size = 2.0 * tokens * model.hidden
        return self.in_l2([("finalize.add_shared", ops.passes(2 * size, size))]) if experts.shared_intermediate else []

    def head(self, model: Model, rows: int, shards: int) -> Kernels:
        """Logits of normed rows for 1/shards of the vocabulary."""
        columns = -(-model.vocabulary // shards)
        return self.in_l2(self.linear("head.logits", rows, columns, model.hidden, model.precision.head))

    def best(self, model: Model, rows: int, shards: int) -> Kernels:
        """Nothing: all logits are gathered."""
        return []

    def sample(self, model: Model, rows: int, candidates: int) -> Kernels:
        """A token of each row out of so many logits of all rows."""
        return self.in_l2([("head.sample", ops.passes(self.logit_bytes * candidates, 8.0 * rows))])

    def project(self, model: Model, tokens: int) -> Kernels:
        """Into a draft layer: norms of the hidden state and of the sampled token's embedding, one product of both."""
        return self.in_l2([("draft.norm", ops.rms_norm(tokens, 2 * model.hidden)),
                           *self.linear("draft.project", tokens, model.hidden, 2 * model.hidden,
                                        model.precision.drafts)])  # fmt: skip

    def linear(self, name: str, tokens: int, n: int, k: int, dtype: str) -> Kernels:
        """A linear layer, [tokens, k] x [k, n]."""
        return self.grouped(name, (tokens,), n, k, dtype)

    def grouped(self, name: str, rows: tuple[int, ...], n: int, k: int, dtype: str) -> Kernels:
        """One product for each group of rows, after the quantisation of their input where that is a kernel."""
        quantise = self.quantising(name, sum(rows), k, dtype)
        return [*quantise, (name, ops.grouped_gemm(rows, n, k, "fp8" if quantise else dtype))]

    def quantising(self, name: str, rows: int, k: int, dtype: str) -> Kernels:
        """The quantisation of so many rows for a product, where that is a kernel."""
        if not self.quantises or not dtype.startswith("fp8"):
            return []
        return [(f"{name}.quantise", ops.passes(2.0 * rows * k, rows * k * (1.0 + 4.0 / BLOCK)))]

    def gated(self, model: Model, block: str, tokens: int, width: int, dtype: str, two: bool = True) -> Kernels:
        """An FFN of `width` columns: gate and up in one product, SiLU of one times the other, down."""
        first, copies = (f"{block}.gate_up", 2) if two else (f"{block}.up", 1)
        return [*self.linear(first, tokens, copies * width, model.hidden, dtype),
                (f"{block}.silu", ops.passes(2.0 * copies * tokens * width, 2.0 * tokens * width)),
                *self.linear(f"{block}.down", tokens, model.hidden, width, dtype)]

    def in_l2(self, kernels: Kernels) -> Kernels:
        """These kernels, with activations that stay in L2 where they are small, and weights known to L2 by name."""
        found = []
        for name, work in kernels:
            small = work.read_bytes + work.write_bytes <= self.l2_bytes
            weights = name if self.names_weights and work.weight_bytes else work.weights
            if small:
                found.append((name, ops.cached(work, weights)))
            else:
                found.append((name, work if weights == work.weights else replace(work, weights=weights)))
        return found


def value_dim(attention: Attention) -> int:
    """Values that one head gives per token."""
    return attention.head_dim if isinstance(attention, Grouped) else attention.v_dim


def _qkv_width(attention: Grouped, tp: int) -> int:
    """Values per token of a rank's queries (with their gate), keys and values."""
    own = attention.heads // tp * (1 + attention.gated) + 2 * max(attention.kv_heads // tp, 1)
    return own * attention.head_dim


def _seen(attention: Grouped, keys: int) -> int:
    """Cached tokens that a query meets."""
    return min(keys, attention.window) if attention.window else keys


def own_queries(prompts: Sequence[tuple[int, int]], cp: int) -> list[tuple[int, int]]:
    """(new tokens, tokens before) of a rank's queries: with cp ranks each has a piece of the front of every prompt and
    one of its end, so that all have as much to do; these are the first rank's."""
    if cp == 1:
        return list(prompts)
    pieces = [(-(-new // (2 * cp)), new, before) for new, before in prompts]
    return [piece for size, new, before in pieces for piece in ((size, before), (size, before + new - size))]


def windowed(prompts: Sequence[tuple[int, int]], window: int) -> tuple[tuple[int, int, bool], ...]:
    """(queries, keys, causal) of new tokens after cached ones. Under a window only the first `window` tokens see fewer
    keys than it holds: a triangle of them, and a band of `window` keys for each of the rest."""
    found: list[tuple[int, int, bool]] = []
    for new, before in prompts:
        if not window or new + before <= window:
            found.append((new, before + new, True))
            continue
        first = min(new, max(window - before, 0))  # new tokens that see all before them
        if first:
            found.append((first, before + first, True))
        found.append((new - first, window, False))
    return tuple(found)
