"""The typed file of a model as tables: which numbers there are, and which of them contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

from simulator.spec.typed_toml import TomlTable, validate
from simulator.units import Bytes, Count, PositiveCount

WeightDtype: TypeAlias = Literal["fp32", "bf16", "fp8", "fp8_block", "int8", "int4", "mxfp4",
                                 "mxfp4_marlin", "mxfp4_fp8", "nvfp4"]
CacheDtype: TypeAlias = Literal["bf16", "fp8", "int8"]
StateDtype: TypeAlias = Literal["bf16", "fp32"]

LATENT = ("kv_lora", "rope_dim", "nope_dim", "v_dim")
INDEXER = ("index_heads", "index_dim", "index_top_k")
OF_LATENT = ("q_lora", *INDEXER)
GROUPED = ("kv_heads", "head_dim")
LINEAR = ("linear_heads", "linear_key_heads", "linear_key_dim", "linear_v_dim", "linear_conv", "full_every")
MOST_OF_ANY = 1_000_000_000_000
MOST = {"layers": 10_000, "mtp_layers": 10_000, "routed_experts": 100_000}
"""Of what is made one by one, how many there may be: about a hundred times as many as any published model has."""
EXPERTS = ("dense_layers", "routed_experts", "experts_per_token", "shared_experts", "expert_intermediate")
OF_EXPERTS = ("moe_every", "expert_groups", "groups_per_token", "shared_intermediate", "shared_gate", "expert_bias")
OF_GROUPED = ("window", "window_every", "sinks", "attention_bias", "qk_norm", "attention_gate")
SWITCHES = ("sinks", "attention_bias", "qk_norm", "attention_gate", "shared_gate", "expert_bias", "tied")


class ModelShapesSpec(TomlTable):
    """The numbers of a model's file, each with its source; `ModelShapes` says what most of them mean.

    A model has those of multi-head latent attention (LATENT, and q_lora where queries have a rank) or those of
    grouped-query attention (GROUPED, and perhaps OF_GROUPED); EXPERTS together (and perhaps OF_EXPERTS), or none. With
    LINEAR, of every `full_every` layers the last has grouped-query attention, and the others linear attention by the
    gated delta rule: linear_heads of values of linear_v_dim, linear_key_heads of linear_key_dim, a convolution over
    linear_conv tokens. INDEXER together, with q_lora, where latent attention is sparse (DSA): heads of the indexer,
    values of one, tokens that a query attends to at most.

    window: tokens that a query sees, itself included; window_every: of so many layers the last sees all (not given: all
    layers have the window). moe_every: of so many layers the last has experts, behind `dense_layers` (not given: all).
    shared_intermediate: of all shared experts together, where they are not of the routed ones' size. 1 where there is
    one, 0 where not: sinks (a learned logit per head), attention_bias (of queries, keys, values), qk_norm,
    attention_gate (on what the heads give), shared_gate, expert_bias (of router and experts), tied (the head is the
    embedding).
    """

    layers: PositiveCount
    dense_layers: Count | None = None
    mtp_layers: Count | None = None
    hidden: PositiveCount
    heads: PositiveCount
    q_lora: PositiveCount | None = None
    kv_lora: PositiveCount | None = None
    rope_dim: PositiveCount | None = None
    nope_dim: PositiveCount | None = None
    v_dim: PositiveCount | None = None
    index_heads: PositiveCount | None = None
    index_dim: PositiveCount | None = None
    index_top_k: PositiveCount | None = None
    kv_heads: PositiveCount | None = None
    head_dim: PositiveCount | None = None
    window: PositiveCount | None = None
    window_every: PositiveCount | None = None
    sinks: Count | None = None
    attention_bias: Count | None = None
    qk_norm: Count | None = None
    attention_gate: Count | None = None
    linear_heads: PositiveCount | None = None
    linear_key_heads: PositiveCount | None = None
    linear_key_dim: PositiveCount | None = None
    linear_v_dim: PositiveCount | None = None
    linear_conv: PositiveCount | None = None
    full_every: PositiveCount | None = None
    routed_experts: PositiveCount | None = None
    experts_per_token: PositiveCount | None = None
    expert_groups: PositiveCount | None = None
    groups_per_token: PositiveCount | None = None
    shared_experts: Count | None = None
    shared_intermediate: PositiveCount | None = None
    shared_gate: Count | None = None
    expert_intermediate: PositiveCount | None = None
    expert_bias: Count | None = None
    moe_every: PositiveCount | None = None
    dense_intermediate: PositiveCount | None = None
    vocabulary: PositiveCount
    tied: Count | None = None


class PrecisionSpec(TomlTable):
    """In what a model's checkpoint has the weights of each module; drafts: all matrices of its MTP layers; kv, state:
    what is kept of a request."""

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
    source: str


class PublishedSpec(TomlTable):
    """What is published of the whole model, to check its shapes against; no run reads it.

    parameters: without MTP layers; stored_parameters: with MTP layers, each with its own copies of embedding and head.
    active_parameters: of one token, with the head and without the embedding; active_and_embedding: with both, where
    they are counted so. *_rounding: the unit of the last digit, for figures that were rounded or cut.
    kv_bytes_per_token: of all layers, BF16.
    """

    parameters: PositiveCount | None = None
    parameters_rounding: PositiveCount | None = None
    stored_parameters: PositiveCount | None = None
    active_parameters: PositiveCount | None = None
    active_and_embedding: PositiveCount | None = None
    active_rounding: PositiveCount | None = None
    kv_bytes_per_token: Bytes | None = None


class ModelSpec(TomlTable):
    """The typed file of a model: latent, grouped-query or linear attention, dense feed-forwards or experts."""

    name: str
    title: str
    doc: str
    shapes: ModelShapesSpec
    precision: PrecisionSpec | None = None
    published: PublishedSpec | None = None


def checked(tables: dict[str, Any], label: str) -> ModelSpec:
    """A model whose numbers also agree with each other."""
    return validate(ModelSpec, tables, label, _disagreements)


def _disagreements(spec: ModelSpec) -> Iterator[tuple[str, Any, str]]:
    """(key, what is there, what is right) wherever two numbers contradict each other."""
    shapes = spec.shapes
    for part, whole in (("dense_layers", "layers"), ("experts_per_token", "routed_experts"),
                        ("groups_per_token", "expert_groups")):  # fmt: skip
        small, large = getattr(shapes, part), getattr(shapes, whole)
        if small is not None and (large is None or small.si > large.si):
            yield f"shapes.{part}", small, f"at most {whole}, which is {large or 'not given'}"
    for name in type(shapes).model_fields:
        number, most = getattr(shapes, name), MOST.get(name, MOST_OF_ANY)
        if number is not None and number.si > most:
            yield f"shapes.{name}", number, f"at most {most:,}"
    for name in SWITCHES:
        switch = getattr(shapes, name)
        if switch is not None and switch.si not in (0, 1) and switch.si == switch.si:
            yield f"shapes.{name}", switch, "0 or 1"
    yield from _attention_disagreements(shapes)
    yield from _expert_disagreements(shapes)


def _attention_disagreements(shapes: ModelShapesSpec) -> Iterator[tuple[str, Any, str]]:
    """Contradictions between the numbers of attention."""
    given = [_given(shapes, names) for names in (LATENT, GROUPED)]
    if given not in ([set(LATENT), set()], [set(), set(GROUPED)]):
        right = f"either q_lora, {', '.join(LATENT)} or {', '.join(GROUPED)}"
        yield "shapes", ", ".join(sorted(given[0] | given[1])) or "neither", right
        return
    if shapes.kv_heads and shapes.heads.si % shapes.kv_heads.si > 0:
        yield "shapes.kv_heads", shapes.kv_heads, f"a divisor of heads, which is {shapes.heads}"
    misplaced = OF_LATENT if shapes.kv_heads else (*OF_GROUPED, *LINEAR)
    for name in sorted(_given(shapes, misplaced)):
        kind = "latent" if shapes.kv_heads else "grouped-query"
        yield f"shapes.{name}", getattr(shapes, name), f"given with {kind} attention only"
    indexer = _given(shapes, INDEXER)
    if not shapes.kv_heads and indexer and (indexer != set(INDEXER) or not shapes.q_lora):
        yield "shapes", ", ".join(sorted(indexer)), f"all of {', '.join(INDEXER)}, and q_lora, or none"
    if shapes.window_every and not shapes.window:
        yield "shapes.window_every", shapes.window_every, "given with window only"
    linear = _given(shapes, LINEAR)
    for name in sorted(set(LINEAR) - linear if linear else ()):
        yield f"shapes.{name}", "nothing", f"given with {', '.join(LINEAR)}: all of them, or none"
    if shapes.linear_heads and shapes.linear_key_heads and shapes.linear_heads.si % shapes.linear_key_heads.si > 0:
        yield "shapes.linear_key_heads", shapes.linear_key_heads, f"a divisor of linear_heads, {shapes.linear_heads}"


def _expert_disagreements(shapes: ModelShapesSpec) -> Iterator[tuple[str, Any, str]]:
    """Contradictions between the numbers of feed-forwards."""
    given = _given(shapes, EXPERTS)
    for name in sorted(set(EXPERTS) - given if given else _given(shapes, OF_EXPERTS)):
        right = f"given with {', '.join(EXPERTS)}: all of them, or none for a model without experts"
        yield f"shapes.{name}", getattr(shapes, name) or "nothing", right
    every, dense = shapes.moe_every, shapes.dense_layers
    if shapes.dense_intermediate is None and (not given or (every and every.si > 1) or (dense and dense.si > 0)):
        yield "shapes.dense_intermediate", "nothing", "given, since there are layers without experts"
    routed, groups = shapes.routed_experts, shapes.expert_groups
    if not (routed and groups and shapes.experts_per_token):
        return
    if routed.si % groups.si > 0:
        yield "shapes.expert_groups", groups, f"a divisor of routed_experts, {routed}"
        return
    kept = shapes.groups_per_token.si if shapes.groups_per_token else 0
    if kept * routed.si < shapes.experts_per_token.si * groups.si:
        right = f"so many groups that they hold the {shapes.experts_per_token} experts of a token"
        yield "shapes.groups_per_token", shapes.groups_per_token or "nothing", right


def _given(shapes: ModelShapesSpec, names: Iterable[str]) -> set[str]:
    """Those of some keys that the file has."""
    return {name for name in names if getattr(shapes, name) is not None}
