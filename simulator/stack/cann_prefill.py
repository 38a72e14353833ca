"""Kernels of prefill on Ascend (CANN), piece by piece in launch order: latent or grouped-query attention, INT8 or BF16.

Latent attention is not absorbed: keys and values are expanded per head (DeepSeek-V2, arXiv 2405.04434). FlashAttention
wants its operands head by head, so queries, keys, values and the result change layout on the way. INT8 products take
rows that are quantised before, with an FP32 scale each; the first product of a feed-forward writes int32, which SwiGLU
reads again. The router is FP32, embedding and head are BF16. Activations go through HBM, past what L2 could keep.

Rows for an All2All are sorted twice: `to_rows` sorts a rank's own tokens by expert before the dispatch, `re_routing`
what arrived by local expert; `unsort` and `finalize` undo both. Kernels that handle indices, counts or weights move
few bytes, but an eager host launches each of them. A kernel without anything to move is not launched.

Source: hicann/cann-recipes-infer at fbc225d, DeepSeek-R1 prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.model import ops
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Dense, Experts, Grouped, Latent, Model
from simulator.stack.gpu import own_queries, value_dim, windowed

Kernels = list[tuple[str, Work]]


@dataclass(frozen=True)
class CannPrefill:
    """What may differ between systems on this stack.

    operands: layout of FlashAttention's ("tnd": tokens in order, or "ntd": head by head, of a later generation).
    latents_apart: latents of queries and of keys and values are gathered one after the other, not together.
    """

    name: str = "cann"
    operands: str = "ntd"
    latents_apart: bool = False
    wire_bytes: float = 1.0  # of a value that is gathered or dispatched: INT8
    scale_bytes: float = 4.0
    gathers_at_once: bool = False
    norm_in_all_reduce: bool = False
    fuses_shared: bool = False
    shared_beside: int = 0
    engines: tuple[str, ...] = ("sdma", "aiv")
    reducing_engines: tuple[str, ...] = ()
    algorithm: str = "auto"
    operators: float = 1.0

    @property
    def gathered_bytes(self) -> float:
        """Of a value that is gathered for attention or a dense block: as those that go to experts."""
        return self.wire_bytes

    # --- attention ---------------------------------------------------------------------------------------------------

    def norm(self, model: Model, tokens: int, block: str) -> Kernels:
        """Residual add and RMSNorm before a block; the last norm adds nothing."""
        work = ops.rms_norm(tokens, model.hidden) if block == "head" else ops.add_rms_norm(tokens, model.hidden)
        return _busy([(f"{block}.norm", work)])

    def pack(self, model: Model, tokens: int, block: str) -> Kernels:
        """What quantises hidden states before they are gathered."""
        dtype = {"attention": model.precision.attention, "dense": model.precision.dense}.get(block)
        return _busy(_quantise(block, tokens, model.hidden, dtype or model.precision.experts))

    def inputs(self, model: Model, attention: Attention, tokens: int, tp: int, packed: bool) -> Kernels:
        """Hidden states to queries, keys and values of this rank's heads, or (with one quantisation each) to latents,
        their norms and the cache."""
        dtype = model.precision.attention
        if isinstance(attention, Grouped):
            return _busy(_linear("attention.qkv", tokens, _width(attention, tp), model.hidden, dtype, packed))
        assert isinstance(attention, Latent), "linear attention is refused by `stack_of`"
        kernels: Kernels = []
        if attention.q_lora:
            kernels += [*_linear("attention.q_a", tokens, attention.q_lora, model.hidden, dtype, packed),
                        ("attention.q_a.norm", ops.rms_norm(tokens, attention.q_lora))]
        latent = attention.cached_values
        return _busy([*kernels, *_linear("attention.kv_a", tokens, latent, model.hidden, dtype, packed),
                      ("attention.kv_a.norm_rope_cache", ops.passes(2.0 * tokens * latent, 4.0 * tokens * latent))])

    def latents(self, attention: Latent) -> list[tuple[str, int]]:
        """What is gathered between `inputs` and `attend` where latents are: name and values per token."""
        queries, cached = attention.q_lora, attention.cached_values
        if self.latents_apart:
            return [("attention.gather_q", queries), ("attention.gather_kv", cached)]
        return [("attention.gather_latents", queries + cached)]

    def attend(self, model: Model, attention: Attention, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        """From what `inputs` gave to this rank's heads: FlashAttention of prompts, layouts before and behind it."""
        if batch.decodes:
            raise InputError(f"{self.name} has kernels of prefill alone here, and there are requests that decode")
        heads, family = attention.heads // tp, f"flash_attention_{self.operands}"
        prompts = own_queries(batch.prompts, cp)
        if isinstance(attention, Grouped):
            size, kv_heads = attention.head_dim, max(attention.kv_heads // tp, 1)
            seen = windowed(prompts, attention.window)
            flash = ops.flash_attention(seen, heads, size, size, family, "bf16", kv_heads)
            before = _grouped_layouts(attention, batch.tokens, heads, kv_heads)
        else:
            assert isinstance(attention, Latent), "linear attention is refused by `stack_of`"
            qk_dim = attention.nope_dim + attention.rope_dim
            flash = ops.flash_attention(windowed(prompts, 0), heads, qk_dim, attention.v_dim, family)
            before = _expanded(model, attention, batch, heads)
        out = batch.tokens * heads * value_dim(attention)
        gate = isinstance(attention, Grouped) and attention.gated
        return _busy([*before, ("attention.flash", flash), ("attention.o.layout", ops.copy(out)),
                      *([("attention.gate", ops.passes(4.0 * out, 2.0 * out))] if gate else [])])

    def merge(self, tokens: int, width: int, parts: int) -> Kernels:
        """Partial results of attention over `parts` of the cached tokens, put together for `width` values per token."""
        return _busy([("attention.merge_parts", ops.passes(2.0 * parts * tokens * width, 2.0 * tokens * width))])

    def output(self, model: Model, attention: Attention, tokens: int, shards: int) -> Kernels:
        """What 1/shards of the heads give, back to the hidden size."""
        width = attention.heads // shards * value_dim(attention)
        return _busy(_linear("attention.o", tokens, model.hidden, width, model.precision.attention))

    # --- feed-forward ------------------------------------------------------------------------------------------------

    def dense(self, model: Model, dense: Dense, tokens: int, shards: int, packed: bool) -> Kernels:
        """1/shards of the columns of a dense FFN."""
        width = dense.intermediate // shards
        return _busy(_ffn("dense", tokens, width, model.hidden, model.precision.dense, packed, dense.gated))

    def shared(self, model: Model, experts: Experts, tokens: int, shards: int, packed: bool) -> Kernels:
        """1/shards of the shared experts' columns, if there are any."""
        width = experts.shared_intermediate // shards
        return _busy(_ffn("shared", tokens, width, model.hidden, model.precision.shared, packed)) if width else []

    def route(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        """Router in FP32 (cast, product), then scores, groups and top-k."""
        scores, size = 4.0 * tokens * experts.routed, 2.0 * tokens * model.hidden
        return _busy([("gate.cast", ops.passes(size, 2.0 * size)),
                      ("gate.router", ops.gemm(tokens, experts.routed, model.hidden, "fp32", "fp32")),
                      ("gate.top_k", ops.passes(2.0 * scores, scores)),
                      ("gate.scale", ops.copy(tokens * experts.per_token, 4.0))])

    def to_rows(self, model: Model, experts: Experts, tokens: int) -> Kernels:
        """Quantise and sort: one row per token and chosen expert, by expert."""
        rows, size = tokens * experts.per_token, _element_bytes(model.precision.experts) * model.hidden
        scale_bytes = 4.0 if model.precision.experts == "int8" else 0.0
        sort = ops.passes(2.0 * tokens * model.hidden, rows * (size + scale_bytes))
        return _busy([("init_routing.sort", sort), ("init_routing.counts", ops.copy(experts.routed, 8.0))])

    def split_sizes(self, experts: Experts) -> Kernels:
        """From exchanged counts to the split sizes that the host reads: stack, sum per rank, sum of all."""
        return [(f"dispatch.counts_{what}", ops.copy(2 * experts.routed, 8.0)) for what in ("stack", "sum", "total")]

    def experts(self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int) -> Kernels:
        """1/shards of the columns of the local experts on the rows of each: selected out of `tokens` that are here, and
        summed up to them; or (0) sorted as they arrived, and put back into that order."""
        hidden, dtype, total = model.hidden, model.precision.experts, sum(rows)
        width = experts.intermediate // shards
        products = _products("experts", tuple(rows), width, hidden, dtype)
        size = _element_bytes(dtype) * hidden
        if tokens:
            sums = 2.0 * tokens * hidden
            return _busy([("experts.select", ops.copy(total * size, 1.0)), *products,
                          ("finalize.zero", ops.passes(0.0, sums)),
                          ("finalize.sum", ops.passes(sums + 2.0 * total * hidden, sums))])
        scale_bytes = 4.0 if dtype == "int8" else 0.0
        return _busy([("experts.re_routing", ops.copy(total * (size + scale_bytes), 1.0)), *products,
                      *((f"experts.unsort_{what}", ops.copy(total, 4.0)) for what in ("to_float", "argsort", "to_int")),
                      ("experts.unsort", ops.copy(total * hidden))])

    def finalize(self, model: Model, experts: Experts, tokens: int, by_row: bool) -> Kernels:
        """Weighted sum of a token's rows in its own order, with the shared expert's; of sums only that addition."""
        rows, size = tokens * experts.per_token, 2.0 * tokens * model.hidden
        if not by_row:
            return _busy([("finalize.add_shared", ops.passes(2.0 * size, size))]) if experts.shared_intermediate else []
        return _busy([("finalize.weights", ops.copy(rows, 4.0)),
                      ("finalize.sum", ops.passes(2.0 * (rows + tokens) * model.hidden, size))])

    # --- before and behind the layers --------------------------------------------------------------------------------

    def embed(self, model: Model, tokens: int, shards: int) -> Kernels:
        """One vocabulary shard looks up every token, then zeroes those that are not its own."""
        size = 2.0 * tokens * model.hidden
        mask = [("embedding.mask", ops.passes(size, size))] if shards > 1 else []
        return _busy([("embedding.lookup", ops.passes(0.0, size)), *mask])

    def head(self, model: Model, rows: int, shards: int) -> Kernels:
        """Logits of normed rows for 1/shards of the vocabulary, BF16."""
        return _busy([("head.logits", ops.gemm(rows, -(-model.vocabulary // shards), model.hidden, "bf16"))])

    def best(self, model: Model, rows: int, shards: int) -> Kernels:
        """Nothing: all logits are gathered."""
        return []

    def sample(self, model: Model, rows: int, candidates: int) -> Kernels:
        """A token of each row out of so many logits of all rows."""
        return _busy([("head.sample", ops.passes(4.0 * candidates, 8.0 * rows))])

    def project(self, model: Model, tokens: int) -> Kernels:
        """Into a draft layer: norms of the hidden state and of the sampled token's embedding, one product of both."""
        both = 2 * model.hidden
        return _busy([("draft.norm", ops.rms_norm(tokens, both)),
                      *_linear("draft.project", tokens, model.hidden, both, model.precision.drafts)])

    def cores(self, count: int) -> dict[str, int]:
        """So many cube cores of a stream of its own, each with its two vector cores."""
        return {"cube": count, "vector": 2 * count}


def _expanded(model: Model, a: Latent, batch: MicroBatch, heads: int) -> Kernels:
    """Latents up to per-head queries, keys and values, each part of a head in the layout that attention wants; keys and
    values of cached tokens, too."""
    tokens, keys = batch.tokens, max(sum(new + before for new, before in batch.prompts), batch.tokens)
    precision = model.precision
    queries = _linear("attention.q_b", tokens, heads * (a.nope_dim + a.rope_dim), a.q_lora or model.hidden,
                      precision.attention)  # fmt: skip
    return [*queries,
            ("attention.q.rope", ops.copy(tokens * heads * a.rope_dim)),
            ("attention.q_rope.layout", ops.copy(tokens * heads * a.rope_dim)),
            ("attention.q_nope.layout", ops.copy(tokens * heads * a.nope_dim)),
            *_linear("attention.kv_b", keys, heads * (a.nope_dim + a.v_dim), a.kv_lora,
                     precision.kv_b or precision.attention),
            ("attention.k_rope.repeat", ops.passes(2.0 * keys * a.rope_dim, 2.0 * keys * heads * a.rope_dim)),
            ("attention.k_rope.layout", ops.copy(keys * heads * a.rope_dim)),
            ("attention.k_nope.layout", ops.copy(keys * heads * a.nope_dim)),
            ("attention.v.layout", ops.copy(keys * heads * a.v_dim))]


def _grouped_layouts(a: Grouped, tokens: int, heads: int, kv_heads: int) -> Kernels:
    """Norms of queries and keys, rotation and the cache in one pass, then each operand in attention's layout."""
    return [("attention.norm_rope_cache", ops.copy(tokens * (heads + 2 * kv_heads) * a.head_dim)),
            ("attention.q.layout", ops.copy(tokens * heads * a.head_dim)),
            ("attention.k.layout", ops.copy(tokens * kv_heads * a.head_dim)),
            ("attention.v.layout", ops.copy(tokens * kv_heads * a.head_dim))]


def _width(a: Grouped, tp: int) -> int:
    """Values per token of a rank's queries (with their gate), keys and values."""
    return (a.heads // tp * (1 + a.gated) + 2 * max(a.kv_heads // tp, 1)) * a.head_dim


def _ffn(block: str, tokens: int, width: int, hidden: int, dtype: str, packed: bool, gated: bool = True) -> Kernels:
    """An FFN of `width` on these tokens."""
    quantised = [] if packed else _quantise(block, tokens, hidden, dtype)
    return [*quantised, *_products(block, (tokens,), width, hidden, dtype, gated)]


def _products(block: str, rows: tuple[int, ...], width: int, hidden: int, dtype: str, gated: bool = True) -> Kernels:
    """Both products of feed-forwards of `width` on the rows of each, and the activation between them."""
    total, columns, quantised = sum(rows), (1 + gated) * width, _is_quantised(dtype)
    inner = ops.passes(2.0 * total * columns, 2.0 * total * width)
    if quantised:  # int32 in, INT8 and a scale per row out
        inner = ops.passes(4.0 * total * columns, total * (width + 4.0))
    first, out = f"{block}.{'gate_up' if gated else 'up'}", "int32" if quantised else "bf16"
    return [(first, ops.grouped_gemm(rows, columns, hidden, dtype, out)),
            (f"{block}.{'swiglu' if gated else 'activation'}", inner),
            (f"{block}.down", ops.grouped_gemm(rows, hidden, width, dtype))]


def _linear(name: str, tokens: int, n: int, k: int, dtype: str, packed: bool = False) -> Kernels:
    """A product, after its input is quantised where it is INT8 and was not before."""
    return [*([] if packed else _quantise(name, tokens, k, dtype)), (name, ops.gemm(tokens, n, k, dtype))]


def _quantise(name: str, tokens: int, width: int, dtype: str) -> Kernels:
    """The input of an INT8 product."""
    return [(f"{name}.quantise", ops.quantise(tokens, width))] if _is_quantised(dtype) else []


def _is_quantised(dtype: str) -> bool:
    """Whether products in this precision take INT8; InputError for one that no kernel has."""
    if dtype not in ("int8", "bf16"):
        raise InputError(f"precision {dtype}: kernels of CANN take bf16 or int8 (knobs.precision all=int8)")
    return dtype == "int8"


def _element_bytes(dtype: str) -> float:
    return 1.0 if _is_quantised(dtype) else 2.0


def _busy(kernels: Kernels) -> Kernels:
    """Those that have something to do."""
    return [(name, work) for name, work in kernels if work.hbm_bytes]
