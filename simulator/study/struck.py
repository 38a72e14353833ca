"""A run with faults beside the same run without: what each fault cost, when it was noticed, when all was as before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator import np
from simulator.collective.lowering import Lowering
from simulator.errors import InputError, RunError
from simulator.fabric.graph import Fabric
from simulator.fabric.level import die
from simulator.observe.lateness import Felt, Lateness, lateness
from simulator.observe.trace import Flight
from simulator.replay.faults import card_of, drawn, ranks_of, schedules_of
from simulator.spec.faults import Fault
from simulator.study.scenario import Scenario
from simulator.study.simulate import Prepared, Progress, Result, prepare, simulate
from simulator.symmetry.ties import WorldTies
from simulator.units import PS_PER_S, format_si, to_ps

MOST_ALONE = 8
"""Faults of which each is run alone too; of more, as many drawn ones are, only all together."""


@dataclass(frozen=True)
class Aftermath:
    """What these faults did: cost_ps, by which the run became longer, and how late its tasks are."""

    faults: tuple[Fault, ...]
    cost_ps: int
    late: Lateness

    @property
    def text(self) -> str:
        """The fault, or how many."""
        return str(self.faults[0]) if len(self.faults) == 1 else f"all {len(self.faults)} faults"

    def as_object(self) -> dict[str, Any]:
        """As JSON has it; times in ms."""
        return {"fault": self.text, "cost_ms": self.cost_ps / 1e9, **_felt("felt", self.late.felt),
                **_felt("noticed", self.late.noticed), "as_before_ms": self.late.as_before_ps / 1e9,
                "tasks_moved": self.late.moved, "tasks": self.late.tasks}


def _felt(what: str, felt: Felt | None) -> dict[str, Any]:
    return {f"{what}_ms": felt and felt.at_ps / 1e9, f"{what}_by_rank": felt and felt.rank,
            f"{what}_in": felt and felt.task}


@dataclass(frozen=True)
class Struck:
    """before: the run without faults. after: with all of them. aftermaths: of each fault alone, and of all together."""

    before: Result
    after: Result
    aftermaths: tuple[Aftermath, ...]


def struck(scenario: Scenario, *, ranks: str = "roles", seed: int = 0, progress: Progress | None = None) -> Struck:
    """Run a scenario with its faults and without. What is drawn is drawn over the length of the run without.

    InputError: a fault strikes no part of the run. RunError: with a fault the run never ends, and who waits for whom.
    """
    ready = prepare(scenario, seed)
    cards = scenario.workload.has_hosts(ready.case) and scenario.workload.live is not None
    for fault in scenario.faults:  # refused before anything runs
        schedules_of(drawn([replace(fault, at_s=0.0, mean_s=0.0)], ready.fabric, 0.0, seed), ready.fabric, cards)
    before = simulate(scenario.variant(faults=()), ranks=ranks, seed=seed)
    those = drawn(scenario.faults, ready.fabric, before.makespan_ps / PS_PER_S, seed)
    if not those:
        lasts = format_si(before.makespan_ps / PS_PER_S, "s")
        raise InputError(f"{scenario.name} lasts {lasts}: with seed {seed} none of its faults is drawn in that time; "
                         "take a shorter mean time, or another seed")
    _check([fault for fault in those if fault in scenario.faults], ready, before, cards)
    runs: list[tuple[Fault, ...]] = [(fault,) for fault in those] if len(those) <= MOST_ALONE else []
    runs += [those] * (len(runs) != 1)
    found: list[Aftermath] = []
    for number, faults in enumerate(runs):
        if progress is not None:
            progress((number + 1) / (len(runs) + 1))
        after = _with(scenario, faults, ranks, seed)
        own = {rank for fault in faults for rank in _struck_ranks(fault, ready.fabric)}
        cost_ps = after.makespan_ps - before.makespan_ps
        late = lateness(before.columns, after.columns, before.header["leaders"], own, cost_ps)
        found.append(Aftermath(faults, cost_ps, late))
    shown = [flight for fault in those for flight in _shown(fault, after, ready.fabric)]
    return Struck(before, replace(after, flights=[*after.flights, *shown]), tuple(found))


def _shown(fault: Fault, after: Result, fabric: Fabric) -> Iterator[Flight]:
    """A fault as a trace shows it: on the ranks that it strikes, or that stand for them, while it lasts."""
    end_ps = min(after.makespan_ps, to_ps(min(fault.end_s, after.makespan_ps / PS_PER_S)))
    leaders = after.header["leaders"]
    for rank in dict.fromkeys(leaders[rank] for rank in _struck_ranks(fault, fabric)):
        yield Flight(f"fault: {fault}", rank, to_ps(fault.at_s), end_ps)


def _check(faults: Sequence[Fault], ready: Prepared, before: Result, cards: bool) -> None:
    """InputError for a fault after the end of the run, or of links that nothing crosses."""
    machine, fabric, world = ready.machine, ready.fabric, ready.world
    for fault in faults:
        if to_ps(fault.at_s) >= before.makespan_ps:
            raise InputError(f"fault '{fault}' strikes nobody: without it the run ends after "
                             f"{format_si(before.makespan_ps / PS_PER_S, 's')}")
        if fault.what == "host" and not cards:
            _check_launches(fault, fabric, before)
    ties = WorldTies(world, Lowering(fabric, machine.collectives, groups=world.groups, eager=world.eager))
    for fault in faults:
        keys = [] if fault.what != "link" or cards else schedules_of([fault], fabric)
        if keys and all(ties.place_of(key) is None for key in keys):
            raise InputError(f"fault '{fault}' strikes nobody: nothing crosses {fault.name} in this run")


def _check_launches(fault: Fault, fabric: Fabric, before: Result) -> None:
    """InputError if the hosts that pause have launched everything by then; a drawn fault may come so late."""
    leaders, columns = before.header["leaders"], before.columns
    own = np.isin(columns["rank"], [leaders[rank] for rank in ranks_of(fault, fabric)])
    last_ps = int(columns["issued_ps"][own].max(initial=0))
    if to_ps(fault.at_s) > last_ps:
        raise InputError(f"fault '{fault}' strikes nobody: host {fault.name} has launched everything after "
                         f"{format_si(last_ps / PS_PER_S, 's')}, as captured graphs do")


def _struck_ranks(fault: Fault, fabric: Fabric) -> Iterator[int]:
    """The ranks at which a fault strikes."""
    card = card_of(fault)
    if fault.what != "link":
        yield from ranks_of(fault, fabric)
    elif card is not None:
        yield card[0]
    else:
        yield from (rank for rank in range(fabric.ranks) if die(rank) in re.split(" - | to ", fault.name))


def _with(scenario: Scenario, faults: tuple[Fault, ...], ranks: str, seed: int) -> Result:
    try:
        return simulate(scenario.variant(faults=faults), ranks=ranks, seed=seed)
    except RunError as error:
        named = "; ".join(map(str, faults[:4])) + f" and {len(faults) - 4} more" * (len(faults) > 4)
        raise RunError(f"{scenario.name} with {named}: it never ends\n{error}") from None
