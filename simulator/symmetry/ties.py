"""Who is tied to whom in a world: ranks, capacities, transfers and exchanges, as arrays for colour refinement.

Groups that are the same but for a move along the fabric have the same ties, moved: they are lowered once. One-sided
exchanges are not lowered: whatever a rank puts there crosses its own ports, in numbers that follow from its program, so
each rank has one vertex for what leaves it in a group and one for what arrives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain

from simulator import np
from simulator.collective.lowering import Lowering
from simulator.collective.one_sided import COLLECT, ONE_SIDED, keys_of, latency_s
from simulator.collective.transfer import CapacityKey, Phase
from simulator.program.task import Collective
from simulator.program.world import World
from simulator.symmetry.numbering import Numbering
from simulator.symmetry.refinement import Array, Ties

Exchange = tuple[str, tuple[int, ...], Collective]  # group, who meets in group order, what (a message: as sent)
_MESSAGES = ("send", "recv")


@dataclass(slots=True)
class _Vertex:
    """A transfer to be: what it is, what it loads, and who waits for it, under what name."""

    kind: tuple
    keys: Sequence[CapacityKey]
    loads: Sequence[int]
    called: Sequence[int]
    ranks: Sequence[int]


@dataclass(slots=True)
class _Pattern:
    """The ties of one exchange, which those of the same shape have too, moved: columns of numbers."""

    first: int  # the first member
    latencies: int
    kinds: Array
    meeting: tuple[Array, Array]  # name, rank
    waiting: tuple[Array, Array, Array]  # transfer, name, rank
    loading: tuple[Array, Array, Array, Array, Array]  # transfer, load, capacity, how far it moves: each, stride


class WorldTies:
    """Every distinct exchange and transfer of the world with their ties to capacities and ranks.

    A rank's name for an exchange is what its program says: ranks with the same program have the same names in the same
    order, so a rank that meets others, or waits for something else, under one name is different.
    first: number of an exchange's first transfer, those of all its phases follow. kinds, latencies: small numbers, by
    transfer and by exchange. numbering: of capacities; used: which of them there are, in the order of vertices.
    """

    def __init__(self, world: World, lowering: Lowering) -> None:
        self._world, self._lowering = world, lowering
        self.numbering = Numbering(lowering.fabric)
        self._number = cache(lambda key: self.numbering.of(key)[0])
        meshed = lowering.fabric.spec.fabric[0].kind == "mesh"
        self._partitions = lowering.partitions if meshed else []
        self._names: dict[object, int] = {}
        self._patterns: dict[tuple, list[_Pattern]] = defaultdict(list)
        self.first: dict[Exchange, int] = {}
        self._count = 0
        self._kinds: list[Array] = []
        self._latencies: list[int] = []
        self._meeting: list[tuple[Array, ...]] = []
        self._waiting: list[tuple[Array, ...]] = []
        self._loading: list[tuple[Array, ...]] = []
        own = _collectives(world)
        for name, instances in world.groups.items():
            for members in instances:
                self._add_instance(name, members, own)
        self.kinds = np.concatenate(self._kinds or [np.zeros(0, dtype=np.int64)])
        self.latencies = np.array(self._latencies, dtype=np.int64)
        self._tie(world.ranks)

    def place_of(self, key: CapacityKey) -> int | None:
        """Where a capacity is among those that are used; None if it is not."""
        if key[0] in ("clock", "host", "lost"):
            return None
        number = self.numbering.of(key)[0]
        place = int(np.searchsorted(self.used, number))
        return place if place < len(self.used) and self.used[place] == number else None

    def _add_instance(self, name: str, members: tuple[int, ...], own: Own) -> None:
        relative = tuple([rank - members[0] for rank in members]), *map(partial(_parted, members), self._partitions)
        for exchange in _exchanges(self._world, name, members, own):
            collective = exchange[2]
            if collective.kind == "send":
                self._place(self._pattern(exchange), exchange, 0)
                continue
            alike = self._patterns[name, collective, relative]
            moves = (one for one in alike if self._lowering.fabric.moves(members, one.first - members[0]))
            pattern = next(moves, None)
            if pattern is None:
                pattern = self._pattern(exchange)
                alike.append(pattern)
            self._place(pattern, exchange, members[0] - pattern.first)

    def _place(self, pattern: _Pattern, exchange: Exchange, shift: int) -> None:
        """The ties of an exchange, from those of its pattern."""
        here = len(self._latencies)
        self._latencies.append(pattern.latencies)
        self.first[exchange] = self._count
        name, rank = pattern.meeting
        self._meeting.append((np.full(len(name), here), name, rank + shift))
        transfer, name, rank = pattern.waiting
        self._waiting.append((transfer + self._count, name, rank + shift))
        transfer, load, capacity, each, stride = pattern.loading
        self._loading.append((transfer + self._count, load, capacity + shift * each // stride))
        self._kinds.append(pattern.kinds)
        self._count += len(pattern.kinds)

    def _pattern(self, exchange: Exchange) -> _Pattern:
        latencies, vertices = self._vertices(exchange)
        members = exchange[1]

        def column(values: Iterable[int]) -> Array:
            return np.fromiter(values, dtype=np.int64)

        every = np.arange(len(vertices))
        capacity = column(map(self._number, chain.from_iterable([one.keys for one in vertices])))
        waiting = (np.repeat(every, column(len(one.ranks) for one in vertices)),
                   column(name for one in vertices for name in one.called),
                   column(rank for one in vertices for rank in one.ranks))
        load = column(chain.from_iterable([one.loads for one in vertices]))
        loading = (np.repeat(every, column(len(one.loads) for one in vertices)), load, capacity,
                   *self.numbering.steps(capacity))
        return _Pattern(members[0], self._name("latencies", latencies),
                        column(self._name("kind", *one.kind) for one in vertices),
                        (column(self._called(exchange, -1)), column(members)), waiting, loading)

    def _vertices(self, exchange: Exchange) -> tuple[tuple[float, ...], list[_Vertex]]:
        """Latencies of its phases, and its transfers."""
        group, members, collective = exchange
        if collective.kind in ONE_SIDED:
            return self._ports(group, members)
        phases: tuple[Phase, ...] = self._lowering.lower(collective, members)
        vertices = []
        for number, phase in enumerate(phases):
            called = dict(zip(members, self._called(exchange, number), strict=True))
            for one in phase.transfers:
                names = [called[rank] for rank in one.ranks]
                vertices.append(_Vertex((one.size_bytes, one.weight), one.keys, one.moved_bytes, names, one.ranks))
        return tuple(phase.latency_s for phase in phases), vertices

    def _ports(self, group: str, members: tuple[int, ...]) -> tuple[tuple[float, ...], list[_Vertex]]:
        """What leaves every member, then what arrives at it, in any one-sided exchange of the group."""
        fabric, vertices = self._lowering.fabric, []
        for rank in members:
            for end, peers in zip(("out", "in"), keys_of(fabric, members, rank), strict=True):
                keys, loads = tuple(zip(*peers, strict=True)) or ((), ())
                vertices.append(_Vertex((end,), keys, loads, [self._name(group, end)], [rank]))
        return (latency_s(fabric, members), len(members)), vertices

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

    def _tie(self, ranks: int) -> None:
        exchange, name, rank = _columns(self._meeting)
        self.ranks_of_exchange = Ties(len(self.latencies), exchange, name, rank)
        self.exchanges_of_rank = Ties(ranks, rank, name, exchange)
        transfer, name, rank = _columns(self._waiting)
        self.ranks_of_transfer = Ties(self._count, transfer, name, rank)
        self.transfers_of_rank = Ties(ranks, rank, name, transfer)
        transfer, load, capacity = _columns(self._loading)
        there = np.zeros(self.numbering.total, dtype=bool)
        there[: 2 * ranks] = True
        there[capacity] = True
        self.used = np.flatnonzero(there)
        capacity = (np.cumsum(there) - 1)[capacity]
        self.capacities_of_transfer = Ties(self._count, transfer, load, capacity)
        self.transfers_of_capacity = Ties(len(self.used), capacity, load, transfer)
        del self._meeting, self._waiting, self._loading, self._patterns


def _parted(members: tuple[int, ...], partition: dict[int, int]) -> tuple[int, ...]:
    """Which of them a partition of the ranks leaves together, in numbers that do not depend on who they are."""
    names: dict[int, int] = {}
    return tuple([names.setdefault(partition[rank], len(names)) for rank in members])


def _columns(parts: list[tuple[Array, ...]]) -> list[Array]:
    if not parts:
        return [np.zeros(0, dtype=np.int64)] * 3
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


Own = dict[int, dict[str, list[Collective]]]  # by identity of a program and name of a group: its exchanges there


def _collectives(world: World) -> Own:
    """Every different exchange of every program."""
    found: Own = {}
    for program in {id(program): program for program in world.programs}.values():
        by_group = found[id(program)] = defaultdict(list)
        for collective in dict.fromkeys(work for _, work in program.collectives()):
            by_group[collective.group].append(collective)
    return found


def _exchanges(world: World, name: str, members: tuple[int, ...], own: Own) -> dict[Exchange, None]:
    """The different exchanges of one group."""
    seen: dict[Exchange, None] = {}
    done: set[int] = set()  # programs whose collectives are known
    for rank in members:
        program = id(world.programs[rank])
        for collective in own[program].get(name, ()):
            if program not in done or collective.kind in _MESSAGES:
                seen.setdefault(as_exchange(name, members, rank, collective))
        done.add(program)
    return seen


def as_exchange(name: str, members: tuple[int, ...], rank: int, collective: Collective) -> Exchange:
    """A message concerns its two ends alone; every other collective the whole group."""
    if collective.kind == "send":
        return name, (rank, members[collective.peer]), collective.as_send()
    if collective.kind == "recv":
        return name, (members[collective.peer], rank), collective.as_send()
    if collective.kind in ONE_SIDED:
        return name, members, Collective(COLLECT, name, "")
    return name, members, collective
