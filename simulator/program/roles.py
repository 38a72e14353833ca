"""Ranks that do the same thing on symmetric hardware, found by colour refinement and simulated once.

Ranks, capacities, transfers and exchanges are the vertices of a graph: a transfer is tied to the capacities that it
loads (with its bytes there) and to the ranks that wait for it (with what they call the exchange), an exchange to those
who meet in it; a rank owns its HBM and L2. Start from colours that say what is known (a rank's program, a capacity's
rate, a transfer's size) and give every vertex a new colour from its own and those of its neighbours, until nothing
splits. The partition is *equitable*: every member of a class sees the same number of
members of every other class, with the same loads. Max-min rates and the order of events depend on nothing else, so one
member of each class stands for all, and the result is that of the unfolded run.

Worked example: 4 ranks on one switch, all running the same program with an All2All: one transfer, tied to 4 ports up
and 4 down with 3 MB each. All ports up have one colour, all ports down another, all ranks one: one class of four. Halve
one port's rate and its rank's colour splits off through the transfers that cross it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from simulator.program.collectives import Key, Lowering, Phase, Transfer
from simulator.program.task import Collective
from simulator.program.world import World

_Exchange = tuple[str, tuple[int, ...], Collective]  # group, who meets in group order, what (a message: as sent)


@dataclass(frozen=True, slots=True)
class Roles:
    """leader[r]: the rank that is simulated for rank r. capacities: those that stand for their class.

    colours: the class of every transfer. Both are None where nothing is folded.
    """

    leader: tuple[int, ...]
    capacities: frozenset[Key] | None = None
    colours: dict[Transfer, int] | None = None

    @property
    def leaders(self) -> tuple[int, ...]:
        """The simulated ranks, in order."""
        return tuple(sorted(set(self.leader)))

    @property
    def multiplicity(self) -> Counter[int]:
        """How many ranks each leader stands for."""
        return Counter(self.leader)


def unfolded(world: World) -> Roles:
    """Every rank for itself."""
    return Roles(tuple(range(world.ranks)))


def find_roles(world: World, lowering: Lowering, rate_of: Callable[[Key], float]) -> Roles:
    """The coarsest equitable partition that refines (program, hardware)."""
    programs = {id(program) for program in world.programs}
    if len(programs) == world.ranks:
        return unfolded(world)
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
    leader, stand = _lead(ranks, capacities, list(numbers))
    return Roles(leader, stand, dict(zip(edges.transfers, transfers, strict=True)))


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
        for exchange in distinct_collectives(world):
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
        self.of_capacity: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        for index, transfer in enumerate(self.transfers):
            for key, load in transfer.loads:
                self.of_capacity[key].append((index, load))

    def _meet(self, world: World, exchange: _Exchange, phases: tuple[Phase, ...]) -> None:
        named = [(self._name(world, exchange, rank, -1), rank) for rank in exchange[1]]
        for name, rank in named:
            self.exchanges_of_rank[rank].append((name, len(self.meeting)))
        self.meeting.append((tuple(phase.latency_s for phase in phases), named))

    def _name(self, world: World, exchange: _Exchange, rank: int, phase: int) -> int:
        """What a member calls a phase of an exchange; the ends of a message know it by the other one's place."""
        group, members, collective = exchange
        peer = -1
        if collective.kind == "send":
            other = members[1] if rank == members[0] else members[0]
            peer = world.instance(group, rank).index(other)
        sends = collective.kind == "send" and rank == members[0]
        return self.names.setdefault((group, collective, sends, peer, phase), len(self.names))


def distinct_collectives(world: World) -> Iterable[_Exchange]:
    """(group name, members, collective) for every different exchange of the world; messages with both ends."""
    of_program: dict[int, list[tuple[str, Collective]]] = {}
    for program in world.programs:
        if id(program) not in of_program:
            found = dict.fromkeys((work.group, work) for _, work in program.collectives())
            of_program[id(program)] = list(found)
    seen: dict[_Exchange, None] = {}
    for name, instances in world.groups.items():
        for members in instances:
            for rank in members:
                for group, collective in of_program[id(world.programs[rank])]:
                    if group == name:
                        seen.setdefault(as_exchange(name, members, rank, collective))
    return seen


def as_exchange(name: str, members: tuple[int, ...], rank: int, collective: Collective) -> _Exchange:
    """A message concerns its two ends alone; every other collective the whole group."""
    if collective.kind == "send":
        return name, (rank, members[collective.peer]), collective.as_send()
    if collective.kind == "recv":
        return name, (members[collective.peer], rank), collective.as_send()
    return name, members, collective


def _refine(
    edges: _Edges, numbers: dict[Key, int], ranks: list[int], capacities: list[int], transfers: list[int]
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


def _lead(ranks: list[int], capacities: list[int], keys: list[Key]) -> tuple[tuple[int, ...], frozenset[Key]]:
    """The lowest rank of every class leads it; a leader's own capacities stand for theirs."""
    first: dict[int, int] = {}
    for rank, colour in enumerate(ranks):
        first.setdefault(colour, rank)
    leaders = set(first.values())
    stands: dict[int, Key] = {}
    for key, colour in zip(keys, capacities, strict=True):
        own = key[0] != "link" and key[1] in leaders
        if colour not in stands or (own and not (stands[colour][0] != "link" and stands[colour][1] in leaders)):
            stands[colour] = key
    return tuple(first[colour] for colour in ranks), frozenset(stands.values())


def fold(phases_of: Iterable[tuple[Phase, ...]], roles: Roles) -> tuple[Phase, ...]:
    """One meeting's phases for the leaders: all instances of the meeting together, on the capacities that stand.

    Transfers of one class become one whose load on a capacity is the sum of theirs.
    """
    assert roles.colours is not None
    folded = []
    for together in zip(*phases_of, strict=True):
        classes: dict[int, list[Transfer]] = defaultdict(list)
        for phase in together:
            for transfer in phase.transfers:
                classes[roles.colours[transfer]].append(transfer)
        folded.append(Phase(together[0].latency_s, tuple(_merge(found, roles) for found in classes.values())))
    return tuple(folded)


def _merge(transfers: list[Transfer], roles: Roles) -> Transfer:
    assert roles.capacities is not None
    loads: Counter[Key] = Counter()
    for transfer in transfers:
        for key, load in transfer.loads:
            if key in roles.capacities:
                loads[key] += load
    waiting = sorted({roles.leader[rank] for transfer in transfers for rank in transfer.ranks})
    return Transfer(transfers[0].size_bytes, tuple(loads.items()), tuple(waiting), transfers[0].weight)


def _bag(colours: Iterable) -> tuple:
    """A multiset, as something that can be compared and hashed."""
    return tuple(sorted(Counter(colours).items()))


def _renumber(colours: Iterable[Hashable]) -> list[int]:
    names: dict[Hashable, int] = {}
    return [names.setdefault(colour, len(names)) for colour in colours]
