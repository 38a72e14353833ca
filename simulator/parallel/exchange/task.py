"""What every exchange knows of the layer and micro-batch that it serves, and what it launches where ranks differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal, Protocol

from simulator.errors import InputError
from simulator.model.expert_load import ExpertLoad
from simulator.model.transformer import Experts, Model
from simulator.parallel.border import Engines, Form
from simulator.parallel.mesh import Mesh, place_of
from simulator.parallel.routed import Routed, Routing, Together, routed, together
from simulator.program.rank import Rank
from simulator.program.task import Collective
from simulator.stack.stacks import Kernels, Stack, labelled


@dataclass(frozen=True)
class ExchangeSettings:
    """name: of the way (`ways`). engine, algorithm: what drives dispatch and combine, and how they go about it ("": as
    all collectives); combine_engine: of combine alone. slot_bytes: of a written row beside its values. skew, seed: of
    the routing. draws: rows are drawn for each source (`routed.Routed`), or for all together (`routed.Together`);
    placement: of experts on places in these (`ExpertLoad`).
    """

    name: str
    engine: str = ""
    skew: float | None = None
    seed: int = 0
    algorithm: str = ""
    combine_engine: str = ""
    slot_bytes: float = 0.0
    draws: Literal["by_source", "together"] = "by_source"
    placement: Literal["in_order", "eplb"] = "eplb"


@dataclass(frozen=True)
class ExpertTask:
    """One MoE layer of one micro-batch on one rank.

    number: of the micro-batch. tokens: of every data-parallel group, in order.
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

    @property
    def via(self) -> str:
        """What drives dispatch and combine."""
        return self.settings.engine or self.engines.engine

    @property
    def moving(self) -> Engines:
        """The same with how it goes about it, for collectives of all tokens."""
        if not self.settings.engine and not self.settings.algorithm:
            return self.engines
        return replace(self.engines, engine=self.via, algorithm=self.settings.algorithm or self.engines.algorithm)

    @property
    def own(self) -> tuple[int, ...]:
        """Tokens that each rank of a stage holds of its group's: an equal share of them."""
        return tuple(-(-tokens // self.mesh.tensor) for tokens in self.tokens for _ in range(self.mesh.tensor))

    @property
    def copies(self) -> int:
        """Ranks that a token goes to: those of its experts, and of the shared one where that has ranks of its own."""
        return self.experts.per_token + (self.mesh.shared_places > 0)

    def routed(self, tokens: tuple[int, ...], group: int = 0) -> Routed | Together:
        """The routing of so many tokens of every source. group: of those that exchange tokens among themselves."""
        mesh, how = self.mesh, self.settings
        if how.draws == "together":
            load = ExpertLoad(self.experts, mesh.routed_places, mesh.shared_places, how.placement, how.skew, how.seed,
                              mesh.redundant)  # fmt: skip
            drawn = (self.layer, self.number, group) if how.skew is not None else (0, 0, 0)
            return together(load, tokens, *drawn)
        routing = Routing(how.skew, how.seed, mesh.routed_places, mesh.redundant, mesh.shared_places)
        return routed(self.experts, tokens, routing, self.layer, self.number)

    def rows_of(self, tokens: tuple[int, ...]) -> Callable[[int], tuple[int, ...]]:
        """By rank: rows for each of its expert slots."""
        of_group = cache(lambda group: self.routed(tokens, group).rows)
        return lambda rank: of_group(rank // self.mesh.ranks)[place_of(self.mesh, rank)]

    @property
    def uneven(self) -> bool:
        """Whether ranks send or get different rows."""
        return not self.routed(self.own).even

    def launch(self, uneven: bool, works_of: Callable[[int], Kernels | list[tuple[str, Collective]]]) -> None:
        """Works by rank, where they are uneven beyond what the ranks of the shared expert differ in from the others."""
        if not self._of_shared and uneven:  # which of both it is, is asked in any case
            self.npu.launch_all_by_rank(works_of)
            return
        for name, work in works_of(self.npu.first):
            self.npu.launch(work, name)

    @cached_property
    def _of_shared(self) -> bool:
        """Whether this rank is one of the shared expert's; asked only where there are such."""
        return bool(self.mesh.shared_places and self.npu.coordinate("shared_place"))

    def launch_experts(self, tokens: tuple[int, ...], here: Callable[[int], int]) -> None:
        """The local experts of every place on its rows of all sources' tokens. here: tokens of which the rows of so
        many are made; 0 where rows came one by one."""
        shards, rows_of = self.mesh.expert_tensor, self.rows_of(tokens)
        uneven = len(set(self.routed(tokens).rows[: self.mesh.routed_places])) > 1

        @cache
        def kernels(rows: tuple[int, ...]) -> Kernels:
            made = self.stack.experts(self.model, self.experts, here(sum(rows)), rows, shards)
            return labelled(made, self.layer)

        self.launch(uneven, lambda rank: kernels(rows_of(rank)))


class Exchange(Protocol):
    """Tokens to their experts and back."""

    needs: Form
    gives: Form

    def dispatch(self) -> None:
        """To the ranks of their experts."""

    def compute(self) -> None:
        """The experts."""

    def combine(self) -> None:
        """Back to where they came from."""


def check_places(task: ExpertTask, name: str, whole: bool) -> None:
    """InputError where an exchange cannot do with a mesh. whole: it exchanges rows between ranks with whole experts;
    else it has no way for the shared expert alone."""
    mesh = task.mesh
    if whole and mesh.expert_tensor > 1:
        raise InputError(f"exchange {name}: ep={mesh.ep} leaves {mesh.expert_tensor} ranks to split each "
                         f"expert; with ep={mesh.stage} all have whole ones (all_gather and all_reduce take both)")
    if not whole and mesh.shared_places:
        raise InputError(f"exchange {name}: shared_places={mesh.shared_places}: only all_to_all and put_collect bring "
                         "tokens to a shared expert on places of its own")  # fmt: skip
