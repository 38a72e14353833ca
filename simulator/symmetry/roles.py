"""Ranks that do the same thing on symmetric hardware, found by colour refinement and simulated once.

Ranks, capacities, transfers and exchanges are the vertices of a graph: a transfer is tied to the capacities that it
loads (with its bytes there) and to the ranks that wait for it (with what they call the exchange), an exchange to those
who meet in it; a rank owns its HBM and L2. Start from colours that say what is known (a rank's program with its own
numbers, a capacity's rate, a transfer's size) and give every vertex a new colour from its own and those of its
neighbours, until nothing splits. The partition is *equitable*: every member of a class sees the same number of
members of every other class, with the same loads. Max-min rates and the order of events depend on nothing else, so one
member of each class stands for all, and the result is that of the unfolded run.

Worked example: 4 ranks on one switch, all running the same program with an All2All: one transfer, tied to 4 ports up
and 4 down with 3 MB each. All ports up have one colour, all ports down another, all ranks one: one class of four. Halve
one port's rate and its rank's colour splits off through the transfers that cross it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from simulator import np
from simulator.collective.lowering import Lowering
from simulator.collective.transfer import CapacityKey
from simulator.program.task import Collective
from simulator.program.world import World
from simulator.symmetry.folding import Folding
from simulator.symmetry.refinement import Array, classes, colours_of, first_of_each, numbered
from simulator.symmetry.ties import WorldTies


@dataclass(frozen=True)
class Roles:
    """leader[r]: the rank that is simulated for rank r. folding: what their exchanges become; None: each for itself."""

    leader: tuple[int, ...]
    folding: Folding | None = None

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """The simulated ranks, in order."""
        return tuple(sorted(set(self.leader)))

    @cached_property
    def multiplicity(self) -> Counter[int]:
        """How many ranks each leader stands for."""
        return Counter(self.leader)


def unfolded(world: World) -> Roles:
    """Every rank for itself."""
    return Roles(tuple(range(world.ranks)))


def find_roles(world: World, lowering: Lowering, rate_of: Callable[[CapacityKey], float],
               schedules: Mapping[CapacityKey, Hashable] | None = None) -> Roles:
    """The coarsest equitable partition that refines (program, hardware).

    rate_of: of a capacity, which among those of one kind may differ only from link to link. schedules: of capacities,
    and of clocks ("clock", rank), whose rates change during the run; of hosts ("host", rank) that pause, and of ranks
    that are lost ("lost", rank).
    """
    schedules = schedules or {}
    ranks = numbered((id(one), *(schedules.get((what, rank)) for what in ("clock", "host", "lost")))
                     for rank, one in enumerate(world.programs))
    if classes(ranks) == world.ranks:
        return unfolded(world)
    ties = WorldTies(world, lowering)
    own = np.arange(world.ranks)  # a rank's HBM is the capacity of its number, its L2 that many further
    rates, capacities = _by_rate(ties, rate_of, schedules)
    owners = np.full(len(capacities), -1)
    transfers = colours_of(ties.kinds)
    count = -1
    while count != (count := classes(ranks) + classes(capacities) + classes(transfers)):
        transfers = colours_of(
            ties.kinds, ties.capacities_of_transfer.bags(capacities), ties.ranks_of_transfer.bags(ranks)
        )
        exchanges = colours_of(ties.latencies, ties.ranks_of_exchange.bags(ranks))
        waits, meets = ties.transfers_of_rank.bags(transfers), ties.exchanges_of_rank.bags(exchanges)
        owners[: 2 * world.ranks] = np.concatenate([ranks, ranks])
        ranks = colours_of(ranks, capacities[own], capacities[own + world.ranks], waits, meets)
        capacities = colours_of(capacities, owners, ties.transfers_of_capacity.bags(transfers))
        if classes(ranks) == world.ranks:
            return unfolded(world)
    leaders = first_of_each(ranks, np.zeros(len(ranks)))
    leader = tuple(leaders[ranks].tolist())
    standing = _standing(ties, leaders, capacities)
    return Roles(leader, Folding(ties, leader, capacities, standing, rates, transfers))


def _by_rate(ties: WorldTies, rate_of: Callable[[CapacityKey], float],
             schedules: Mapping[CapacityKey, Hashable]) -> tuple[Array, Array]:
    """Rates of capacities, and colours from what they are, their rates and how these change."""
    numbering, fabric = ties.numbering, ties.numbering.fabric
    bases = np.array([family.base for family in numbering.families], dtype=np.int64)
    family = np.searchsorted(bases, ties.used, side="right") - 1
    names: dict[tuple, int] = {}
    colours, rates = np.zeros(len(ties.used), dtype=np.int64), np.zeros(len(ties.used))
    for number, first in zip(*np.unique(family, return_index=True), strict=True):
        one, members = numbering.families[number], np.flatnonzero(family == number)
        alike = fabric.as_described or not one.is_link
        keys = [numbering.key(each) for each in (ties.used[[first] if alike else members]).tolist()]
        found = [rate_of(key) for key in keys]
        known = [names.setdefault((key[0], rate), len(names)) for key, rate in zip(keys, found, strict=True)]
        rates[members] = found[0] if alike else found
        colours[members] = known[0] if alike else known
    for key, schedule in schedules.items():
        place = ties.place_of(key)
        if place is not None:
            colours[place] = names.setdefault((key[0], rate_of(key), schedule), len(names))
    return rates, colours


def _standing(ties: WorldTies, leaders: Array, capacities: Array) -> Array:
    """Which capacity stands for each class: a leader's own where it can, else the first."""
    others = np.ones(len(capacities), dtype=bool)
    for family in ties.numbering.families:
        if not family.is_link:  # of a rank each
            place = np.searchsorted(ties.used, leaders + family.base)
            found = np.minimum(place, len(ties.used) - 1)
            others[found[ties.used[found] == leaders + family.base]] = False
    return first_of_each(capacities, others)


Instances = dict[tuple, dict[tuple[int, ...], None]]


class Leading:
    """The exchanges that simulated ranks take part in themselves, by those who stand for their members.

    Where leaders meet for many groups at once, each leader is in one of them: it is that group whose links say how long
    the exchange would take this leader alone.
    """

    def __init__(self, world: World, roles: Roles) -> None:
        self._world, self._roles = world, roles
        self._groups: dict[str, Instances] = {}
        self._messages: Instances | None = None

    def instances(self, collective: Collective, members: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Those whose members have the same leaders as these; of a message (as it is sent) the two ends in order."""
        if collective.kind == "send":
            ends = self._roles.leader[members[0]], self._roles.leader[members[1]]
            return list(self._pairs()[collective, *ends])
        if collective.group not in self._groups:
            self._groups[collective.group] = self._of_group(collective.group)
        return list(self._groups[collective.group][leaders_of(self._roles, members)])

    def _of_group(self, name: str) -> Instances:
        found: Instances = defaultdict(dict)
        leading = set(self._roles.leaders)
        for members in self._world.groups[name]:
            if not leading.isdisjoint(members):
                found[leaders_of(self._roles, members)][members] = None
        return found

    def _pairs(self) -> Instances:
        if self._messages is None:
            self._messages = defaultdict(dict)
            for rank in self._roles.leaders:
                for _, work in self._world.programs[rank].collectives():
                    if work.kind in ("send", "recv"):
                        peer = self._world.instance(work.group, rank)[work.peer]
                        pair = (rank, peer) if work.kind == "send" else (peer, rank)
                        ends = self._roles.leader[pair[0]], self._roles.leader[pair[1]]
                        self._messages[work.as_send(), *ends][pair] = None
        return self._messages


def leaders_of(roles: Roles, members: Sequence[int]) -> tuple[int, ...]:
    """Who stands for these, in order."""
    return tuple(sorted([roles.leader[member] for member in members]))
