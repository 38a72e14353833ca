"""Who is tied to whom in a world: ranks, capacities, transfers and exchanges, as arrays for colour refinement."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable

from simulator.program.collectives import Key, Lowering
from simulator.program.refinement import Ties
from simulator.program.task import Collective
from simulator.program.transfer import Phase, Transfer
from simulator.program.world import World

Exchange = tuple[str, tuple[int, ...], Collective]  # group, who meets in group order, what (a message: as sent)
_MESSAGES = ("send", "recv")


class WorldTies:
    """Every distinct exchange and transfer of the world with their ties to capacities and ranks.

    A rank's name for an exchange is what its program says: ranks with the same program have the same names in the same
    order, so whoever meets others, or waits for something else, under one name is different.
    transfers, capacities: number by vertex. latencies: of every exchange's phases.
    """

    def __init__(self, world: World, lowering: Lowering) -> None:
        self._world = world
        self._names: dict[object, int] = {}
        self.transfers: dict[Transfer, int] = {}
        self.latencies: list[tuple[float, ...]] = []
        self.capacities: dict[Key, int] = {}
        for pool in ("hbm", "l2"):
            for rank in range(world.ranks):
                self.capacities[pool, rank] = len(self.capacities)
        self._waiting = array("q"), array("q"), array("q")  # transfer, name, rank
        self._meeting = array("q"), array("q"), array("q")  # exchange, name, rank
        self._loading = array("q"), array("q"), array("q")  # transfer, load, capacity
        for exchange in distinct_collectives(world):
            self._add(exchange, lowering.lower(exchange[2], exchange[1]))
        self._tie(world.ranks)

    def _tie(self, ranks: int) -> None:
        exchange, name, rank = self._meeting
        self.ranks_of_exchange = Ties(len(self.latencies), exchange, name, rank)
        self.exchanges_of_rank = Ties(ranks, rank, name, exchange)
        transfer, name, rank = self._waiting
        self.ranks_of_transfer = Ties(len(self.transfers), transfer, name, rank)
        self.transfers_of_rank = Ties(ranks, rank, name, transfer)
        transfer, load, capacity = self._loading
        self.capacities_of_transfer = Ties(len(self.transfers), transfer, load, capacity)
        self.transfers_of_capacity = Ties(len(self.capacities), capacity, load, transfer)

    def _add(self, exchange: Exchange, phases: tuple[Phase, ...]) -> None:
        members = exchange[1]
        _extend(self._meeting, len(self.latencies), self._called(exchange, -1), members)
        self.latencies.append(tuple(phase.latency_s for phase in phases))
        for number, phase in enumerate(phases):
            called = dict(zip(members, self._called(exchange, number), strict=True))
            for transfer in phase.transfers:
                index = self.transfers.get(transfer, -1)
                if index < 0:
                    index = self.transfers[transfer] = len(self.transfers)
                    numbers = self.capacities
                    keys = [numbers.setdefault(key, len(numbers)) for key, _ in transfer.loads]
                    _extend(self._loading, index, [load for _, load in transfer.loads], keys)
                _extend(self._waiting, index, [called[rank] for rank in transfer.ranks], transfer.ranks)

    def _called(self, exchange: Exchange, phase: int) -> list[int]:
        """What every member calls a phase of an exchange; the ends of a message know it by the other one's place."""
        group, members, collective = exchange
        if collective.kind != "send":
            return [self._name(group, collective, False, -1, phase)] * len(members)
        ends = zip(members, members[::-1], strict=True)
        places = [self._world.instance(group, rank).index(other) for rank, other in ends]
        return [self._name(group, collective, end == 0, peer, phase) for end, peer in enumerate(places)]

    def _name(self, *name: object) -> int:
        return self._names.setdefault(name, len(self._names))


def _extend(columns: tuple[array, array, array], owner: int, labels: list[int], others: Iterable[int]) -> None:
    columns[0].extend([owner] * len(labels))
    columns[1].extend(labels)
    columns[2].extend(others)


def distinct_collectives(world: World) -> Iterable[Exchange]:
    """(group name, members, collective) for every different exchange of the world; messages with both ends."""
    of_program: dict[int, dict[str, list[Collective]]] = {}
    for program in world.programs:
        if id(program) not in of_program:
            by_group: dict[str, list[Collective]] = defaultdict(list)
            for collective in dict.fromkeys(work for _, work in program.collectives()):
                by_group[collective.group].append(collective)
            of_program[id(program)] = by_group
    seen: dict[Exchange, None] = {}
    for name, instances in world.groups.items():
        for members in instances:
            done: set[int] = set()  # programs whose collectives are known for this instance
            for rank in members:
                known = id(world.programs[rank])
                for collective in of_program[known].get(name, ()):
                    if known not in done or collective.kind in _MESSAGES:
                        seen.setdefault(as_exchange(name, members, rank, collective))
                done.add(known)
    return seen


def as_exchange(name: str, members: tuple[int, ...], rank: int, collective: Collective) -> Exchange:
    """A message concerns its two ends alone; every other collective the whole group."""
    if collective.kind == "send":
        return name, (rank, members[collective.peer]), collective.as_send()
    if collective.kind == "recv":
        return name, (members[collective.peer], rank), collective.as_send()
    return name, members, collective
