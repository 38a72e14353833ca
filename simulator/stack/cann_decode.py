"""Kernels of decode on Ascend (CANN), piece by piece: absorbed latent or grouped-query attention, INT8 or BF16.

Queries of latent attention are carried into the latent space (`absorb_k`), where all heads attend to one cached latent
per token, and the result is carried back (`absorb_v`; DeepSeek-V2, arXiv 2405.04434). INT8 products take rows that are
quantised before, with a scale each; the first product of a feed-forward writes int32, which SwiGLU reads again. The
router is FP32; absorbed products, embedding and head are BF16. Activations are small enough to stay in L2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.model import ops
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Dense, Experts, Grouped, Latent, Model
from simulator.stack.gpu import value_dim

Kernels = list[tuple[str, Work]]
VECTOR_PER_CUBE = 2
DTYPES = ("int8", "bf16")


class DecodeKernels(BaseModel):
    """Kernels of attention, one switch each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fused_prolog: bool = Field(True, description="MLAProlog in one kernel")
    attention: Literal["mla_attention", "mla_attention_mtp", "mla_attention_amla"] = Field(
        "mla_attention_mtp", description="generation of the attention kernel"
    )


@dataclass(frozen=True)
class CannDecode:
    """What may differ between systems on this stack.

    attention: kernel family of latent attention. fused_prolog: what stands before it is one kernel (MLAProlog).
    quantises: the norm before the experts is followed by a kernel that quantises; a fused dispatch does so itself.
    in_l2: modules whose weights may be found in L2. cached_bytes: the first so many of the cache that a prefetch may
    have left there. fractal: rows that a cube core multiplies at once; a dispatch leaves those of an expert in wholes.
    """

    name: str = "cann_decode"
    attention: str = "mla_attention"
    fused_prolog: bool = True
    quantises: bool = True
    in_l2: tuple[str, ...] = ("attention", "dense", "gate", "shared", "experts")
    cached_bytes: float = 0.0
    fractal: int = 16
    wire_bytes: float = 1.0  # of a value that is gathered or dispatched: INT8
    scale_bytes: float = 4.0
    gathers_at_once: bool = False
    norm_in_all_reduce: bool = False
    fuses_shared: bool = False
    shared_beside: int = 0
    engines: tuple[str, ...] = ("aiv_small", "sdma")
    reducing_engines: tuple[str, ...] = ()
    algorithm: str = "auto"
    operators: float = 1.0

    @property
    def gathered_bytes(self) -> float:
        """Of a value that is gathered for attention or a dense block: as those that go to experts."""
        return self.wire_bytes

    def embed(self, model: Model, tokens: int, shards: int) -> Kernels:
        """Rows of the embedding; a shard of it gives zeros for tokens that are not its own."""
        return _cached([("embedding.lookup", ops.copy(tokens * model.hidden))])

    def norm(self, model: Model, tokens: int, block: str) -> Kernels:
        """Residual add and RMSNorm before a block; that before the experts quantises for the shared one, too."""
        work = ops.rms_norm(tokens, model.hidden) if block == "head" else ops.add_rms_norm(tokens, model.hidden)
        experts = block == "gate" and self.quantises
        quantised = _quantise(block, tokens, model.hidden, model.precision.experts) if experts else []
        return _cached([(f"{block}.norm", work), *quantised])

    def pack(self, model: Model, tokens: int, block: str) -> Kernels:
        """What quantises hidden states before they are gathered, where their norm has not."""
        dtype = {"attention": model.precision.attention, "dense": model.precision.dense}.get(block, "")
        return _cached(_quantise(block, tokens, model.hidden, dtype))

    def attend(self, model: Model, attention: Attention, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        """From what `inputs` gave to this rank's heads; with cp, of 1/cp of the cached tokens of each request."""
        seen = tuple((count, -(-keys // cp)) for count, keys in batch.decodes)
        if not seen:
            return []
        if isinstance(attention, Grouped):
            return _cached(self._grouped(attention, batch.tokens, seen, tp))
        assert isinstance(attention, Latent), "linear attention is refused by `stack_of`"
        heads, own = attention.heads // tp, sum(count for count, _ in seen)
        back = ops.batched_gemm(own, heads, attention.v_dim, attention.kv_lora, weights=self._named("absorb_v"))
        core = ops.latent_attention(seen, heads, attention.kv_lora, attention.rope_dim, self.attention)
        if early := min(self.cached_bytes, core.streamed_bytes):
            core = replace(core, streamed_bytes=core.streamed_bytes - early, weight_bytes=early,
                           weights=self._named("cache"))  # fmt: skip
        return _cached([("attention.core", core), ("attention.absorb_v", back)])

    def inputs(self, model: Model, attention: Attention, tokens: int, tp: int, packed: bool) -> Kernels:
        """From normed hidden states to this rank's heads of queries in the latent space, or of queries, keys and
        values, and the write to the cache. MLAProlog quantises by itself."""
        if isinstance(attention, Latent):
            return _cached(self._prolog(model, attention, tokens, attention.heads // tp))
        assert isinstance(attention, Grouped), "linear attention is refused by `stack_of`"
        dtype, width = model.precision.attention, _width(attention, tp)
        return _cached([*([] if packed else _quantise("attention", tokens, model.hidden, dtype)),
                        ("attention.qkv", ops.gemm(tokens, width, model.hidden, dtype, weights=self._named("qkv"))),
                        ("attention.norm_rope_cache", ops.copy(tokens * width))])

    def latents(self, attention: Latent) -> list[tuple[str, int]]:
        """Prefill alone gathers latents."""
        raise InputError(f"{self.name} has kernels of decode alone, where no latents are gathered")

    def _prolog(self, model: Model, a: Latent, tokens: int, heads: int) -> Kernels:
        """Down projections, norms, query up-projection, absorption, RoPE and the cache, as one kernel or many."""
        latent, width, dtype, name = a.cached_values, a.nope_dim + a.rope_dim, model.precision.attention, self._named
        parts: Kernels = [
            ("attention.q_a", ops.gemm(tokens, a.q_lora, model.hidden, dtype, weights=name("q_a"))),
            ("attention.q_a.norm", ops.rms_norm(tokens, a.q_lora)),
            ("attention.q_b", ops.gemm(tokens, heads * width, a.q_lora or model.hidden, dtype, weights=name("q_b"))),
            ("attention.absorb_k", ops.batched_gemm(tokens, heads, a.kv_lora, a.nope_dim, weights=name("absorb_k"))),
            ("attention.q_rope", ops.copy(tokens * heads * a.rope_dim)),
            ("attention.kv_a", ops.gemm(tokens, latent, model.hidden, dtype, weights=name("kv_a"))),
            ("attention.kv_a.norm_rope_cache", ops.passes(2.0 * tokens * latent, 4.0 * tokens * latent)),
        ]  # fmt: skip
        parts = parts if a.q_lora else parts[2:]
        if not self.fused_prolog:
            return parts
        return [("attention.prolog", ops.fused("mla_prolog", "gemm", tuple(work for _, work in parts), name("prolog")))]

    def _grouped(self, a: Grouped, tokens: int, seen: tuple[tuple[int, int], ...], tp: int) -> Kernels:
        """Attention, and its gate if there is one."""
        heads, kv_heads = a.heads // tp, max(a.kv_heads // tp, 1)
        met = tuple((count, min(keys, a.window) if a.window else keys) for count, keys in seen)
        core = ops.grouped_attention(met, heads, kv_heads, a.head_dim, a.head_dim, "gqa_attention")
        size = 2.0 * tokens * heads * a.head_dim
        return [("attention.core", core), *([("attention.gate", ops.passes(2 * size, size))] if a.gated else [])]

    def merge(self, tokens: int, width: int, parts: int) -> Kernels:
        """Partial results of attention over `parts` of the cached tokens, put together for `width` values per token."""
        return _cached([("attention.merge_parts", ops.passes(2.0 * parts * tokens * width, 2.0 * tokens * width))])

    def output(self, model: Model, attention: Attention, tokens: int, shards: int) -> Kernels:
        """What 1/shards of the heads give, back to the hidden size."""
        width, dtype = attention.heads // shards * value_dim(attention), model.precision.attention
        product = ops.gemm(tokens, model.hidden, width, dtype, weights=self._named("o"))
        return _cached([*_quantise("attention.o", tokens, width, dtype), ("attention.o", product)])

    def dense(self, model: Model, dense: Dense, tokens: int, shards: int, packed: bool) -> Kernels:
        """1/shards of the columns of a dense FFN."""
        width, dtype = dense.intermediate // shards, model.precision.dense
        return [*([] if packed else self.pack(model, tokens, "dense")),
                *self._ffn("dense", (tokens,), width, model.hidden, dtype, dense.gated)]

    def route(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        """Router in FP32 and top-k."""
        scores, name = 4.0 * tokens * experts.routed, self._named("router", "gate")
        return _cached([("gate.router", ops.gemm(tokens, experts.routed, model.hidden, "fp32", "fp32", name)),
                        ("gate.top_k", ops.passes(2.0 * scores, scores))])

    def to_rows(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        """Nothing: a fused dispatch takes tokens as they are."""
        return []

    def split_sizes(self, experts: Experts) -> Kernels:
        """Nothing: sizes stay on the device."""
        return []

    def shared(self, model: Model, experts: Experts, tokens: int, shards: int, packed: bool) -> Kernels:
        """1/shards of the shared experts' columns on quantised tokens, if there are any."""
        width = experts.shared_intermediate // shards
        return self._ffn("shared", (tokens,), width, model.hidden, model.precision.shared) if width else []

    def experts(self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int) -> Kernels:
        """1/shards of the columns of the local experts on the rows of each, out of `tokens` that are here: sorted and
        selected before, summed up to tokens behind. 0: rows came by themselves, in whole fractals."""
        width, dtype, hidden = experts.intermediate // shards, model.precision.experts, model.hidden
        if not tokens:
            whole = tuple(-(-count // self.fractal) * self.fractal for count in rows)
            return self._ffn("experts", whole, width, hidden, dtype)
        sums = 2.0 * tokens * hidden  # of all tokens: larger than what L2 keeps beside weights
        return [*_cached([("experts.sort", ops.copy(4 * tokens * experts.per_token, 4.0)),  # a radix sort's four passes
                          ("experts.select", ops.copy(sum(rows) * hidden, self.wire_bytes))]),
                *self._ffn("experts", tuple(rows), width, hidden, dtype),
                ("finalize.zero", ops.cached(ops.passes(0.0, sums))),
                ("finalize.sum", ops.passes(sums / 2.0, sums))]

    def finalize(self, model: Model, experts: Experts, tokens: int, by_row: bool) -> Kernels:
        """The shared expert's results added to the routed ones', if there is one."""
        size = 2.0 * tokens * model.hidden
        return _cached([("finalize.add_shared", ops.passes(2.0 * size, size))]) if experts.shared_intermediate else []

    def head(self, model: Model, rows: int, shards: int) -> Kernels:
        """Logits of these rows for 1/shards of the vocabulary."""
        return _cached([("head.logits", ops.gemm(rows, -(-model.vocabulary // shards), model.hidden, "bf16"))])

    def best(self, model: Model, rows: int, shards: int) -> Kernels:
        """The best of a shard's logits, of each row: gathered instead of all logits."""
        return [("head.best", ops.passes(2.0 * rows * -(-model.vocabulary // shards), 8.0 * rows))]

    def sample(self, model: Model, rows: int, candidates: int) -> Kernels:
        """A token for each row out of so many candidates, each with its logit."""
        return _cached([("head.sample", ops.passes(8.0 * candidates, 8.0 * rows))])

    def project(self, model: Model, tokens: int) -> Kernels:
        """Into a draft layer: norms of the hidden state and of the sampled token's embedding, one product of both."""
        product = ops.gemm(tokens, model.hidden, 2 * model.hidden, model.precision.drafts)
        return _cached([("draft.norm", ops.rms_norm(tokens, 2 * model.hidden)), ("draft.project", product)])

    def cores(self, count: int) -> dict[str, int]:
        """So many cube cores of a stream of its own, each with its vector cores."""
        return {"cube": count, "vector": VECTOR_PER_CUBE * count}

    def _ffn(self, block: str, rows: tuple[int, ...], width: int, hidden: int, dtype: str,
             gated: bool = True) -> Kernels:  # fmt: skip
        """Feed-forwards of `width`, one for each of the rows' counts."""
        out, total, columns = ("int32" if dtype == "int8" else dtype), sum(rows), (1 + gated) * width
        first, name = f"{block}.{'gate_up' if gated else 'up'}", self._named
        inner = ops.swiglu_quantise(total, width)
        if dtype != "int8" or not gated:
            inner = ops.passes(2.0 * total * columns, 2.0 * total * width)
        up = ops.grouped_gemm(rows, columns, hidden, dtype, out, name(first, block))
        down = ops.grouped_gemm(rows, hidden, width, dtype, weights=name(f"{block}.down", block))
        return _cached([(first, up), (f"{block}.swiglu", inner), (f"{block}.down", down)])

    def _named(self, weights: str, module: str = "attention") -> str:
        """The name of these weights, or "" where L2 is not asked for them."""
        return weights if module in self.in_l2 else ""


def _quantise(block: str, tokens: int, width: int, dtype: str) -> Kernels:
    """The input of an INT8 product, with a scale for each row."""
    return [(f"{block}.quantise", ops.quantise(tokens, width))] if dtype == "int8" else []


def _cached(kernels: Kernels) -> Kernels:
    """These kernels with activations that stay in L2."""
    return [(name, ops.cached(work)) for name, work in kernels]


def _width(a: Grouped, tp: int) -> int:
    """Columns of the product that gives queries (and their gate), keys and values of a rank."""
    return (a.heads // tp * (1 + a.gated) + 2 * max(a.kv_heads // tp, 1)) * a.head_dim


def decoding(model: Model, phase: str) -> CannDecode:
    """Kernels of decode for this model, whose activations are sent as its layers take them; InputError for another
    phase, or where a module is in a precision without kernels."""
    if phase != "decode":
        raise InputError(f"kernels cann_decode are of decode alone: batch.phase={phase} has none in this generation")
    return CannDecode() if sent_dtype(model) == "int8" else CannDecode(wire_bytes=2.0, scale_bytes=0.0)


def sent_dtype(model: Model) -> str:
    """Of what goes to experts, or to a dense FFN; InputError where a module is in a precision without kernels."""
    precision, mixed = model.precision, any(isinstance(layer.feed_forward, Experts) for layer in model.layers)
    parts = ("attention", *(("experts", "shared") if mixed else ()), "dense")
    if wrong := [f"{part}={getattr(precision, part)}" for part in parts if getattr(precision, part) not in DTYPES]:
        raise InputError(f"{model.name}: {', '.join(wrong)}: these kernels take {' or '.join(DTYPES)}; set "
                         "knobs.precision, as all=int8")  # fmt: skip
    return precision.experts if mixed else precision.dense
