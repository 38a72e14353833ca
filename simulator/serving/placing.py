"""Where the experts of an engine are, and what moves when they are placed anew.

Every layer is placed for itself by `model.eplb`: globally, or by nodes where tokens keep to groups of experts that
nodes divide (EPLB, deepseek-ai/EPLB). An expert moves to a place that did not have it, from one that had: receivers are
dealt to senders in turn. What stays on its place moves nothing, whatever its slot (vLLM, `rebalance_execute.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from simulator import np
from simulator.errors import InputError
from simulator.model.eplb import Placement, rebalance, spread
from simulator.model.expert_state import ExpertState, imbalance_of
from simulator.model.transformer import Experts, Model, layer_weights, weight_bytes, weight_dtype
from simulator.parallel.mesh import Mesh, groups_of
from simulator.serving.popularity import Popularity
from simulator.serving.settings import ExpertSettings, Instances

Placements = tuple[Placement, ...]
Moves = Mapping[tuple[int, int], int]
"""Experts of a layer by (place that sends, place that receives)."""


class Placing:
    """Of the experts of one engine. InputError where its step has none that are drawn, or places them in a way that is
    not known here."""

    def __init__(self, settings: Instances) -> None:
        _check(settings)
        step = settings.step
        self._mesh, self._model = _mesh(settings), _model(settings)
        self.layers = _layers(self._model)
        first = self._model.layers[self.layers[0]].feed_forward
        assert isinstance(first, Experts)
        self.experts, self._places, self.skew = first, self._mesh.routed_places, float(step.routing.skew or 0.0)
        nodes = self._mesh.block // step.machine_spec().node_dies
        self._nodes = nodes if nodes > 1 and not self._places % nodes else 1

    def in_order(self) -> Placements:
        """As a checkpoint has them; redundant slots hold the first ones again."""
        return (spread(self.experts.routed, self._places, self._mesh.redundant),) * len(self.layers)

    def placed(self, loads: np.Array) -> Placements:
        """For loads [layer, expert]."""
        return tuple(rebalance(own, self._places, self._mesh.redundant, self._nodes, self.experts.groups or 1)
                     for own in loads.tolist())  # fmt: skip

    def flows(self, row: int, moves: Moves) -> dict[tuple[int, int], float]:
        """Bytes from rank to rank of the engine for moves of a layer: the neighbours that split an expert each send
        their part."""
        each = self.expert_bytes[row] / self._mesh.expert_tensor
        return {(members[source], members[target]): count * each
                for members in groups_of(self._mesh)["ep"] for (source, target), count in moves.items()}  # fmt: skip

    @cached_property
    def expert_bytes(self) -> tuple[float, ...]:
        """Of one expert of every layer."""
        model = self._model
        return tuple(sum(weight_bytes(weight_dtype(one, model.precision), one.elements / one.copies)
                         for one in layer_weights(model.layers[number], model.hidden) if one.shard == "experts")
                     for number in self.layers)  # fmt: skip

    @property
    def buffer_bytes(self) -> float:
        """Where what comes to a rank waits: a buffer for its experts of one layer (vLLM, `eplb_state.py`)."""
        slots = -(-self.experts.routed // self._places) + self._mesh.redundant
        return slots * max(self.expert_bytes) / self._mesh.expert_tensor


def without_ranks(settings: Instances, gone: Sequence[int], seed: int) -> ExpertState | None:
    """What a step asks of experts that is taken without these ranks: each expert from replicas elsewhere, as popular as
    `routing.skew` says, drawn with the seed. None where an engine cannot go on without them: an expert has no replica
    on another rank (`step.layout.redundant`), or its experts are not placed over all its ranks, one after the other."""
    mesh, step = settings.step.layout, settings.step
    plain = isinstance(mesh, Mesh) and mesh.ep > 1 and mesh.pp == 1 and not mesh.apart and not mesh.shared_places
    if not plain or settings.experts.change or settings.scheduling.shared_queue:
        return None
    layers, members = _layers(_model(settings)), groups_of(_mesh(settings))["ep"]
    ranks = step.cards * step.machine_spec().dies_per_card.count
    if not layers or len(members) != 1 or len(members[0]) != ranks:
        return None
    experts = _model(settings).layers[layers[0]].feed_forward
    assert isinstance(experts, Experts)
    away = {members[0].index(rank) for rank in gone}
    slots = spread(experts.routed, _mesh(settings).routed_places, _mesh(settings).redundant).slots
    left = Placement(tuple(() if place in away else own for place, own in enumerate(slots)))
    if len(left.copies) < experts.routed:
        return None
    asked = Popularity(len(layers), experts.routed, float(step.routing.skew or 0.0), 0.0, seed).at(0)
    worst = [imbalance_of(own, left) for own in asked.tolist()]
    return ExpertState(f"without {','.join(map(str, sorted(away)))}, seed {seed}", layers, asked, (left,) * len(layers),
                       sum(worst) / len(worst))  # fmt: skip


def moves_between(before: Placement, after: Placement) -> Moves:
    """What comes to places that did not have it; every expert is somewhere before."""
    senders: dict[int, list[int]] = {}
    for place, slots in enumerate(before.slots):
        for expert in dict.fromkeys(slots):
            senders.setdefault(expert, []).append(place)
    found, turns = Counter[tuple[int, int]](), Counter[int]()
    for place, slots in enumerate(after.slots):
        for expert in dict.fromkeys(slots):
            if place not in senders[expert]:
                found[senders[expert][turns[expert] % len(senders[expert])], place] += 1
                turns[expert] += 1
    return found


def _check(settings: Instances) -> None:
    """InputError says what of a step does not go with experts over time."""
    step = settings.step
    left = dict(ExpertSettings())
    given = ", ".join(f"experts.{name} is {value}" for name, value in settings.experts if value != left[name])
    wrong = f"{step.name}: {given}, but "
    if not isinstance(step.layout, Mesh) or "knobs.exchange" not in step.settings():
        raise InputError(f"{wrong}its step is no transformer:... scenario: only there popularities and placements of "
                         "every layer can be given")
    if not _layers(_model(settings)):
        raise InputError(f"{wrong}{step.transformer().name} has no routed experts: leave experts... out")
    if not step.routing.skew:
        skew = "none" if step.routing.skew is None else step.routing.skew
        raise InputError(f"{wrong}step.routing.skew is {skew}: all experts are as popular as each other; more "
                         "than 0 is right, such as 0.5")
    mesh = _mesh(settings)
    if mesh.routed_places < 2:
        raise InputError(f"{wrong}step.layout.ep is {mesh.ep}: every rank has all experts; 2 places or more are right")
    for axis, none in (("pp", 1), ("apart", 0)):
        if getattr(mesh, axis) > none:
            raise InputError(f"{wrong}step.layout.{axis} is {getattr(mesh, axis)}: it must be {none}")


def _mesh(settings: Instances) -> Mesh:
    mesh = settings.step.layout
    assert isinstance(mesh, Mesh)
    return mesh


def _model(settings: Instances) -> Model:
    """In the precision of the step."""
    model: Model = settings.step.knobs.model_of(settings.step.transformer())  # type: ignore[attr-defined]
    return model


def _layers(model: Model) -> tuple[int, ...]:
    """Numbers of the layers with routed experts; InputError where these differ."""
    found = [number for number, layer in enumerate(model.layers) if isinstance(layer.feed_forward, Experts)]
    if any(model.layers[one].feed_forward != model.layers[other].feed_forward for one, other in pairwise(found)):
        raise InputError(f"{model.name}: its layers have different experts: experts... takes those that are alike")
    return tuple(found)
