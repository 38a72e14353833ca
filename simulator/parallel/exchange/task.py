"""What every exchange knows of the layer and micro-batch that it serves, and the experts' kernels on its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any, Literal, Protocol

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.model.expert_load import ExpertLoad
from simulator.model.expert_state import ExpertState
from simulator.model.layout import split
from simulator.model.transformer import Experts, Model
from simulator.parallel.border import OF_ALL_TO_ALL, Engines, Form
from simulator.parallel.mesh import Mesh, place_of
from simulator.parallel.routed import Draw, Routed, Routing, Together, routed, together
from simulator.program.rank import Rank
from simulator.program.task import Collective, SizeTable
from simulator.stack.stacks import Kernels, Stack, labelled


@dataclass(frozen=True)
class ExchangeSettings:
    """name: of the way (`ways`). engine, algorithm: what drives dispatch and combine, and how it goes about it (empty:
    as all collectives). combine_engine: of combine alone. slot_bytes: of a written row beside its values.

    skew, seed, draw: of the routing (`routed.Routing`). together: rows are drawn for all sources at once
    (`routed.Together`), and experts placed in order, or replicated and packed by their popularity. state: what experts
    are asked for and where they are, instead of drawn popularities (`routed.Routing`). host_reads: values
    that the host blocks for between counts and tokens, as where split sizes are given to an eager All2All (0: sizes
    stay on the device). own: settings of this way alone (None: its defaults). node: ranks that reach each other without
    network cards. ported: ranks that reach each other through one port each.
    """

    name: str
    engine: str = ""
    skew: float | None = None
    seed: int = 0
    host_reads: int = 0
    draw: Draw | None = None
    own: Any = None
    node: int = 1
    ported: int = 1
    algorithm: str = ""
    combine_engine: str = ""
    slot_bytes: float = 0.0
    together: Literal["", "in_order", "eplb"] = ""
    state: ExpertState | None = None


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
    def moving(self) -> Engines:
        """The same with how it goes about it, for collectives of all tokens."""
        how = self.settings.algorithm or self.engines.algorithm
        return replace(self.engines, engine=self.via, algorithm=how)

    @property
    def of_rows(self) -> str:
        """How an All2All of rows goes about it: all at once, but over nodes peer by peer where other collectives go
        node by node."""
        return OF_ALL_TO_ALL.get(how := self.moving.algorithm, "direct" if how == "auto" else how)

    @property
    def own(self) -> tuple[int, ...]:
        """Tokens that each rank of its block of experts holds of its group's: an equal share of them. Those that attend
        alone, where experts are apart."""
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

    @property
    def copies(self) -> int:
        """Ranks that a token goes to: those of its experts, and of the shared one where that has ranks of its own."""
        return self.experts.per_token + bool(self.mesh.shared_places and self.experts.shared_intermediate)

    def routed(self, tokens: tuple[int, ...]) -> Routed | Together:
        """The routing of so many tokens of every source."""
        mesh, how = self.mesh, self.settings
        if how.together:
            load = ExpertLoad(self.experts, mesh.routed_places, mesh.shared_places, how.together, how.skew, how.seed,
                              mesh.redundant)  # fmt: skip
            return together(load, tokens, *((self.layer, self.number, self._block) if how.skew is not None else (0, 0)))
        routing = Routing(how.skew, how.seed, mesh.routed_places, mesh.redundant, self._block, how.draw,
                          mesh.shared_places, how.state)  # fmt: skip
        return routed(self.experts, tokens, routing, self.layer, self.number)

    def table(self, sizes: SizeTable) -> SizeTable:
        """What every source sends to every place, as what every rank of the exchange sends to every other one: where
        experts are apart those that attend send to those of experts, and the neighbours of a place get equal shares."""
        mesh = self.mesh
        if not mesh.apart:
            return sizes
        none, nothing = (0,) * mesh.attending, ((0,) * mesh.block,) * mesh.apart
        sent = ((*none, *chain.from_iterable(split(size, mesh.expert_tensor) for size in row)) for row in sizes)
        return (*sent, *nothing)

    @property
    def alike(self) -> bool:
        """Whether all ranks send and receive the same, seen from their own places."""
        routed, mesh = self.routed(self.own), self.mesh
        return routed.even and len(set(routed.rows)) == 1 and not (mesh.apart or mesh.shared_places)

    @property
    def of_shared(self) -> bool:
        """Whether this rank is one of the shared expert's; asked only where there are such."""
        return bool(self.mesh.shared_places and self.npu.coordinate("shared_place"))

    def launch(self, uneven: bool, works_of: Callable[[int], Kernels | list[tuple[str, Collective]]]) -> None:
        """Works of every place. uneven: they differ beyond what those of the shared expert have of their own."""
        of_shared = self.of_shared
        if uneven and not of_shared:
            self.npu.launch_all_by_rank(lambda rank: works_of(place_of(self.mesh, rank)))
            return
        for name, work in works_of(self.mesh.routed_places if of_shared else 0):
            self.npu.launch(work, name)

    def launch_experts(self, here: int, rows: tuple[tuple[int, ...], ...]) -> None:
        """The local experts of every place on its rows. here: tokens on a place, of which rows are made (0: rows came
        by themselves)."""
        shards = self.mesh.expert_tensor
        copies = self.experts.shared_intermediate // self.experts.intermediate if fused(self.stack, self.mesh) else 0

        @cache
        def kernels(place: int) -> list[tuple[str, Work | Collective]]:
            each = (*rows[place], *(here,) * copies)
            own = labelled(self.stack.experts(self.model, self.experts, here, each, shards), self.layer)
            return self._among_neighbours(sum(each), own)

        if self.of_shared:
            own = self.mesh.routed_places
        elif self.settings.skew is None:  # as even as can be: all as the fullest
            own = max(range(self.mesh.routed_places), key=lambda place: sum(rows[place]))
        elif len(set(rows)) > 1 and (all(map(sum, rows)) or self._has(rows)):
            self.npu.launch_all_by_rank(lambda rank: kernels(place_of(self.mesh, rank)))
            return
        else:  # all are alike, or all that have no rows
            own = min(range(self.mesh.routed_places), key=lambda place: sum(rows[place]))
        for name, work in kernels(own):
            self.npu.launch(work, name)

    def _has(self, rows: tuple[tuple[int, ...], ...]) -> bool:
        """Whether this rank's place has any of them; only that is asked, so that all that have share a recording."""
        return self.npu.kind("rank", lambda rank: sum(rows[place_of(self.mesh, rank)]) > 0)

    def launch_experts_of(self, place: int, rows: tuple[tuple[int, ...], ...]) -> None:
        """The local experts of one place on rows that came by themselves, where every rank records for itself."""
        kernels = self.stack.experts(self.model, self.experts, 0, rows[place], self.mesh.expert_tensor)
        for name, work in self._among_neighbours(sum(rows[place]), labelled(kernels, self.layer)):
            self.npu.launch(work, name)

    def _among_neighbours(self, rows: int, kernels: Kernels) -> list[tuple[str, Work | Collective]]:
        """A place's kernels on so many rows, of which each of its neighbours has got a share: they gather all of them,
        and each gets the sums of its own."""
        shards, found = self.mesh.expert_tensor, list[tuple[str, Work | Collective]](kernels)
        if not self.mesh.apart or shards == 1 or not rows:
            return found

        def border(kind: str, row_bytes: float) -> Collective:
            engine, algorithm = self.engines.of(kind, 0.0, shards)
            return Collective(kind, "place", engine, round(-(-rows // shards) * row_bytes), algorithm=algorithm)

        gathered = border("all_gather", self.model.hidden * self.stack.wire_bytes + self.stack.scale_bytes)
        summed = border("reduce_scatter", 2.0 * self.model.hidden)
        return [("experts.gather", gathered), *found, ("experts.reduce_scatter", summed)]


def check_no_shared_places(task: ExpertTask, name: str) -> None:
    """InputError where the shared expert has places of its own, which only rows reach."""
    if task.mesh.shared_places:
        raise InputError(f"exchange {name}: shared_places={task.mesh.shared_places}: only exchanges of rows "
                         "(all_to_all, sorted_rows, put_collect, proxy, generic_proxy, deepep_ll) bring tokens to a "
                         "shared expert on places of its own")  # fmt: skip


def fused(stack: Stack, mesh: Mesh) -> bool:
    """Whether the shared expert is a choice more of every token: every rank has a slice of every expert."""
    return stack.fuses_shared and mesh.ep == 1 and not mesh.apart


class Exchange(Protocol):
    """Tokens to their experts and back. Where sending and receiving are kernels of their own, each has a step of its
    own, and other work may stand between the two; else `arrive` and `collect` are nothing. by_row: each token goes once
    to every expert of its own, in rows sorted by expert; else whole tokens go, and sums come back. apart: experts may
    be on ranks that have no tokens of their own; to those nothing comes back."""

    needs: Form
    gives: Form
    by_row: bool
    apart: bool = False

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
