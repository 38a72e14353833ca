"""The shapes of a model, from its typed file or its config.json, and what follows: parameters and cached values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from simulator import paths
from simulator.errors import InputError
from simulator.spec.config import config_file, config_tables, in_words_of_config
from simulator.spec.kept import kept
from simulator.spec.model_tables import ModelShapesSpec, ModelSpec, checked
from simulator.spec.typed_toml import SpecError, overridden, read
from simulator.units import Quantity

BEYOND_SHAPES = ("moe_every", "shared_intermediate", "shared_gate", "window", "sinks", "full_every", "index_top_k")
FIELDS_OF = {"head_dim": ("nope_dim", "v_dim")}  # of `ModelShapes`, where a number of the file has another name


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """The sizes of a model with experts as plain numbers. Parameter counts leave out norms and biases (below 0.01%).

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
    """A model of the library by name ("deepseek_r1"), or a user's own by path: a .toml file, a config.json of Hugging
    Face or the folder that has one. Raises as `load_machine` does."""
    own = paths.own_path(name)
    if own.suffix == ".json" or (own.is_dir() and str(name) not in paths.names("workloads/models")):
        return read_config(own)
    path = paths.find("workloads/models", name)
    return kept("model", path, lambda: [path], lambda: checked(read(path), str(path)))


def read_config(path: str | Path) -> ModelSpec:
    """The model that a Hugging Face config.json describes (or the one in a folder), each number with its key as source.

    SpecError names file, key and value of all that is missing or wrong, and of what cannot be expressed: other
    linear attention than the gated delta rule, encoders, unknown kinds of models and of quantisation.
    """
    file = config_file(paths.own_path(path))
    tables = config_tables(file)
    try:
        return checked(tables, str(file))
    except SpecError as error:
        raise SpecError([in_words_of_config(one, tables) for one in error.lines]) from None


def override_model(spec: ModelSpec, changes: Mapping[str, str | Quantity]) -> ModelSpec:
    """The model with some numbers replaced: {"shapes.layers": "4"}; SpecError as `override` of a machine."""
    return overridden(spec, changes, checked) if changes else spec


def shapes_of(spec: ModelSpec) -> ModelShapes:
    """The plain numbers of a model's file; InputError where `ModelShapes` cannot express it."""
    given = {name: getattr(spec.shapes, name) for name in ModelShapesSpec.model_fields}
    if given["routed_experts"] is None:
        raise InputError(f"{spec.name} has no routed experts (shapes.routed_experts), and this program is for a "
                         "mixture of experts")
    counts = {name: number.count if number is not None else 0 for name, number in given.items()}
    beyond = [name for name in BEYOND_SHAPES if counts[name] > (name == "moe_every")]
    if counts["kv_lora"] and not counts["q_lora"]:
        beyond.append("q_lora (not given)")
    if beyond:
        raise InputError(f"{spec.name} has shapes that this program does not know: {', '.join(beyond)}")
    if counts["head_dim"]:
        counts |= dict.fromkeys(FIELDS_OF["head_dim"], counts["head_dim"])
    plain = {field.name for field in fields(ModelShapes)}
    return ModelShapes(spec.name, **{name: number for name, number in counts.items() if name in plain})


def load_shapes(name: str | Path) -> ModelShapes:
    """The plain numbers of a model, by name or path; raises as `load_model` and `shapes_of` do."""
    return shapes_of(load_model(name))
