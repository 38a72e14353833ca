"""What every exchange knows of the layer and micro-batch that it serves, and the experts' kernels on its rows."""

from __future__ import annotations

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
    """name: of the way (`ways`). engine: what drives dispatch and combine (empty: as all collectives).

    skew, seed, draw: of the routing (`routed.Routing`). host_reads: values that the host blocks for between counts and
    tokens, as where split sizes are given to an eager All2All (0: sizes stay on the device). own: settings of this way
    alone (None: its defaults). node: ranks that reach each other without network cards.
    """

    name: str
    engine: str = ""
    skew: float | None = None
    seed: int = 0
    host_reads: int = 0
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
        return self.settings.engine or self.engines.engine

    @property
    def own(self) -> tuple[int, ...]:
        """Tokens that each rank of its block of experts holds of its group's: an equal share of them."""
        held = tuple(-(-tokens // self.mesh.tensor) for tokens in self.tokens for _ in range(self.mesh.tensor))
        return held[self._block * self.mesh.block :][: self.mesh.block]

    @property
    def _block(self) -> int:
        """Which block of experts this is; not asked where it makes no difference."""
        if self.mesh.replicas == 1 or (self.settings.skew is None and len(set(self.tokens)) == 1):
            return 0
        block = self.npu.coordinate("block")
        assert isinstance(block, int)
        return block

    def routed(self, tokens: tuple[int, ...]) -> Routed:
        """The routing of so many tokens of every source."""
        routing = Routing(self.settings.skew, self.settings.seed, self.mesh.ep, self.mesh.redundant, self._block,
                          self.settings.draw)
        return routed(self.experts, tokens, routing, self.layer, self.number)

    def launch_experts(self, here: int, rows: tuple[tuple[int, ...], ...]) -> None:
        """The local experts of every place on its rows. here: tokens on a place, of which rows are made (0: rows came
        by themselves)."""
        shards = self.mesh.expert_tensor
        copies = self.experts.shared_intermediate // self.experts.intermediate if fused(self.stack, self.mesh) else 0

        @cache
        def kernels(place: int) -> Kernels:
            each = (*rows[place], *(here,) * copies)
            return self.stack.experts(self.model, self.experts, here, each, shards)

        if self.settings.skew is None:  # as even as can be: all as the fullest
            own = max(range(len(rows)), key=lambda place: sum(rows[place]))
        elif len(set(rows)) > 1 and all(map(sum, rows)):
            self.npu.launch_all_by_rank(lambda rank: kernels(coordinates_of(self.mesh, rank)["place"]))
            return
        else:
            own = 0 if len(set(rows)) == 1 else coordinates_of(self.mesh, self.npu.rank)["place"]  # one without rows
        for name, work in kernels(own):
            self.npu.launch(work, name)


def fused(stack: Stack, mesh: Mesh) -> bool:
    """Whether the shared expert is a choice more of every token: every rank has a slice of every expert."""
    return stack.fuses_shared and mesh.ep == 1


class Exchange(Protocol):
    """Tokens to their experts and back. Where sending and receiving are kernels of their own, each has a step of its
    own, and other work may stand between the two; else `arrive` and `collect` are nothing. by_row: each token goes once
    to every expert of its own, in rows sorted by expert; else whole tokens go, and sums come back."""

    needs: Form
    gives: Form
    by_row: bool

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
