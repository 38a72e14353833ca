"""A transformer as layers of modules, each with the weights it consists of; never time.

Parameters, total and active, the bytes of weights and of the cache, and the shapes of kernels follow from what a module
declares here once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, singledispatch
from typing import TypeAlias, get_args

from simulator.errors import InputError
from simulator.model.indexer import Indexer, latent_bytes
from simulator.model.layout import shard_size
from simulator.model.linear_attention import GatedDelta, delta_weights
from simulator.model.weight import Weight
from simulator.paths import did_you_mean
from simulator.spec.model_tables import CacheDtype, StateDtype, WeightDtype

_BYTES = {
    "fp32":      4.0,
    "bf16":      2.0,
    "fp8":       1.0,
    "fp8_block": 1.0 + 4 / (128 * 128),  # an FP32 scale for each block of 128 x 128
    "int8":      1.0,
    "int4":      0.5 + 2 / 128,          # a BF16 scale for each group of 128
    "mxfp4":     0.5 + 1 / 32,           # an E8M0 scale for each group of 32
    "mxfp4_marlin": 0.5 + 1 / 32,        # the same weights, by Marlin kernels
    "mxfp4_fp8": 0.5 + 1 / 32,           # the same weights, with activations in FP8
    "nvfp4":     0.5 + 1 / 16,           # an E4M3 scale for each group of 16
}  # fmt: skip
"""Bytes per element with scales. Those per tensor or per channel (FP8, INT8) are below 0.1% and left out."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (MLA): queries through a rank of `q_lora` (0: directly), keys and values through
    `kv_lora`; a query or key head has `nope_dim` values without position and `rope_dim` with, a value head `v_dim`.
    indexer: what chooses the tokens that a query attends to (none: it attends to all before it)."""

    heads: int
    q_lora: int
    kv_lora: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    indexer: Indexer | None = None

    @property
    def cached_values(self) -> int:
        """Values that the cache keeps per token: the latent and the rotated part of the key."""
        return self.kv_lora + self.rope_dim


@dataclass(frozen=True, slots=True)
class Grouped:
    """Grouped-query attention; `kv_heads` equal to `heads` is multi-head attention, 1 multi-query.

    window: tokens that a query sees, itself included (0: all before it); chunked attention is a window of its chunk.
    sinks: a learned logit per head beside the keys. bias: of queries, keys and values. qk_norm: queries and keys are
    normalised per head. gated: what the heads give is multiplied by a gate from the input, of the same size.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    sinks: bool = False
    bias: bool = False
    qk_norm: bool = False
    gated: bool = False

    @property
    def cached_values(self) -> int:
        """Values that the cache keeps per token: keys and values of all heads."""
        return 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Dense:
    """A dense feed-forward of `intermediate` values between its matrices; gated: a gate beside the up projection."""

    intermediate: int
    gated: bool = True


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of `routed` gated experts of `intermediate`, of which a token takes `per_token`, beside one dense path.

    shared_intermediate: of all shared experts together (0: none); shared_gate: their sum is weighted by a gate of its
    own. groups, groups_per_token: groups of neighbouring experts, to so many of which a token keeps (0: to all). bias:
    the router and the experts have biases.
    """

    routed: int
    per_token: int
    intermediate: int
    shared_intermediate: int = 0
    groups: int = 0
    groups_per_token: int = 0
    bias: bool = False
    shared_gate: bool = False


Attention: TypeAlias = Latent | Grouped | GatedDelta
FeedForward: TypeAlias = Dense | Experts
Module: TypeAlias = Attention | FeedForward


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: attention, then a feed-forward, each with a norm before it."""

    attention: Attention
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class Precision:
    """In what the weights of each module are stored and computed, and the cache (`kv`) is kept.

    fp32; bf16; fp8: per tensor; fp8_block: blocks of 128 x 128; int8: weights and activations; int4: weights alone;
    mxfp4, mxfp4_fp8: with activations in BF16 or FP8, mxfp4_marlin: in BF16, by Marlin kernels; nvfp4. kv_b: the
    key/value up-projection of latent attention, which quantised checkpoints may leave alone (none: as attention).
    drafts: all matrices of the MTP layers. state: of linear attention, per request. Vectors (norms, biases, sinks) are
    always BF16.
    """

    attention: WeightDtype = "bf16"
    dense: WeightDtype = "bf16"
    experts: WeightDtype = "bf16"
    shared: WeightDtype = "bf16"
    head: WeightDtype = "bf16"
    embedding: WeightDtype = "bf16"
    router: WeightDtype = "bf16"
    kv_b: WeightDtype | None = None
    drafts: WeightDtype = "bf16"
    kv: CacheDtype = "bf16"
    state: StateDtype = "bf16"


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder: embedding, `layers` in order, norm, head; `drafts`: its MTP layers, which share embedding and head.

    hidden: values of a token between layers. vocabulary: rows of the embedding. tied: the head is the embedding.
    """

    name: str
    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]
    drafts: tuple[Layer, ...]
    tied: bool
    precision: Precision


@singledispatch
def weights(module: Module, hidden: int) -> tuple[Weight, ...]:
    """The weights of a module of a model with `hidden` values per token, its norm first, in the order of their use."""
    raise TypeError(f"{type(module).__name__} is no module of a transformer")


@weights.register
def _(module: Latent, hidden: int) -> tuple[Weight, ...]:
    width = module.heads * (module.nope_dim + module.rope_dim)
    queries: tuple[Weight, ...] = (Weight("attention.q", hidden, width, shard="columns"),)
    if module.q_lora:
        queries = (Weight("attention.q_a", hidden, module.q_lora),
                   Weight("attention.q_a_norm", 1, module.q_lora),
                   Weight("attention.q_b", module.q_lora, width, shard="columns"))
    return (Weight("attention.norm", 1, hidden), *queries,
            Weight("attention.kv_a", hidden, module.cached_values),
            Weight("attention.kv_a_norm", 1, module.kv_lora),
            Weight("attention.kv_b", module.kv_lora, module.heads * (module.nope_dim + module.v_dim), shard="columns"),
            *(Weight(*one) for one in (module.indexer.weights(module.q_lora, hidden) if module.indexer else ())),
            Weight("attention.o", module.heads * module.v_dim, hidden, shard="rows"))


@weights.register
def _(module: Grouped, hidden: int) -> tuple[Weight, ...]:
    width, pair = module.heads * module.head_dim, 2 * module.head_dim
    found = [Weight("attention.norm", 1, hidden),
             Weight("attention.qkv", hidden, width, shard="columns"),
             Weight("attention.qkv", hidden, pair, module.kv_heads, "kv_heads")]
    if module.bias:
        found += [Weight("attention.qkv_bias", 1, width, shard="columns"),
                  Weight("attention.qkv_bias", 1, pair, module.kv_heads, "kv_heads")]
    if module.qk_norm:
        found.append(Weight("attention.qk_norm", 1, pair))
    if module.sinks:
        found.append(Weight("attention.sinks", 1, module.heads, shard="columns"))
    if module.gated:
        found.append(Weight("attention.gate", hidden, width, shard="columns"))
    return (*found, Weight("attention.o", width, hidden, shard="rows"))


@weights.register
def _(module: GatedDelta, hidden: int) -> tuple[Weight, ...]:
    return delta_weights(module, hidden)


@weights.register
def _(module: Dense, hidden: int) -> tuple[Weight, ...]:
    first, width = ("dense.gate_up", 2 * module.intermediate) if module.gated else ("dense.up", module.intermediate)
    return (Weight("dense.norm", 1, hidden),
            Weight(first, hidden, width, shard="columns"),
            Weight("dense.down", module.intermediate, hidden, shard="rows"))


@weights.register
def _(module: Experts, hidden: int) -> tuple[Weight, ...]:
    routed, inner, shared = module.routed, module.intermediate, module.shared_intermediate
    found = [Weight("gate.norm", 1, hidden),
             Weight("gate.router", hidden, routed),
             Weight("experts.gate_up", hidden, 2 * inner, routed, "experts"),
             Weight("experts.down", inner, hidden, routed, "experts")]
    if module.bias:
        found += [Weight("gate.bias", 1, routed),
                  Weight("experts.gate_up_bias", 1, 2 * inner, routed, "experts"),
                  Weight("experts.down_bias", 1, hidden, routed, "experts")]
    if shared:
        found += [Weight("shared.gate_up", hidden, 2 * shared, shard="columns"),
                  Weight("shared.down", shared, hidden, shard="rows")]
    if module.shared_gate:
        found.append(Weight("shared.gate", hidden, 1))
    return tuple(found)


def layer_weights(layer: Layer, hidden: int) -> tuple[Weight, ...]:
    """Of the attention and the feed-forward of one layer."""
    return weights(layer.attention, hidden) + weights(layer.feed_forward, hidden)


def matrices(layers: Iterable[Layer], hidden: int) -> Counter[str]:
    """Elements of all matrices of some layers by module ("attention", "experts", ...): norms and biases left out."""
    found: Counter[str] = Counter()
    for weight in (weight for layer in layers for weight in layer_weights(layer, hidden) if weight.inputs > 1):
        found[weight.name.partition(".")[0]] += weight.elements
    return found


def end_weights(model: Model) -> tuple[Weight, ...]:
    """Of what stands before and behind the layers: embedding, last norm, and the head where it is not the embedding."""
    head = Weight("head", model.hidden, model.vocabulary, shard="vocabulary")
    return (Weight("embedding", model.vocabulary, model.hidden, shard="vocabulary"),
            Weight("head.norm", 1, model.hidden), *(() if model.tied else (head,)))


def draft_weights(model: Model) -> tuple[Weight, ...]:
    """Of one MTP layer beside its attention and feed-forward: the projection of two hidden states to one, and norms."""
    return (Weight("draft.norm", 1, 3 * model.hidden), Weight("draft.project", 2 * model.hidden, model.hidden))


def experts_of(model: Model, places: int = 1) -> Experts:
    """The experts of its last layer; InputError where that has none, ValueError where they do not divide over so many
    places."""
    found = model.layers[-1].feed_forward
    if not isinstance(found, Experts):
        raise InputError(f"{model.name} has no experts, and this program is for a mixture of experts: "
                         "transformer:decode runs it, too")
    shard_size(found.routed, places, "experts")
    return found


def parameters(model: Model) -> int:
    """Of the whole model without its MTP layers, which is how most published totals count."""
    return sum(weight.elements for weight in _all_weights(model))


def draft_parameters(model: Model) -> int:
    """Of all MTP layers, without embedding and head, which they share with the model."""
    own = sum(weight.elements for weight in draft_weights(model))
    return sum(own + sum(weight.elements for weight in layer_weights(layer, model.hidden)) for layer in model.drafts)


def active_parameters(model: Model) -> int:
    """Those that a token is multiplied with: of the experts its own alone, the head, but no embedding (a look-up)."""
    ends = sum(weight.elements for weight in end_weights(model) if model.tied or weight.name != "embedding")
    return ends + sum(_active(weight, layer) for layer in model.layers for weight in layer_weights(layer, model.hidden))


def kv_bytes_per_token(model: Model, kv_dtype: str | None = None) -> int:
    """Bytes that the cache of all layers grows by for a token, as if none had a window; kv_dtype: not its own."""
    return sum(cached_bytes(layer.attention, kv_dtype or model.precision.kv) for layer in model.layers)


def kv_bytes(model: Model, tokens: int, kv_dtype: str | None = None) -> int:
    """Bytes that the cache of all layers holds for a context of so many tokens; a window keeps its own tokens alone."""
    dtype = kv_dtype or model.precision.kv
    return sum(_held(layer.attention, tokens) * cached_bytes(layer.attention, dtype) for layer in model.layers)


def cached_bytes(attention: Attention, kv_dtype: str) -> int:
    """Bytes that the cache of one layer grows by for a token, with the key of an indexer."""
    element = _kv_bytes(kv_dtype)
    if isinstance(attention, Latent) and attention.indexer:
        return attention.indexer.cached_bytes + latent_bytes(attention.kv_lora, attention.rope_dim, element)
    return attention.cached_values * element


def weight_bytes(dtype: str, elements: float) -> float:
    """Bytes of so many elements of a matrix, with the scales of its blocks; InputError for an unknown word."""
    if dtype not in _BYTES:
        raise InputError(f"'{dtype}' is no precision of weights{did_you_mean(dtype, _BYTES)}: {', '.join(_BYTES)}")
    return _BYTES[dtype] * elements


def weight_dtype(weight: Weight, precision: Precision) -> WeightDtype:
    """What a weight of a layer, an end or `draft_weights` is stored in; matrices of MTP layers are in `drafts` all."""
    if weight.inputs == 1:
        return "bf16"
    module = weight.name.partition(".")[0]
    if weight.name == "attention.kv_b" and precision.kv_b:
        return precision.kv_b
    field: WeightDtype = getattr(precision, {"gate": "router", "draft": "drafts"}.get(module, module))
    return field


def with_precision(model: Model, changes: Mapping[str, str]) -> Model:
    """The model with some modules in another precision: {"all": "fp8", "attention": "bf16", "kv": "fp8"}.

    `all`: every matrix inside layers and MTP layers; router, embedding and head stay as they are, as quantised
    checkpoints have them, and so does the cache. What is named by itself counts before `all`. InputError names every
    unknown word, and what is right.
    """
    names = [field.name for field in fields(Precision)]
    wrong = [f"precision.{name}: got '{word}': {right}" for name, word in changes.items()
             for right in _refused(name, word, names)]
    if wrong:
        raise InputError("\n".join(wrong))
    given = dict(changes)
    whole = given.pop("all", None)
    inside = dict.fromkeys(("attention", "dense", "experts", "shared", "drafts"), whole) if whole else {}
    return replace(model, precision=replace(model.precision, **(inside | given)))  # type: ignore[arg-type]


@cache
def in_precision(model: Model, words: tuple[str, ...], setting: str) -> Model:
    """The same, from words MODULE=DTYPE; InputError names the setting that has others."""
    pairs = [word.partition("=") for word in words]
    if wrong := [f"'{name}{equals}{dtype}'" for name, equals, dtype in pairs if not equals]:
        raise InputError(f"{setting}: {', '.join(wrong)}: write MODULE=DTYPE, as experts=mxfp4")
    return with_precision(model, {name.strip(): dtype.strip() for name, _, dtype in pairs})


def _refused(name: str, word: str, names: list[str]) -> Iterator[str]:
    """What is right instead, where a module or its precision is unknown."""
    words = get_args({"kv": CacheDtype, "state": StateDtype}.get(name, WeightDtype))
    if name not in (*names, "all"):
        yield f"no such module{did_you_mean(name, names)}; modules are {', '.join(names)}, or all"
    elif word not in words:
        yield f"must be one of {', '.join(words)}{did_you_mean(word, words)}"


def _all_weights(model: Model) -> Iterator[Weight]:
    yield from end_weights(model)
    for layer in model.layers:
        yield from layer_weights(layer, model.hidden)


def _active(weight: Weight, layer: Layer) -> int:
    """Elements of a layer's weight that one token is multiplied with."""
    if weight.shard == "experts" and isinstance(layer.feed_forward, Experts):
        return weight.elements // weight.copies * layer.feed_forward.per_token
    return weight.elements


def _held(attention: Attention, tokens: int) -> int:
    """Tokens of a context that the cache of one layer holds."""
    window = attention.window if isinstance(attention, Grouped) else 0
    return min(tokens, window) if window else tokens


def _kv_bytes(dtype: str) -> int:
    """Bytes of a cached value; scales are left out."""
    if dtype not in get_args(CacheDtype):
        raise InputError(f"kv_dtype is '{dtype}': must be one of {', '.join(get_args(CacheDtype))}")
    return 2 if dtype == "bf16" else 1
