"""What every exchange knows of the layer and micro-batch that it serves, and the experts' kernels on its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from simulator.model.transformer import Experts, Model
from simulator.parallel.border import Engines, Form
from simulator.parallel.mesh import Mesh, coordinates_of
from simulator.parallel.routed import Draw, Routed, Routing, routed
from simulator.program.rank import Rank
from simulator.stack.stacks import Kernels, Stack


@dataclass(frozen=True)
class ExchangeSettings:
    """name: of the way (`ways`). engine: what drives dispatch and combine ("": as all collectives). skew, seed, draw:
    of the routing (`routed.Routing`). own: settings of this way alone (None: its defaults). node: ranks that reach each
    other without network cards."""

    name: str
    engine: str = ""
    skew: float | None = None
    seed: int = 0
    draw: Draw | None = None
    own: Any = None
    node: int = 1


@dataclass(frozen=True)
class ExpertTask:
    """One MoE layer of one micro-batch on one rank.

    number: of the micro-batch. tokens: of every data-parallel group, in order. label: the micro-batch as tasks are
    labelled with it (-1: not at all).
    """

    npu: Rank
    stack: Stack
    model: Model
    experts: Experts
    mesh: Mesh
    engines: Engines
    settings: ExchangeSettings
    layer: int
    number: int
    tokens: tuple[int, ...]
    label: int = -1

    @property
    def via(self) -> str:
        """What drives dispatch and combine."""
        return self.settings.engine or self.engines.large

    @property
    def own(self) -> tuple[int, ...]:
        """Tokens that each rank of a stage holds of its group's: an equal share of them."""
        return tuple(-(-tokens // self.mesh.tensor) for tokens in self.tokens for _ in range(self.mesh.tensor))

    def routed(self, tokens: tuple[int, ...]) -> Routed:
        """The routing of so many tokens of every source."""
        routing = Routing(self.settings.skew, self.settings.seed, self.mesh.ep, self.mesh.redundant,
                          self.settings.draw)
        return routed(self.experts, tokens, routing, self.layer, self.number)

    def launch_experts(self, here: Callable[[int], int], rows: tuple[tuple[int, ...], ...]) -> None:
        """The local experts of every place on its rows. here: tokens on a place, of which rows are made."""
        shards = self.mesh.expert_tensor

        @cache
        def kernels(place: int) -> Kernels:
            return self.stack.experts(self.model, self.experts, here(place), rows[place], shards)

        if len(set(rows)) == 1:
            for name, work in kernels(0):
                self.npu.launch(work, name)
        else:
            self.npu.launch_all_by_rank(lambda rank: kernels(coordinates_of(self.mesh, rank)["place"]))


class Exchange(Protocol):
    """Tokens to their experts and back. Where sending and receiving are kernels of their own, each has a step of its
    own, and other work may stand between the two; else `arrive` and `collect` are nothing."""

    needs: Form
    gives: Form

    def dispatch(self) -> None:
        """To the ranks of their experts."""

    def arrive(self) -> None:
        """What follows in this stream has the tokens that were sent here."""

    def compute(self) -> None:
        """The experts."""

    def combine(self) -> None:
        """Back to where they came from."""

    def collect(self) -> None:
        """What follows in this stream has the results of its own tokens."""
