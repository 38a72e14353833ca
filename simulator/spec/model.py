"""The shapes of a model, read from its typed file, and how many parameters and cached values follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from simulator import paths
from simulator.errors import InputError
from simulator.spec.typed_toml import TomlTable, overridden, read, validate
from simulator.units import Count, PositiveCount, Quantity

WeightDtype: TypeAlias = Literal["bf16", "fp8", "fp8_block", "int8", "int4", "mxfp4", "nvfp4"]
CacheDtype: TypeAlias = Literal["bf16", "fp8", "int8"]

LATENT = ("q_lora", "kv_lora", "rope_dim", "nope_dim", "v_dim")
GROUPED = ("kv_heads", "head_dim")
FIELDS_OF = {"head_dim": ("nope_dim", "v_dim")}  # of `ModelShapes`, where a number of the file has another name


class ModelShapesSpec(TomlTable):
    """The numbers of a model's file, each with its source; `ModelShapes` says what they mean.

    A model has those of multi-head latent attention (LATENT) or those of grouped-query attention (GROUPED).
    """

    layers: PositiveCount
    dense_layers: Count
    mtp_layers: Count
    hidden: PositiveCount
    heads: PositiveCount
    q_lora: PositiveCount | None = None
    kv_lora: PositiveCount | None = None
    rope_dim: PositiveCount | None = None
    nope_dim: PositiveCount | None = None
    v_dim: PositiveCount | None = None
    kv_heads: PositiveCount | None = None
    head_dim: PositiveCount | None = None
    routed_experts: PositiveCount
    experts_per_token: PositiveCount
    expert_groups: PositiveCount | None = None
    groups_per_token: PositiveCount | None = None
    shared_experts: Count
    expert_intermediate: PositiveCount
    dense_intermediate: PositiveCount
    vocabulary: PositiveCount


class ModelSpec(TomlTable):
    """The typed file of a model with a mixture of experts, and latent or grouped-query attention."""

    name: str
    title: str
    doc: str
    shapes: ModelShapesSpec


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """The sizes of a model as plain numbers. Parameter counts leave out norms and biases (below 0.01%).

    layers: all but the MTP layers; the first `dense_layers` of them have a dense feed-forward, the others experts.
    q_lora, kv_lora: ranks of the query and key-value down projections; rope_dim, nope_dim: parts of a query or key head
    with and without rotary position; v_dim: size of a value head. kv_heads: heads with keys and values of their own,
    each shared by as many queries (0: all share one latent, as in MLA); then ranks and rope_dim are 0, nope_dim is the
    size of a whole head. expert_groups: groups of neighbouring experts, of which a token's router keeps to
    `groups_per_token` (0: a token may choose from all).
    """

    name: str
    layers: int
    dense_layers: int
    mtp_layers: int
    hidden: int
    heads: int
    q_lora: int
    kv_lora: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    routed_experts: int
    experts_per_token: int
    shared_experts: int
    expert_intermediate: int
    dense_intermediate: int
    vocabulary: int
    kv_heads: int = 0
    expert_groups: int = 0
    groups_per_token: int = 0

    @property
    def moe_layers(self) -> int:
        """Layers with experts, without the MTP layers."""
        return self.layers - self.dense_layers

    @property
    def qk_dim(self) -> int:
        """Size of one query or key head, both parts (192 in DeepSeek-R1)."""
        return self.nope_dim + self.rope_dim

    @property
    def kv_values(self) -> int:
        """Values that the cache keeps per token and layer: a latent (576 in DeepSeek-R1), or keys and values."""
        return self.kv_values_of(1)

    def kv_values_of(self, shards: int) -> int:
        """Of them on one of so many ranks that split the heads: all share a latent, and a head is on one at least."""
        if not self.kv_heads:
            return self.kv_lora + self.rope_dim
        return self.kv_heads_of(shards) * (self.qk_dim + self.v_dim)

    def kv_heads_of(self, shards: int) -> int:
        """Key and value heads on one of so many ranks: where there are fewer heads than ranks, copies of one."""
        return max(self.kv_heads // shards, 1)

    @property
    def o_proj_parameters(self) -> int:
        """Of the output projection of one layer's attention."""
        return self.heads * self.v_dim * self.hidden

    @property
    def mla_parameters(self) -> int:
        """Of one layer's latent attention: all projections down and up, and o_proj; InputError where it is another."""
        if self.kv_heads:
            raise InputError(f"{self.name} has grouped-query attention, and this program is for latent attention")
        queries = self.hidden * self.q_lora + self.q_lora * self.heads * self.qk_dim
        keys_values = self.hidden * self.kv_values + self.kv_lora * self.heads * (self.nope_dim + self.v_dim)
        return queries + keys_values + self.o_proj_parameters

    @property
    def attention_parameters(self) -> int:
        """Of one layer's attention, of either kind."""
        if not self.kv_heads:
            return self.mla_parameters
        return self.hidden * (self.heads * self.qk_dim + self.kv_values) + self.o_proj_parameters

    def check_drafts(self, draft_tokens: int) -> None:
        """InputError where tokens are drafted without an MTP layer."""
        if draft_tokens and not self.mtp_layers:
            raise InputError(f"batch.draft_tokens is {draft_tokens}, but {self.name} has no MTP layer to draft with: "
                             "it must be 0")

    @property
    def expert_parameters(self) -> int:
        """Of one expert, routed or shared: gate, up and down projections."""
        return 3 * self.hidden * self.expert_intermediate

    @property
    def dense_parameters(self) -> int:
        """Of one dense feed-forward: gate, up and down projections."""
        return 3 * self.hidden * self.dense_intermediate

    @property
    def router_parameters(self) -> int:
        """Of one layer's router."""
        return self.hidden * self.routed_experts

    @property
    def moe_parameters(self) -> int:
        """Of one layer's router, routed and shared experts."""
        return self.router_parameters + (self.routed_experts + self.shared_experts) * self.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding, and as many again of the LM head."""
        return self.vocabulary * self.hidden

    @property
    def mtp_parameters(self) -> int:
        """Of all MTP layers: a MoE layer each and the projection of two hidden states to one; embedding and LM head are
        the model's own."""
        return self.mtp_layers * (self.attention_parameters + self.moe_parameters + 2 * self.hidden * self.hidden)

    @property
    def parameters(self) -> int:
        """Of the whole model without its MTP layers, which is how the published totals count."""
        feed_forward = self.dense_layers * self.dense_parameters + self.moe_layers * self.moe_parameters
        return self.layers * self.attention_parameters + feed_forward + 2 * self.embedding_parameters


def load_model(name: str | Path) -> ModelSpec:
    """A model of the library by name ("deepseek_r1"), or a user's own file by path; raises as `load_machine` does."""
    path = paths.find("workloads/models", name)
    return _checked(read(path), str(path))


def override_model(spec: ModelSpec, changes: Mapping[str, str | Quantity]) -> ModelSpec:
    """The model with some numbers replaced: {"shapes.layers": "4"}; SpecError as `override` of a machine."""
    return overridden(spec, changes, _checked) if changes else spec


def shapes_of(spec: ModelSpec) -> ModelShapes:
    """The plain numbers of a model's file."""
    given = {name: getattr(spec.shapes, name) for name in ModelShapesSpec.model_fields}
    counts = {name: number.count if number is not None else 0 for name, number in given.items()}
    head = counts.pop("head_dim")
    if head:
        counts |= dict.fromkeys(FIELDS_OF["head_dim"], head)
    return ModelShapes(spec.name, **counts)


def load_shapes(name: str | Path) -> ModelShapes:
    """The plain numbers of a model, by name or path; raises as `load_model` does."""
    return shapes_of(load_model(name))


def _checked(tables: dict[str, Any], label: str) -> ModelSpec:
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
    if shapes.expert_groups and shapes.routed_experts.si % shapes.expert_groups.si > 0:
        yield "shapes.expert_groups", shapes.expert_groups, f"a divisor of routed_experts, {shapes.routed_experts}"
    elif shapes.expert_groups:
        kept = shapes.groups_per_token.si if shapes.groups_per_token else 0
        if kept * shapes.routed_experts.si < shapes.experts_per_token.si * shapes.expert_groups.si:
            right = f"so many groups that they hold the {shapes.experts_per_token} experts of a token"
            yield "shapes.groups_per_token", shapes.groups_per_token or "nothing", right
    given = [{name for name in names if getattr(shapes, name) is not None} for names in (LATENT, GROUPED)]
    if given not in ([set(LATENT), set()], [set(), set(GROUPED)]):
        right = f"either {', '.join(LATENT)} or {', '.join(GROUPED)}"
        yield "shapes", ", ".join(sorted(given[0] | given[1])) or "neither", right
    elif shapes.kv_heads and shapes.heads.si % shapes.kv_heads.si > 0:
        yield "shapes.kv_heads", shapes.kv_heads, f"a divisor of heads, which is {shapes.heads}"
