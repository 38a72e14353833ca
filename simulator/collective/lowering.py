"""Collectives as phases of transfers: who sends how much over which link, and what it moves through memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain

from simulator.collective.algorithms import algorithm_of
from simulator.collective.messages import CollectiveCall, Messages
from simulator.collective.transfer import CapacityKey, Phase, Transfer
from simulator.errors import InputError, NoSuchName
from simulator.fabric.graph import Fabric
from simulator.paths import did_you_mean
from simulator.program.task import Collective
from simulator.program.world import Groups
from simulator.spec.machine import CollectiveSpec
from simulator.units import to_ps

__all__ = ["CapacityKey", "Lowering", "Phase", "Transfer"]


class Lowering:
    """Lowers collectives on one fabric; results are cached by (collective, members).

    mode: "auto" (balanced exchanges as one class, uneven ones pair by pair), "classes" (uneven ones by sender) or
    "pairwise" (everything pair by pair). groups: all there are, who may share links between dies.
    """

    def __init__(
        self, fabric: Fabric, engines: dict[str, CollectiveSpec], mode: str = "auto", groups: Groups | None = None
    ) -> None:
        self.fabric, self.engines = fabric, engines
        self._messages = Messages(fabric, mode, groups)
        self.partitions = self._messages.partitions
        self.lower = cache(self._lower)

    def _lower(self, collective: Collective, members: tuple[int, ...], curve: str = "") -> tuple[Phase, ...]:
        """The phases of `collective` among `members` (global ranks, in group order).

        curve: the kind whose rates they have, if it is another one than that of `collective`.
        """
        engine = engine_of(collective, self.engines)
        if len(members) == 1:
            return (Phase(0.0, ()),)
        _check_reach(self.fabric, collective, engine, members)

        def part(collective: Collective, curve: str) -> tuple[Phase, ...]:
            return self.lower(collective, members, curve)

        call = CollectiveCall(self._messages, engine, collective, members, curve or collective.kind, part)
        return algorithm_of(collective).lower(call)


def _check_reach(fabric: Fabric, collective: Collective, engine: CollectiveSpec, members: Sequence[int]) -> None:
    level = engine.within
    if level is not None and len({fabric.instance(rank, level) for rank in members}) > 1:
        raise InputError(
            f"engine '{collective.via}' does not leave a {level}, and group '{collective.group}' has members in several"
        )


def engine_of(collective: Collective, engines: Mapping[str, CollectiveSpec]) -> CollectiveSpec:
    """The engine that drives a collective; NoSuchName with those there are if there is none of this name."""
    if collective.via not in engines:
        name, there = collective.via, sorted(engines)
        hint = did_you_mean(name, there)
        raise NoSuchName(name, f"no engine '{name}'{hint} for collectives: this machine has {', '.join(there)}")
    return engines[collective.via]


def solo_ps_by_rank(
    phases: tuple[Phase, ...], ranks: Iterable[int], busy_ps: Callable[[int, Sequence[int]], int]
) -> dict[int, int]:
    """How long an exchange takes each rank without other load, in ps: every latency, and the busiest capacity.

    Of the last phase only the transfers count that a rank waits for. Where messages differ it can take longer.
    busy_ps(before, numbers): what the busiest capacity needs for some transfers of the phase that has so many before.
    """
    before, solo_ps = 0, 0
    for phase in phases[:-1]:
        solo_ps += busy_ps(before, range(len(phase.transfers)))
        before += len(phase.transfers)
    solo_ps += sum(to_ps(phase.latency_s) for phase in phases)
    waits_for: dict[int, list[int]] = {rank: [] for rank in ranks}
    for number, transfer in enumerate(phases[-1].transfers):
        for rank in dict.fromkeys(transfer.ranks):
            if rank in waits_for:
                waits_for[rank].append(number)
    known: dict[tuple[int, ...], int] = {}
    for numbers in map(tuple, waits_for.values()):
        if numbers not in known:
            known[numbers] = busy_ps(before, numbers)
    return {rank: solo_ps + known[tuple(numbers)] for rank, numbers in waits_for.items()}


def busy_of(
    transfers: Sequence[Transfer], rate_of: Callable[[CapacityKey], float]
) -> Callable[[int, Sequence[int]], int]:
    """busy(before, numbers), in ps: what the busiest capacity needs for transfers before + number of these."""
    import numpy as np

    keys, sizes = list(zip(*chain.from_iterable(one.loads for one in transfers), strict=True)) or ((), ())
    places: dict[CapacityKey, int] = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    place = np.fromiter(map(places.__getitem__, keys), dtype=np.int64, count=len(keys))
    loads = np.array(sizes, dtype=float)
    rates = np.array([rate_of(key) for key in places])
    ends = np.cumsum([0, *(len(one.loads) for one in transfers)]).tolist()

    def busy(before: int, numbers: Sequence[int]) -> int:
        rows = [slice(ends[before + number], ends[before + number + 1]) for number in numbers]
        if not rows:
            return 0
        moved = np.bincount(np.concatenate([place[row] for row in rows]), np.concatenate([loads[row] for row in rows]))
        return to_ps(float((moved / rates[: len(moved)]).max(initial=0.0)))

    return busy
