"""The shapes of a model, read from its typed file, and how many parameters and cached values follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator import paths
from simulator.machine.typed_toml import SpecError, Table, line, overridden, read, validate
from simulator.units import Count, PositiveCount, Quantity


class ShapesSpec(Table):
    """The numbers of a model's file, each with its source; `Shapes` says what they mean."""

    layers: PositiveCount
    dense_layers: Count
    mtp_layers: Count
    hidden: PositiveCount
    heads: PositiveCount
    q_lora: PositiveCount
    kv_lora: PositiveCount
    rope_dim: PositiveCount
    nope_dim: PositiveCount
    v_dim: PositiveCount
    routed_experts: PositiveCount
    experts_per_token: PositiveCount
    shared_experts: Count
    expert_intermediate: PositiveCount
    dense_intermediate: PositiveCount
    vocabulary: PositiveCount


class ModelSpec(Table):
    """The typed file of a model with multi-head latent attention and a mixture of experts."""

    name: str
    title: str
    doc: str
    shapes: ShapesSpec


@dataclass(frozen=True, slots=True)
class Shapes:
    """The sizes of a model as plain numbers. Parameter counts leave out norms and biases (below 0.01%).

    layers: all but the MTP layers; the first `dense_layers` of them have a dense feed-forward, the others experts.
    q_lora, kv_lora: ranks of the query and key-value down projections; rope_dim, nope_dim: parts of a query or key head
    with and without rotary position; v_dim: size of a value head.
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
        """Values that the latent cache keeps per token and layer (576 in DeepSeek-R1)."""
        return self.kv_lora + self.rope_dim

    @property
    def o_proj_parameters(self) -> int:
        """Of the output projection of one layer's attention."""
        return self.heads * self.v_dim * self.hidden

    @property
    def mla_parameters(self) -> int:
        """Of one layer's attention: down and up projections of queries and of keys and values, and o_proj."""
        queries = self.hidden * self.q_lora + self.q_lora * self.heads * self.qk_dim
        keys_values = self.hidden * self.kv_values + self.kv_lora * self.heads * (self.nope_dim + self.v_dim)
        return queries + keys_values + self.o_proj_parameters

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
        return self.mtp_layers * (self.mla_parameters + self.moe_parameters + 2 * self.hidden * self.hidden)

    @property
    def parameters(self) -> int:
        """Of the whole model without its MTP layers, which is how the published totals count."""
        feed_forward = self.dense_layers * self.dense_parameters + self.moe_layers * self.moe_parameters
        return self.layers * self.mla_parameters + feed_forward + 2 * self.embedding_parameters


def load_model(name: str | Path) -> ModelSpec:
    """A model of the library by name ("deepseek_r1"), or a user's own file by path; raises as `load_machine` does."""
    path = paths.find("workloads/models", name)
    return _checked(read(path), str(path))


def override_model(spec: ModelSpec, changes: Mapping[str, str | Quantity]) -> ModelSpec:
    """The model with some numbers replaced: {"shapes.layers": "4"}; SpecError as `override` of a machine."""
    return _checked(overridden(spec, changes), spec.name) if changes else spec


def shapes_of(spec: ModelSpec) -> Shapes:
    """The plain numbers of a model's file."""
    return Shapes(spec.name, **{name: getattr(spec.shapes, name).count for name in ShapesSpec.model_fields})


def load_shapes(name: str | Path) -> Shapes:
    """The plain numbers of a model, by name or path; raises as `load_model` does."""
    return shapes_of(load_model(name))


def _checked(tables: dict[str, Any], label: str) -> ModelSpec:
    """A model whose numbers also agree with each other."""
    spec = validate(ModelSpec, tables, label)
    shapes, mistakes = spec.shapes, []
    for part, whole in (("dense_layers", "layers"), ("experts_per_token", "routed_experts")):
        if getattr(shapes, part).count > getattr(shapes, whole).count:
            right = f"at most {whole}, which is {getattr(shapes, whole)}"
            mistakes.append(line(label, f"shapes.{part}", getattr(shapes, part), right))
    if mistakes:
        raise SpecError(mistakes)
    return spec
