"""Collectives as phases of transfers: who sends how much over which link, and what it moves through memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from math import inf
from typing import TypeAlias

from simulator import np
from simulator.collective.algorithms import algorithm_of
from simulator.collective.messages import CollectiveCall, Messages
from simulator.collective.transfer import CapacityKey, Phase, Transfer, columns_of
from simulator.die.kernels import FREE
from simulator.errors import InputError, NoSuchName
from simulator.fabric.graph import Fabric
from simulator.paths import did_you_mean
from simulator.program.task import Collective
from simulator.program.world import Groups
from simulator.spec.machine import CollectiveSpec
from simulator.units import to_ps


def _nothing(value: float, unit: str) -> dict[str, object]:
    return {"value": value, "unit": unit, "kind": "assumed", "source": "what-if: free"}


FREE_ENGINE = CollectiveSpec.model_validate({
    "startup": _nothing(0.0, "us"), "cores": {}, "transfer_bytes": _nothing(0.0, "1"),
    "ladder": {"default": [{"rate": _nothing(inf, "GB/s")}]}})
"""What drives a collective that was made free: its members still meet, and that is all."""


class Lowering:
    """Lowers collectives on one fabric; results are cached by (collective, members).

    mode: "auto" (balanced exchanges as one class, uneven ones pair by pair), "classes" (uneven ones by sender) or
    "pairwise" (everything pair by pair). groups: all there are, who may share links between dies. eager: ranks whose
    hosts launch collectives one by one; one of them makes its group start up so late.
    """

    def __init__(self, fabric: Fabric, engines: dict[str, CollectiveSpec], mode: str = "auto",
                 groups: Groups | None = None, eager: frozenset[int] = frozenset()) -> None:
        self.fabric, self.engines, self._eager = fabric, engines, eager
        self._launched_eagerly = {name: engine.launched_eagerly() for name, engine in engines.items()}
        self._messages = Messages(fabric, mode, groups)
        self.partitions = self._messages.partitions
        self.lower = cache(self._lower)

    def engine(self, collective: Collective, members: Collection[int]) -> CollectiveSpec:
        """What drives a collective among `members`, as it starts up where they meet; NoSuchName: there is no such."""
        eager = not self._eager.isdisjoint(members)
        return engine_of(collective, self._launched_eagerly if eager else self.engines)

    def _lower(self, collective: Collective, members: tuple[int, ...], curve: str = "") -> tuple[Phase, ...]:
        """The phases of `collective` among `members` (global ranks, in group order).

        curve: the kind whose rates they have, if it is another one than that of `collective`.
        """
        engine = self.engine(collective, members)
        if len(members) == 1 or collective.via == FREE:
            return (Phase(0.0, ()),)
        _check_reach(self.fabric, collective, engine, members)

        def part(collective: Collective, curve: str) -> tuple[Phase, ...]:
            return self.lower(collective, members, curve)

        call = CollectiveCall(self._messages, engine, collective, members, curve or collective.kind, part)
        return algorithm_of(collective).lower(call)


def _check_reach(fabric: Fabric, collective: Collective, engine: CollectiveSpec, members: Sequence[int]) -> None:
    level = engine.within
    if level is not None and len({fabric.instance(rank, level) for rank in members}) > 1:
        what = f"engine '{collective.via}' does not leave a {level}"
        raise InputError(f"{what}, and group '{collective.group}' has members in several")


def engine_of(collective: Collective, engines: Mapping[str, CollectiveSpec]) -> CollectiveSpec:
    """The engine that drives a collective; NoSuchName with those there are if there is none of this name."""
    if collective.via == FREE:
        return FREE_ENGINE
    if collective.via not in engines:
        name, there = collective.via, sorted(engines)
        hint = did_you_mean(name, there)
        raise NoSuchName(name, f"no engine '{name}'{hint} for collectives: this machine has {', '.join(there)}")
    return engines[collective.via]


Busy: TypeAlias = "Callable[[int, Sequence[Sequence[int]]], list[int]]"
"""busy(before, groups), in ps: what the busiest capacity needs for each of some groups of transfers of a phase, told by
their numbers in it; before: how many transfers there are in the phases before it."""

_MOST = 1 << 22  # numbers that one table holds


def solo_ps_by_rank(phases: tuple[Phase, ...], ranks: Iterable[int], busy_ps: Busy) -> dict[int, int]:
    """How long an exchange takes each rank without other load, in ps: every latency, and the busiest capacity.

    Of the last phase only the transfers count that a rank waits for. Where messages differ it can take longer.
    """
    before, solo_ps = 0, 0
    for phase in phases[:-1]:
        solo_ps += busy_ps(before, [range(len(phase.transfers))])[0]
        before += len(phase.transfers)
    solo_ps += sum(to_ps(phase.latency_s) for phase in phases)
    waits_for: dict[int, list[int]] = {rank: [] for rank in ranks}
    for number, transfer in enumerate(phases[-1].transfers):
        for rank in dict.fromkeys(transfer.ranks):
            if rank in waits_for:
                waits_for[rank].append(number)
    groups = dict.fromkeys(map(tuple, waits_for.values()))
    known = dict(zip(groups, busy_ps(before, list(groups)), strict=True))
    return {rank: solo_ps + known[tuple(numbers)] for rank, numbers in waits_for.items()}


def busy_of(transfers: Sequence[Transfer], rate_of: Callable[[CapacityKey], float]) -> Busy:
    """How busy the capacities are that some transfers load, those of all phases one after the other."""
    keys, place, moved, ends = columns_of(transfers)
    rates, lengths = np.array([rate_of(key) for key in keys]), np.diff(ends)

    def busiest(before: int, groups: Sequence[Sequence[int]]) -> list[int]:
        which = before + np.concatenate([np.array(numbers, dtype=np.int64) for numbers in groups])
        group = np.repeat(np.arange(len(groups)), [len(numbers) for numbers in groups])
        many = lengths[which]
        row = np.repeat(ends[which] - np.cumsum(many) + many, many) + np.arange(many.sum())
        cell = np.repeat(group, many) * len(keys) + place[row]
        table = np.bincount(cell, moved[row], minlength=len(groups) * len(keys)).reshape(len(groups), len(keys))
        return [to_ps(seconds) for seconds in (table / rates).max(axis=1, initial=0.0).tolist()]

    def busy(before: int, groups: Sequence[Sequence[int]]) -> list[int]:
        step = max(_MOST // max(len(keys), 1), 1)
        return [*chain.from_iterable(busiest(before, groups[at : at + step]) for at in range(0, len(groups), step))]

    return busy
