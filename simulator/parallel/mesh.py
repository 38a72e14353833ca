"""The mesh of ranks that a model is spread over: named axes, the groups that follow, and what does not divide.

Ranks are numbered from the inside out: tensor, context, data, pipeline. A stage (all ranks but the pipeline's) has
``tp x cp x dp`` ranks; its experts lie on ``ep`` places, and ``tp x cp x dp / ep`` neighbours split each expert. With
``replicas`` a stage is cut into so many blocks that have all experts each. With ``apart`` so many ranks stand behind
those in a stage and hold the routed experts, which the others then do not: ``apart / ep`` neighbours split each expert.

Worked example, tp=2, dp=4, ep=4: eight ranks; attention has four groups of two, (0, 1), (2, 3), ...; experts have four
places of two ranks each, so that ranks 0, 2, 4, 6 exchange tokens with each other, and 1, 3, 5, 7. With dp=6, ep=2,
apart=2 ranks 0 to 5 attend, rank 6 has one half of the experts and rank 7 the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from simulator.errors import InputError
from simulator.model.layout import blocks
from simulator.model.linear_attention import GatedDelta
from simulator.model.transformer import Dense, Experts, Grouped, Model
from simulator.program.world import OfSome

PLACED = ("o_proj", "dense", "shared", "head", "embedding")
Role = Literal["all", "attention", "experts"]
"""What of a layer a rank does: all of it, all but the routed experts, or nothing but them."""


class Mesh(BaseModel):
    """How many ranks share what. The five placements are numbers of neighbours that split a module's weights: 1 keeps a
    copy on every rank; left out, those of a tensor-parallel group split it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tp: PositiveInt = Field(1, description="tensor parallelism: ranks that split the heads of attention")
    cp: PositiveInt = Field(1, description="context parallelism: ranks that split the cached tokens of a request")
    dp: PositiveInt = Field(1, description="data parallelism of attention: groups with requests of their own")
    ep: PositiveInt = Field(1, description="expert parallelism: places of experts; the rest of a stage splits each")
    replicas: PositiveInt = Field(1, description="blocks of a stage that have all experts each, on `ep` places")
    pp: PositiveInt = Field(1, description="pipeline parallelism: stages of neighbouring layers")
    o_proj: PositiveInt | None = Field(None, description="ranks that split the output projection (none: tp x cp)")
    dense: PositiveInt | None = Field(None, description="ranks that split a dense FFN (none: tp x cp)")
    shared: PositiveInt | None = Field(None, description="ranks that split the shared expert (none: tp x cp)")
    head: PositiveInt | None = Field(None, description="ranks that split the LM head (none: tp x cp)")
    embedding: PositiveInt | None = Field(None, description="ranks that split the embedding (none: tp x cp)")
    redundant: int = Field(
        0, ge=0, description="expert slots of each place beyond as many as hold every expert once; what those leave"
        " over holds copies too"
    )
    shared_places: int = Field(
        0, ge=0, description="places of ep, the last ones, that hold the shared expert and no other (0: all have it)"
    )
    apart: int = Field(
        0, ge=0, description="ranks behind the tp x cp x dp of a stage that hold its routed experts, on `ep` places,"
        " and nothing else; the others attend and have none (attention-FFN disaggregation; 0: the same ranks do both)"
    )

    @property
    def tensor(self) -> int:
        """Ranks that work on the same requests: tp x cp."""
        return self.tp * self.cp

    @property
    def attending(self) -> int:
        """Ranks of one pipeline stage that attend: tp x cp x dp."""
        return self.tensor * self.dp

    @property
    def stage(self) -> int:
        """Ranks of one pipeline stage."""
        return self.attending + self.apart

    @property
    def roles(self) -> tuple[Role, ...]:
        """Those that ranks have."""
        return ("attention", "experts") if self.apart else ("all",)

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.stage * self.pp

    @property
    def block(self) -> int:
        """Ranks of a stage that have all experts together."""
        return self.stage // self.replicas

    @property
    def routed_places(self) -> int:
        """Places that hold routed experts."""
        return self.ep - self.shared_places

    @property
    def expert_tensor(self) -> int:
        """Neighbours that split each expert."""
        return max((self.apart or self.block) // self.ep, 1)

    def split(self, module: str) -> int:
        """How many ranks split a placed module's weights."""
        given: int | None = getattr(self, module)
        return self.tensor if given is None else given

    def placed(self, own_tokens: bool) -> Mesh:
        """The same where experts are reached from own tokens (`own_tokens`): the shared expert is whole on every rank,
        if nothing else is said."""
        if own_tokens and self.shared is None and self.tensor > 1:
            return self.model_copy(update={"shared": 1})
        return self

    def words(self) -> str:
        """The axes as `braid step --mesh` takes them."""
        given = {name: getattr(self, name) for name, field in type(self).model_fields.items()
                 if getattr(self, name) != field.default}  # fmt: skip
        return ",".join(f"{name}={value}" for name, value in given.items()) or "tp=1"


def groups_of(mesh: Mesh) -> dict[str, list[tuple[int, ...]]]:
    """The groups of ranks by name.

    world: all. stage: of one pipeline stage. tensor: those that work on the same requests. cp: those of them that
    split the cached tokens of the same heads. block: those that have all experts together; ep: those of them that
    exchange tokens. pipe: counterparts in all stages. o_proj: those that split the output projection, each with what
    a block of neighbours ("heads") has of the heads. dense, shared, head, embedding: those that split the module.
    Where experts are apart, place: those that split each expert; back: as ep, for what comes back; all others but
    world, stage, block, ep and pipe have the ranks that attend.
    """
    ranks, stage, attend, o_proj = mesh.ranks, mesh.stage, mesh.attending * mesh.pp, mesh.split("o_proj")
    of_tokens = {
        "tensor": blocks(attend, mesh.tensor),
        "cp": strided(attend, mesh.tensor, mesh.tp),
        **{name: blocks(attend, mesh.split(name), f"layout.{name}") for name in PLACED},
        "heads": blocks(attend, max(mesh.tensor // o_proj, 1)),
        "o_proj": strided(attend, max(mesh.tensor, o_proj), max(mesh.tensor // o_proj, 1)),
    }
    of_all = {"world": blocks(ranks, ranks), "stage": blocks(ranks, stage), "block": blocks(ranks, mesh.block),
              "pipe": strided(ranks, ranks, stage)}  # fmt: skip
    if not mesh.apart:
        return {**of_all, **of_tokens, "ep": strided(ranks, mesh.block, mesh.expert_tensor)}
    places = {"place": blocks(mesh.apart * mesh.pp, mesh.expert_tensor)}
    return {**of_all, "ep": of_all["block"], "back": of_all["block"], **_of_some(mesh, of_tokens, 0, mesh.attending),
            **_of_some(mesh, places, mesh.attending, mesh.apart)}


def _of_some(mesh: Mesh, groups: Mapping[str, list[tuple[int, ...]]], first: int,
             count: int) -> dict[str, list[tuple[int, ...]]]:
    """Groups of the `count` ranks from `first` on of every stage, which are numbered through in `groups`."""
    ranks = [stage * mesh.stage + first + number for stage in range(mesh.pp) for number in range(count)]
    return {name: OfSome(tuple(ranks[number] for number in members) for members in instances)
            for name, instances in groups.items()}


def node_blocks(mesh: Mesh, node_ranks: int, what: str) -> list[tuple[int, ...]]:
    """The ranks of each node that exchange tokens; InputError, with what needs them, where a block of experts has some
    nodes in part."""
    node = min(node_ranks, mesh.block)
    if mesh.block % node or (mesh.ranks > mesh.block and node_ranks % mesh.block and mesh.block % node_ranks):
        raise InputError(f"{what}: {mesh.block} ranks exchange tokens, and a node has {node_ranks}: they must be whole "
                         f"nodes, or {_divisors(node_ranks)} in one")
    return blocks(mesh.ranks, node)


def strided(ranks: int, size: int, step: int) -> list[tuple[int, ...]]:
    """Of every block of `size` ranks, those `step` apart: strided(8, 4, 2) is [(0, 2), (1, 3), (4, 6), (5, 7)]."""
    return [tuple(range(first + place, first + size, step)) for first in range(0, ranks, size) for place in range(step)]


def coordinates_of(mesh: Mesh, rank: int) -> dict[str, int | str]:
    """Where a rank is: stage, dp, cp, tp, its block of experts, its place among those of an expert exchange, and
    whether that is one of the shared expert's; and its role. Ranks of experts have the numbers of the first that
    attends."""
    inside, place = rank % mesh.stage, place_of(mesh, rank)
    attends = inside if inside < mesh.attending else 0
    return {"stage": rank // mesh.stage, "dp": attends // mesh.tensor, "cp": attends // mesh.tp % mesh.cp,
            "tp": attends % mesh.tp, "block": inside // mesh.block, "place": place,
            "shared_place": int(place >= mesh.routed_places), "role": role_of(mesh, rank)}  # fmt: skip


def role_of(mesh: Mesh, rank: int) -> Role:
    """What of a layer a rank does."""
    if not mesh.apart:
        return "all"
    return "attention" if rank % mesh.stage < mesh.attending else "experts"


def place_of(mesh: Mesh, rank: int) -> int:
    """Among those that have experts; -1 where it has none."""
    if mesh.apart:
        return max((rank % mesh.stage - mesh.attending) // mesh.expert_tensor, -1)
    return rank % mesh.block // mesh.expert_tensor


def check(mesh: Mesh, model: Model) -> None:
    """InputError names everything in which this mesh does not divide, or does not divide this model, and what would."""
    if wrong := [*_own_mistakes(mesh), *_mistakes(mesh, model)]:
        raise InputError("\n".join(f"mesh {mesh.words()}: {one}" for one in wrong))


def _own_mistakes(mesh: Mesh) -> Iterator[str]:
    """Where axes contradict each other."""
    if mesh.apart:
        yield from _apart_mistakes(mesh)
    elif mesh.stage % (mesh.ep * mesh.replicas):
        places = f"ep={mesh.ep} places" + (f" x replicas={mesh.replicas}" if mesh.replicas > 1 else "")
        yield f"{places} do not divide the {mesh.stage} ranks of a stage; {_divisors(mesh.stage)} would"
    if mesh.shared_places >= mesh.ep:
        yield f"shared_places={mesh.shared_places} of ep={mesh.ep} leave no place for routed experts"
    for name in PLACED:
        split, ranks = mesh.split(name), mesh.attending
        if ranks % split:
            which = "of a stage" + (" that attend" if mesh.apart else "")
            yield f"{name}={split} does not divide the {ranks} ranks {which}; {_divisors(ranks)} would"
        elif name == "o_proj" and mesh.tensor > 1 and mesh.tensor % split:
            yield f"{name}={split} does not divide tp x cp = {mesh.tensor}; {_divisors(mesh.tensor)} would"
        elif name != "o_proj" and split not in (1, mesh.tensor) and mesh.tensor > 1:
            yield f"{name}={split}: with tp x cp = {mesh.tensor} it may be 1 or {mesh.tensor}"


def _apart_mistakes(mesh: Mesh) -> Iterator[str]:
    """What does not go with experts on ranks of their own."""
    if mesh.apart % mesh.ep:
        yield (f"ep={mesh.ep} places do not divide the apart={mesh.apart} ranks of experts; {_divisors(mesh.apart)} "
               "would")
    if mesh.replicas > 1:
        yield f"replicas={mesh.replicas}: experts are apart={mesh.apart} once for a stage; leave replicas out"
    if mesh.shared_places:
        yield (f"shared_places={mesh.shared_places}: with apart={mesh.apart} the shared expert is where attention is; "
               "leave shared_places out")


def _mistakes(mesh: Mesh, model: Model) -> Iterator[str]:
    """Where a mesh does not divide a model."""
    mixed = [one.feed_forward for one in model.layers if isinstance(one.feed_forward, Experts)]
    if mesh.shared_places and not all(one.shared_intermediate for one in mixed):
        yield f"shared_places={mesh.shared_places}: {model.name} has no shared expert; leave shared_places out"
    sizes: Mapping[tuple[str, int, str, int], None] = dict.fromkeys(_sizes(mesh, model))
    for axis, ranks, what, size in sizes:
        if size % ranks:
            yield f"{axis}={ranks} does not divide the {size} {what} of {model.name}; {_divisors(size, 64)} would"
    for kv_heads in sorted({one.attention.kv_heads for one in model.layers if isinstance(one.attention, Grouped)}):
        if kv_heads % mesh.tp and mesh.tp % kv_heads:
            yield (f"tp={mesh.tp} neither divides the {kv_heads} heads of keys and values of {model.name}, nor is it a "
                   "multiple of them")
    if mesh.cp > 1 and any(isinstance(one.attention, GatedDelta) for one in model.layers):
        yield f"cp={mesh.cp}: the linear attention of {model.name} is known on whole requests alone; leave cp out"
    if mesh.pp > len(model.layers):
        yield f"pp={mesh.pp} stages are more than the {len(model.layers)} layers of {model.name}"
    if not any(isinstance(layer.feed_forward, Experts) for layer in model.layers):
        yield from (f"{axis}={getattr(mesh, axis)}: {model.name} has no experts; leave {axis} out"
                    for axis, none in (("ep", 1), ("apart", 0)) if getattr(mesh, axis) > none)


def _sizes(mesh: Mesh, model: Model) -> Iterator[tuple[str, int, str, int]]:
    """What is divided by what: axis, ranks, what, size."""
    for layer in (*model.layers, *model.drafts):
        attention, ffn = layer.attention, layer.feed_forward
        yield "tp", mesh.tp, "heads", attention.heads
        if isinstance(attention, GatedDelta):
            yield "tp", mesh.tp, "heads of keys of linear attention", attention.key_heads
        if mesh.cp > 1:
            yield "tp x cp", mesh.tensor, "heads", attention.heads
        if isinstance(ffn, Dense):
            yield "dense", mesh.split("dense"), "columns of the dense FFN", ffn.intermediate
            continue
        shards = "apart / ep" if mesh.apart else "tp x cp x dp / ep / replicas"
        yield shards, mesh.expert_tensor, "columns of an expert", ffn.intermediate
        if ffn.shared_intermediate:
            yield "shared", mesh.split("shared"), "columns of the shared expert", ffn.shared_intermediate


def _divisors(size: int, most: int = 4096) -> str:
    """The numbers that divide a size, in words: "1, 2, 4 or 8"."""
    found = [str(one) for one in range(1, min(size, most) + 1) if not size % one]
    return " or ".join([", ".join(found[:-1]), found[-1]]) if found[1:] else found[0]
