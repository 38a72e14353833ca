"""What the fullest rank keeps in memory: derived from what modules declare, the mesh, and the tokens in flight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from simulator.model.layout import split
from simulator.model.linear_attention import GatedDelta
from simulator.model.transformer import (
    Attention,
    Experts,
    Grouped,
    Latent,
    Layer,
    Model,
    draft_weights,
    end_weights,
    kv_bytes,
    layer_weights,
    weight_bytes,
    weight_dtype,
)
from simulator.model.weight import Weight
from simulator.parallel.mesh import Mesh, Role

Item = tuple[str, str, float]  # name, category, bytes on one rank
STATES = "states of linear attention"
TITLES = {
    "attention": "attention", "dense": "dense FFN", "gate": "router", "experts": "routed experts",
    "shared": "shared experts", "embedding": "embedding", "head": "LM head", "draft": "draft projection",
}  # fmt: skip


def stages_of(model: Model, mesh: Mesh) -> list[tuple[int, ...]]:
    """The numbers of the layers of each pipeline stage: neighbours, as many each as can be, the first ones more."""
    found, first = [], 0
    for count in split(len(model.layers), mesh.pp):
        found.append(tuple(range(first, first + count)))
        first += count
    return found


@dataclass(frozen=True)
class Load:
    """What a data-parallel group has at most. held: tokens in the cache of each request of the fullest one. tokens,
    sampled: of one pass. drafts: whether the MTP layers are loaded."""

    held: Sequence[int]
    tokens: int
    sampled: int
    drafts: bool


def fullest_rank(model: Model, mesh: Mesh, load: Load, gathered: Mapping[str, int], besides: Sequence[Item],
                 buffers: Callable[[Experts, int], list[Item]]) -> list[Item]:
    """What the fullest rank keeps: one of the first or the last stage, of each role. gathered: as of `weights_of`, and
    besides: what that needs; buffers: those of an exchange for so many tokens of a rank."""
    experts = next((one.feed_forward for one in model.layers if isinstance(one.feed_forward, Experts)), None)
    own = -(-load.tokens // mesh.tensor)

    def items(stage: int, role: Role) -> list[Item]:
        found = [*weights_of(model, mesh, stage, load.drafts, gathered=gathered, role=role), *besides]
        if role != "experts":
            found.append((f"cache, {model.precision.kv}", "KV", cache_bytes(model, mesh, load.held, stage,
                                                                                   load.drafts)))  # fmt: skip
            if states := state_bytes(_local(model, mesh, stage)):
                found.append((f"{STATES}, {model.precision.state}", "KV", len(load.held) * states))
        needed = activation_bytes(model, mesh, load.tokens, load.sampled, role)
        found.append(("activations of one pass", "activations", needed))
        if experts is None:
            return found
        return [*found, *buffers(experts, -(-own * mesh.attending // mesh.apart) if role == "experts" else own)]

    return max((items(stage, role) for stage in {0, mesh.pp - 1} for role in mesh.roles),
               key=lambda found: sum(size for _, _, size in found))


def weights_of(model: Model, mesh: Mesh, stage: int, drafts: bool, absorbed: bool = True,
               gathered: Mapping[str, int] = MappingProxyType({}), role: Role = "all") -> list[Item]:
    """Weights of one rank of a stage with this role. drafts: whether the MTP layers are loaded, on the last stage.
    absorbed: whether latent attention keeps its up-projection once more, for decode. gathered: weights by name of which
    a rank keeps one share of so many, and gathers the others when they are used."""
    sizes: dict[str, float] = defaultdict(float)
    layers = [model.layers[number] for number in stages_of(model, mesh)[stage]]
    for weight in _of_role(_kept(model, mesh, stage, layers), role):
        kept = _local_bytes(weight, model, mesh) / gathered.get(weight.name, 1)
        sizes[TITLES[weight.name.partition(".")[0]]] += kept
    if drafts and stage == mesh.pp - 1:
        for layer in model.drafts:
            for weight in _of_role((*draft_weights(model), *layer_weights(layer, model.hidden)), role):
                elements = _local_elements(weight, mesh)
                sizes["draft layers"] += weight_bytes(model.precision.drafts, elements)
    again = sum(_absorbed_bytes(layer.attention, mesh) for layer in layers) * absorbed
    if again and role != "experts":
        sizes["attention: absorbed kv_b, BF16"] = again
    return [(title, "weights", size) for title, size in sizes.items() if size]


def _kept(model: Model, mesh: Mesh, stage: int, layers: Sequence[Layer]) -> Iterator[Weight]:
    """The weights of a stage: its layers, the embedding on the first and the head on the last one."""
    for layer in layers:
        yield from layer_weights(layer, model.hidden)
    for weight in end_weights(model):
        first, last = stage == 0, stage == mesh.pp - 1
        if (first if weight.name == "embedding" else last) or (model.tied and last):
            yield weight


def _of_role(weights: Iterable[Weight], role: Role) -> Iterator[Weight]:
    """Routed experts, or all other modules, or both."""
    return (one for one in weights if role == "all" or (one.shard == "experts") == (role == "experts"))


def _local_bytes(weight: Weight, model: Model, mesh: Mesh) -> float:
    return weight_bytes(weight_dtype(weight, model.precision), _local_elements(weight, mesh))


def _local_elements(weight: Weight, mesh: Mesh) -> float:
    """Elements of a weight on one rank."""
    module = weight.name.partition(".")[0]
    if weight.shard == "experts":
        copies = -(-weight.copies // mesh.routed_places) + mesh.redundant
        return weight.elements / weight.copies * copies / (mesh.expert_tensor if weight.inputs > 1 else 1)
    if weight.shard == "kv_heads":
        return weight.elements / weight.copies * max(weight.copies // mesh.tp, 1)
    if weight.shard == "vocabulary":
        return weight.elements / mesh.split(module)
    if module == "shared" and mesh.shared_places:
        return 0.0  # on ranks of its own
    if not weight.shard:
        return weight.elements
    if weight.name == "attention.o":
        return weight.elements / mesh.split("o_proj")
    return weight.elements / (mesh.tp if module == "attention" else mesh.split(module))


def _absorbed_bytes(attention: Attention, mesh: Mesh) -> float:
    """The key/value up-projection of latent attention once more, as both products of decode want it (SGLang, vLLM)."""
    if not isinstance(attention, Latent):
        return 0.0
    return 2.0 * attention.kv_lora * attention.heads * (attention.nope_dim + attention.v_dim) / mesh.tp


def cache_bytes(model: Model, mesh: Mesh, tokens: Sequence[int], stage: int = 0, drafts: bool = False) -> float:
    """Bytes of the cache of one rank for requests with so many tokens each; heads that run out are kept twice. drafts:
    with that of the MTP layers, on the last stage."""
    own = _local(model, mesh, stage, model.drafts if drafts and stage == mesh.pp - 1 else ())
    counts: dict[int, int] = defaultdict(int)
    for held in tokens:
        counts[-(-held // mesh.cp)] += 1
    return float(sum(kv_bytes(own, held) * count for held, count in counts.items()))


def state_bytes(model: Model) -> float:
    """Bytes of a request beside that cache, whatever its context: states of linear attention, and the last tokens of
    its convolutions in BF16."""
    linear = [layer.attention for layer in model.layers if isinstance(layer.attention, GatedDelta)]
    return sum(weight_bytes(model.precision.state, one.state_values) + 2.0 * one.conv_values for one in linear)


def _local(model: Model, mesh: Mesh, stage: int, behind: Sequence[Layer] = ()) -> Model:
    """The layers of a stage, and those `behind` it, with the heads of one rank."""
    layers = (*(model.layers[number] for number in stages_of(model, mesh)[stage]), *behind)
    return replace(model, layers=tuple(replace(one, attention=_local_cache(one.attention, mesh)) for one in layers))


def _local_cache(attention: Attention, mesh: Mesh) -> Attention:
    if isinstance(attention, GatedDelta):
        return attention.on(mesh.tp)
    if not isinstance(attention, Grouped):
        return attention
    return replace(attention, kv_heads=max(attention.kv_heads // mesh.tp, 1))


def activation_bytes(model: Model, mesh: Mesh, tokens: int, sampled: int, role: Role = "all") -> float:
    """What one forward pass of so many tokens of every data-parallel group needs at once: hidden state, residual, its
    widest kernel, and logits; on ranks of experts alone the rows of a layer."""
    widest = max(_width(layer, model.hidden, mesh, role) for layer in model.layers)
    if role == "experts":
        return 2.0 * tokens * mesh.dp / mesh.ep * widest
    logits = 4.0 * sampled * model.vocabulary / mesh.split("head")
    return 2.0 * tokens * (2 * model.hidden + widest) + logits


def _width(layer: Layer, hidden: int, mesh: Mesh, role: Role) -> float:
    """Values per token of the widest piece of a layer on one rank, what it reads and what it gives."""
    attention, ffn = layer.attention, layer.feed_forward
    inside = _attention_width(attention) / mesh.tp if role != "experts" else 0.0
    if isinstance(ffn, Experts):  # rows as wide as the hidden state come in and go out
        between = 3 * ffn.intermediate / mesh.expert_tensor if role != "attention" else 0.0
        return max(inside, ffn.per_token * (2 * hidden + between))
    return max(inside, 3 * ffn.intermediate / mesh.split("dense") if role != "experts" else 0.0)


def _attention_width(attention: Attention) -> float:
    """Values per token of the widest kernel of attention, of all ranks."""
    if isinstance(attention, GatedDelta):
        return 2.0 * attention.projected
    size = attention.head_dim if isinstance(attention, Grouped) else attention.nope_dim + attention.rope_dim
    return 4.0 * attention.heads * size
