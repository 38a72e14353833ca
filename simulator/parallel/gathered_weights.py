"""Gathered weights (FlowMLA, Ant Group): a rank keeps 1/n of projections of attention, and gathers them just in time.

Data parallel attention has all of its weights on every rank, which leaves little memory for requests. There are as many
buffers as layers are gathered ahead; when the last reader of a layer's buffer has run, the AllGather of the next layer
that uses this buffer starts on the buffer's own stream, and its readers wait for its end. Meanwhile it holds what its
engine needs of cores and links.

    compute   attend 0 | o 0 |        | attend 1 | o 1 |        | attend 2 | o 2 (waits for the gather of 2) ...
    gather 0                 | gather 2 ................ |
    gather 1                                           | gather 3 ................ |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.errors import InputError
from simulator.model.transformer import Layer, Model, weight_bytes, weight_dtype, weights
from simulator.parallel.ledger import Item
from simulator.parallel.mesh import Mesh
from simulator.program.rank import Event, Rank

GATHER = "attention.gather_shards"
MODULES = {"qkv_a": ("attention.q_a", "attention.kv_a"), "q_b": ("attention.q_b",), "qkv": ("attention.qkv",),
           "o": ("attention.o",)}  # fmt: skip
"""The weights of each module that can be gathered, in the order of their use; its kernel is "attention.MODULE"."""


class Gathering(BaseModel):
    """What is gathered. The group "shards" has the neighbours that share it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    modules: tuple[Literal["qkv_a", "q_b", "qkv", "o"], ...] = Field(
        (), description="projections of which a rank keeps one share (qkv: of grouped-query attention)"
    )
    shards: int = Field(8, gt=1, description="neighbours that share each")
    buffers: int = Field(2, gt=0, description="layers whose gathered weights there is room for")
    engine: str = Field("", description="what drives the gather, in rings (empty: as other collectives)")

    def check(self, model: Model, mesh: Mesh, setting: str, split: str) -> None:
        """InputError, with the key of `modules` and that of what splits heads over ranks: a layer's attention has no
        such module, no rank has the whole of one, or layers lie on several stages, or their parts on different ranks.
        """
        for layer in model.layers:
            there = [module for module in MODULES if _module_bytes(layer, model, module)]
            if unknown := [module for module in self.modules if module not in there]:
                known = ", ".join(there)
                raise InputError(f"{setting} has {', '.join(unknown)}: attention of {model.name} has {known}")
        if self.modules and mesh.tensor > 1:
            what = ", ".join(self.modules)
            raise InputError(f"{setting} has {what}: with {split} every rank has only its heads' part of it")
        if self.modules and (mesh.pp > 1 or mesh.apart):
            axis, value, right = ("apart", mesh.apart, 0) if mesh.apart else ("pp", mesh.pp, 1)
            raise InputError(f"{setting}: layout.{axis} is {value}; it must be {right}")

    def layer_bytes(self, model: Model, layer: Layer) -> float:
        """Of one layer's gathered modules, all shards together."""
        return sum(_module_bytes(layer, model, module) for module in self.modules)

    def kept(self) -> dict[str, int]:
        """Of how many shards a rank keeps one, by weight, as the ledger takes it."""
        return {weight: self.shards for module in self.modules for weight in MODULES[module]}

    def memory(self, model: Model) -> list[Item]:
        """The buffers; a rank's own shard is not in them."""
        largest = max(self.layer_bytes(model, layer) for layer in model.layers)
        size = self.buffers * largest * (self.shards - 1) / self.shards
        return [(f"{self.buffers} buffers for gathered weights", "communication", size)] if size else []


class GatheredWeights:
    """The technique on one rank: gathers for `layers` in the order in which they run, each read by `parts`
    micro-batches."""

    def __init__(self, npu: Rank, gathering: Gathering, model: Model, layers: Sequence[Layer], engine: str,
                 parts: int = 1) -> None:
        self._npu, self._gathering, self._parts, self._engine = npu, gathering, parts, gathering.engine or engine
        self._sizes = [gathering.layer_bytes(model, layer) for layer in layers]
        self._last_kernel = f"attention.{[module for module in MODULES if module in gathering.modules][-1]}"
        self._reads = 0
        self._gathered: list[Event] = []
        for _ in range(gathering.buffers):
            self._gather()

    def before(self, name: str) -> None:
        """Readers wait for their buffer: projections as the attention of their layer begins, o_proj by itself."""
        modules = set(self._gathering.modules)
        if (name == "attention" and modules - {"o"}) or (name == "attention.o" and "o" in modules):
            self._npu.wait(self._gathered[self._reads // self._parts])

    def after(self, name: str) -> None:
        """Behind its last reader a buffer is free."""
        if name == self._last_kernel:
            self._reads += 1
            if self._reads % self._parts == 0:
                self._gather()

    def _gather(self) -> None:
        npu, gathering, number = self._npu, self._gathering, len(self._gathered)
        if number == len(self._sizes):
            return
        last_reader = npu.record()
        with npu.stream(f"gather {number % gathering.buffers}"):
            npu.wait(last_reader)
            shard = round(self._sizes[number] / gathering.shards)
            gathered = npu.group("shards").all_gather(GATHER, shard, self._engine, "ring")
        self._gathered.append(gathered)


def _module_bytes(layer: Layer, model: Model, module: str) -> float:
    """Bytes of one module of a layer's attention; 0 where it has none of that name."""
    return sum(weight_bytes(weight_dtype(one, model.precision), one.elements)
               for one in weights(layer.attention, model.hidden) if one.name in MODULES.get(module, ()))
