"""Kernels of a transformer on GPUs, piece by piece, as vLLM, SGLang and TensorRT-LLM launch them.

Every piece is a list of (name, work) in launch order for one rank's shard. Families are those of a fitted software
generation: ``gemm_DTYPE`` is the framework's linear layer, with the quantisation of its input; ``context_attention``
and ``generation_attention`` (``context_mla``, ``generation_mla``) are its attention operators; ``grouped_gemm_DTYPE``
between ``experts_sort`` and ``experts_sum`` are its routed experts. What one stack fuses and another launches by itself
is said by `GpuStack`. Activations stay in L2 while they are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.die.kernels import Work
from simulator.model import ops
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Dense, Experts, Grouped, Latent, Model

Kernels = list[tuple[str, Work]]

IN_L2_BYTES = 16e6
"""Activations of a kernel that the next one finds in L2: less than half of the smallest L2, 40 MB of an A100."""


@dataclass(frozen=True)
class GpuStack:
    """What a software stack fuses.

    norm_in_all_reduce: residual add and RMSNorm are part of the AllReduce before them. rope: the kernels between the
    query/key/value projection and attention, by name; none where attention rotates and writes the cache itself.
    """

    name: str
    norm_in_all_reduce: bool
    rope: tuple[str, ...]
    wire_bytes: float = 2.0  # of an activation that is gathered or dispatched: BF16
    engines: tuple[str, ...] = ("nccl",)  # what drives collectives, by preference
    algorithm: str = "auto"

    @property
    def reducing_engines(self) -> tuple[str, ...]:
        """What drives AllReduce inside a node, by preference."""
        return f"custom_all_reduce_{self.name}", "custom_all_reduce", "one_shot"

    def embed(self, model: Model, tokens: int, shards: int) -> Kernels:
        """Rows of the embedding; a shard of it gives zeros for tokens that are not its own."""
        size = 2.0 * tokens * model.hidden
        return known([("embedding.lookup", ops.passes(size / shards, size))])

    def norm(self, model: Model, tokens: int, block: str) -> Kernels:
        """Residual add and RMSNorm before a block, or before the head."""
        return known([(f"{block}.norm", ops.add_rms_norm(tokens, model.hidden))])

    def attend(self, model: Model, attention: Attention, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        """From normed tokens to what this rank's heads give; with cp, of 1/cp of the cached tokens of each request."""
        if isinstance(attention, Latent):
            return known(self._latent(model, attention, batch, tp, cp))
        return known(self._grouped(model, attention, batch, tp, cp))

    def _grouped(self, model: Model, a: Grouped, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        heads, kv_heads, tokens = a.heads // tp, max(a.kv_heads // tp, 1), batch.tokens
        width, dtype = (heads * (1 + a.gated) + 2 * kv_heads) * a.head_dim, model.precision.attention
        kernels = [linear("attention.qkv", tokens, width, model.hidden, dtype)]
        kernels += [(f"attention.{name}", ops.copy(tokens * width)) for name in self.rope]
        kv = model.precision.kv
        if batch.decodes:
            seen = tuple((queries, -(-_seen(a, keys) // cp)) for queries, keys in batch.decodes)
            kernels.append(("attention.core", ops.grouped_attention(seen, heads, kv_heads, a.head_dim, a.head_dim,
                                                                    "generation_attention", kv)))  # fmt: skip
        if batch.prompts:
            core = ops.flash_attention(_windowed(_own(batch.prompts, cp), a.window), heads, a.head_dim, a.head_dim,
                                       "context_attention", kv, kv_heads)
            kernels.append(("attention.prompts", core))
        if a.gated:
            kernels.append(("attention.gate", ops.passes(4.0 * tokens * heads * a.head_dim,
                                                         2.0 * tokens * heads * a.head_dim)))  # fmt: skip
        return kernels

    def _latent(self, model: Model, a: Latent, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        heads, tokens, dtype = a.heads // tp, batch.tokens, model.precision.attention
        latent, qk_dim = a.kv_lora + a.rope_dim, a.nope_dim + a.rope_dim
        kernels = [linear("attention.qkv_a", tokens, a.q_lora + latent, model.hidden, dtype),
                   ("attention.qkv_a.norm", ops.rms_norm(tokens, a.q_lora + latent)),
                   linear("attention.q_b", tokens, heads * qk_dim, a.q_lora or model.hidden, dtype)]
        if batch.decodes:
            queries = sum(count for count, _ in batch.decodes)
            seen = tuple((count, -(-keys // cp)) for count, keys in batch.decodes)
            kernels += [
                ("attention.absorb_k", ops.batched_gemm(queries, heads, a.kv_lora, a.nope_dim)),
                ("attention.rope_cache", ops.copy(queries * (heads * a.rope_dim + latent))),
                ("attention.core", ops.latent_attention(seen, heads, a.kv_lora, a.rope_dim, "generation_mla",
                                                        model.precision.kv)),
                ("attention.absorb_v", ops.batched_gemm(queries, heads, a.v_dim, a.kv_lora)),
            ]  # fmt: skip
        if batch.prompts:
            new, keys = sum(count for count, _ in batch.prompts), sum(count + had for count, had in batch.prompts)
            kernels += [
                linear("attention.kv_b", keys, heads * (a.nope_dim + a.v_dim), a.kv_lora, dtype),
                ("attention.prompt_rope_cache", ops.copy(new * (heads * (a.rope_dim + qk_dim) + latent))),
                ("attention.prompts", ops.flash_attention(_windowed(_own(batch.prompts, cp), 0), heads, qk_dim, a.v_dim,
                                                          "context_mla")),
            ]  # fmt: skip
        return kernels

    def output(self, model: Model, attention: Attention, tokens: int, shards: int) -> Kernels:
        """What 1/shards of the heads give, back to the hidden size."""
        width = attention.heads * value_dim(attention) // shards
        return known([linear("attention.o", tokens, model.hidden, width, model.precision.attention)])

    def merge(self, tokens: int, width: int, parts: int) -> Kernels:
        """Partial results of attention over `parts` of the cached tokens, put together for `width` values per token."""
        if not tokens:
            return []
        return known([("attention.merge_parts", ops.passes(2.0 * parts * tokens * width, 2.0 * tokens * width))])

    def cores(self, count: int) -> dict[str, int]:
        """So many cores of a stream of its own, by pool."""
        return {"sm": count}

    def dense(self, model: Model, dense: Dense, tokens: int, shards: int) -> Kernels:
        """1/shards of the columns of a dense FFN."""
        return known(gated(model, "dense", tokens, dense.intermediate // shards, model.precision.dense, dense.gated))

    def route(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        """Router and top-k of these tokens."""
        scores = 4.0 * tokens * experts.routed
        return known([linear("gate.router", tokens, experts.routed, model.hidden, model.precision.router),
                      ("gate.top_k", ops.passes(scores, 8.0 * tokens * experts.per_token))])  # fmt: skip

    def shared(self, model: Model, experts: Experts, tokens: int, shards: int) -> Kernels:
        """1/shards of the shared experts' columns, if there are any."""
        width = experts.shared_intermediate // shards
        return known(gated(model, "shared", tokens, width, model.precision.shared)) if width else []

    def experts(self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int) -> Kernels:
        """1/shards of the columns of the local experts on the rows of each, out of `tokens` that are here: sorted
        before, summed up behind. 0: rows lie where a fused dispatch has put them for their experts."""
        width, total, dtype = experts.intermediate // shards, sum(rows), model.precision.experts
        if not total:
            return []
        each = tuple(rows)
        read, sorted_bytes = 2.0 * tokens * model.hidden, 2.0 * total * model.hidden
        sort = Work("experts_sort", kind="vector", dtype="fp32", rows=each, read_bytes=read, write_bytes=sorted_bytes)
        products = [
            ("experts.gate_up", ops.grouped_gemm(each, 2 * width, model.hidden, dtype)),
            ("experts.silu", ops.passes(4.0 * total * width, 2.0 * total * width)),
            ("experts.down", ops.grouped_gemm(each, model.hidden, width, dtype)),
        ]
        if not tokens:
            return in_l2(products)
        return in_l2([("experts.sort", sort), *products, ("experts.sum", ops.passes(sorted_bytes, read))])

    def finalize(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        """The shared expert's results added to the routed ones', if there is one."""
        size = 2.0 * tokens * model.hidden
        return known([("finalize.add_shared", ops.passes(2 * size, size))]) if experts.shared_intermediate else []

    def head(self, model: Model, rows: int, shards: int) -> Kernels:
        """Logits of these rows for 1/shards of the vocabulary."""
        return known([linear("head.logits", rows, -(-model.vocabulary // shards), model.hidden, model.precision.head)])

    def best(self, model: Model, rows: int, shards: int) -> Kernels:
        """Nothing: all logits are gathered."""
        return []

    def sample(self, model: Model, rows: int, candidates: int) -> Kernels:
        """A token for each row out of so many logits of all rows, FP32."""
        return known([("head.sample", ops.passes(4.0 * candidates, 8.0 * rows))])

    def project(self, model: Model, tokens: int) -> Kernels:
        """Into a draft layer: norms of the hidden state and of the sampled token's embedding, one product of both."""
        return known([("draft.norm", ops.rms_norm(tokens, 2 * model.hidden)),
                      linear("draft.project", tokens, model.hidden, 2 * model.hidden, model.precision.drafts)])


def linear(name: str, tokens: int, n: int, k: int, dtype: str) -> tuple[str, Work]:
    """A framework's linear layer, [tokens, k] x [k, n]; its family includes the quantisation of the input."""
    return name, ops.gemm(tokens, n, k, dtype)


def gated(model: Model, block: str, tokens: int, width: int, dtype: str, two: bool = True) -> Kernels:
    """An FFN of `width` columns: gate and up in one product, SiLU of one times the other, down."""
    first, copies = (f"{block}.gate_up", 2) if two else (f"{block}.up", 1)
    return [linear(first, tokens, copies * width, model.hidden, dtype),
            (f"{block}.silu", ops.passes(2.0 * copies * tokens * width, 2.0 * tokens * width)),
            linear(f"{block}.down", tokens, model.hidden, width, dtype)]


def value_dim(attention: Attention) -> int:
    """Values that one head gives per token."""
    return attention.v_dim if isinstance(attention, Latent) else attention.head_dim


def in_l2(kernels: Kernels) -> Kernels:
    """These kernels, with activations that stay in L2 where they are small."""
    return [(name, ops.cached(work) if work.read_bytes + work.write_bytes <= IN_L2_BYTES else work)
            for name, work in kernels]


def known(kernels: Kernels) -> Kernels:
    """These kernels as `in_l2`, and their weights known to L2 by the kernel's name."""
    return [(name, replace(work, weights=name) if work.weight_bytes else work) for name, work in in_l2(kernels)]


def _seen(attention: Grouped, keys: int) -> int:
    """Cached tokens that a query meets."""
    return min(keys, attention.window) if attention.window else keys


def _own(prompts: Sequence[tuple[int, int]], cp: int) -> list[tuple[int, int]]:
    """(new tokens, tokens before) of a rank's queries: with cp ranks each has a piece of the front of every prompt and
    one of its end, so that all have as much to do; these are the first rank's."""
    if cp == 1:
        return list(prompts)
    pieces = [(-(-new // (2 * cp)), new, before) for new, before in prompts]
    return [piece for size, new, before in pieces for piece in ((size, before), (size, before + new - size))]


def _windowed(prompts: Sequence[tuple[int, int]], window: int) -> tuple[tuple[int, int, bool], ...]:
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
