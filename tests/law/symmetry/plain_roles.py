"""Colour refinement in plain Python, with whole bags instead of hashes: the reference for roles."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable

from simulator.collective.lowering import Lowering
from simulator.collective.one_sided import ONE_SIDED, keys_of, latency_s
from simulator.collective.transfer import CapacityKey, Phase, Transfer
from simulator.program.world import World
from simulator.symmetry.ties import Exchange, as_exchange


def plain_leaders(world: World, lowering: Lowering, rate_of: Callable[[CapacityKey], float]) -> tuple[int, ...]:
    """For every rank the lowest one of its class in the coarsest equitable partition."""
    edges = _Edges(world, lowering)
    numbers = {key: number for number, key in enumerate(sorted(edges.capacities, key=repr))}
    ranks = _renumber(id(program) for program in world.programs)
    capacities = _renumber([(key[0], rate_of(key)) for key in numbers])
    transfers: list[int] = []
    count = -1
    while count != (count := len(set(ranks)) + len(set(capacities)) + len(set(transfers))):
        transfers = _renumber(
            (
                (transfer.size_bytes, transfer.weight),
                _bag((load, capacities[numbers[key]]) for key, load in transfer.loads),
                _bag((name, ranks[rank]) for name, rank in edges.waiting[index]),
            )
            for index, transfer in enumerate(edges.transfers)
        )
        ranks, capacities = _refine(edges, numbers, ranks, capacities, transfers)
    first: dict[int, int] = {}
    for rank, colour in enumerate(ranks):
        first.setdefault(colour, rank)
    return tuple(first[colour] for colour in ranks)


def distinct_exchanges(world: World) -> dict[Exchange, None]:
    """Every different exchange of the world, group by group; all one-sided exchanges of a group are one."""
    return {
        as_exchange(name, members, rank, collective): None
        for name, instances in world.groups.items()
        for members in instances
        for rank in members
        for _, collective in world.programs[rank].collectives()
        if collective.group == name
    }


class _Edges:
    """Every distinct exchange and transfer of the world with their ties to capacities and ranks.

    A rank's name for an exchange is what its program says: ranks with the same program have the same names in the same
    order, so whoever meets others, or waits for something else, under one name is different.
    waiting[transfer], meeting[exchange]: (name, rank). of_rank, exchanges_of_rank: (name, index).
    """

    def __init__(self, world: World, lowering: Lowering) -> None:
        self.names: dict[Hashable, int] = {}
        transfers: dict[Transfer, int] = {}
        self.waiting: list[list[tuple[int, int]]] = []
        self.meeting: list[tuple[tuple[float, ...], list[tuple[int, int]]]] = []
        self.of_rank: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.exchanges_of_rank: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for exchange in distinct_exchanges(world):
            if exchange[2].kind in ONE_SIDED:
                phases = self._ports(exchange, lowering)
            else:
                phases = lowering.lower(exchange[2], exchange[1])
            self._meet(world, exchange, phases)
            for number, phase in enumerate(phases):
                names = {rank: self._name(world, exchange, rank, number) for rank in exchange[1]}
                for transfer in phase.transfers:
                    index = transfers.setdefault(transfer, len(transfers))
                    if index == len(self.waiting):
                        self.waiting.append([])
                    for rank in transfer.ranks:
                        self.waiting[index].append((names[rank], rank))
                        self.of_rank[rank].append((names[rank], index))
        self.transfers = list(transfers)
        self.capacities = {key for transfer in self.transfers for key, _ in transfer.loads}
        self.capacities |= {(pool, rank) for rank in range(world.ranks) for pool in ("hbm", "l2")}
        self.of_capacity: dict[CapacityKey, list[tuple[int, int]]] = defaultdict(list)
        for index, transfer in enumerate(self.transfers):
            for key, load in transfer.loads:
                self.of_capacity[key].append((index, load))

    def _ports(self, exchange: Exchange, lowering: Lowering) -> tuple[Phase, ...]:
        """What leaves every member and what arrives at it, as if it were one byte to each peer."""
        members = exchange[1]
        both = [keys_of(lowering.fabric, members, rank) for rank in members]
        latencies = latency_s(lowering.fabric, members), float(len(members))
        return tuple(
            Phase(latency, tuple(Transfer.of(1, keys[end], (rank,)) for rank, keys in zip(members, both, strict=True)))
            for end, latency in enumerate(latencies))

    def _meet(self, world: World, exchange: Exchange, phases: tuple[Phase, ...]) -> None:
        named = [(self._name(world, exchange, rank, -1), rank) for rank in exchange[1]]
        for name, rank in named:
            self.exchanges_of_rank[rank].append((name, len(self.meeting)))
        self.meeting.append((tuple(phase.latency_s for phase in phases), named))

    def _name(self, world: World, exchange: Exchange, rank: int, phase: int) -> int:
        """What a member calls a phase of an exchange; the ends of a message know it by the other one's place."""
        group, members, collective = exchange
        peer = -1
        if collective.kind == "send":
            other = members[1] if rank == members[0] else members[0]
            peer = world.instance(group, rank).index(other)
        sends = collective.kind == "send" and rank == members[0]
        return self.names.setdefault((group, collective, sends, peer, phase), len(self.names))


def _refine(
    edges: _Edges, numbers: dict[CapacityKey, int], ranks: list[int], capacities: list[int], transfers: list[int]
) -> tuple[list[int], list[int]]:
    """One round: new colours of ranks and capacities from their own and their neighbours'."""
    exchanges = _renumber(
        (latencies, _bag((name, ranks[rank]) for name, rank in named)) for latencies, named in edges.meeting
    )
    new_ranks = _renumber(
        (
            colour,
            capacities[numbers["hbm", rank]],
            capacities[numbers["l2", rank]],
            _bag((name, transfers[index]) for name, index in edges.of_rank.get(rank, ())),
            _bag((name, exchanges[index]) for name, index in edges.exchanges_of_rank.get(rank, ())),
        )
        for rank, colour in enumerate(ranks)
    )
    new_capacities = _renumber(
        (
            colour,
            ranks[key[1]] if key[0] in ("hbm", "l2") else -1,
            _bag((transfers[index], load) for index, load in edges.of_capacity.get(key, ())),
        )
        for key, colour in zip(numbers, capacities, strict=True)
    )
    return new_ranks, new_capacities


def _bag(colours: Iterable) -> tuple:
    """A multiset, as something that can be compared and hashed."""
    return tuple(sorted(Counter(colours).items()))


def _renumber(colours: Iterable[Hashable]) -> list[int]:
    names: dict[Hashable, int] = {}
    return [names.setdefault(colour, len(names)) for colour in colours]
