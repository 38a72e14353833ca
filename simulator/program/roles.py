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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.program.collectives import Key, Lowering, Phase, Transfer
from simulator.program.refinement import classes, colours_of, first_of_each, numbered
from simulator.program.ties import WorldTies
from simulator.program.world import World

if TYPE_CHECKING:
    from simulator.program.refinement import Array


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
    """The coarsest equitable partition that refines (program, hardware).

    Where ranks have numbers of their own, next to nothing can be folded, and nothing is.
    """
    programs = {id(program): program for program in world.programs}
    if len(programs) == world.ranks or any(program.template for program in programs.values()):
        return unfolded(world)
    import numpy as np

    ties = WorldTies(world, lowering)
    ranks = numbered(id(program) for program in world.programs)
    capacities = numbered((key[0], rate_of(key)) for key in ties.capacities)
    kinds = numbered((transfer.size_bytes, transfer.weight) for transfer in ties.transfers)
    latencies = numbered(ties.latencies)
    own = np.arange(world.ranks)  # a rank's HBM is the capacity of its number, its L2 that many further
    owners = np.full(len(capacities), -1)
    transfers = kinds
    count = -1
    while count != (count := classes(ranks) + classes(capacities) + classes(transfers)):
        transfers = colours_of(
            kinds, ties.capacities_of_transfer.bags(capacities), ties.ranks_of_transfer.bags(ranks)
        )
        exchanges = colours_of(latencies, ties.ranks_of_exchange.bags(ranks))
        waits, meets = ties.transfers_of_rank.bags(transfers), ties.exchanges_of_rank.bags(exchanges)
        owners[: 2 * world.ranks] = np.concatenate([ranks, ranks])
        ranks = colours_of(ranks, capacities[own], capacities[own + world.ranks], waits, meets)
        capacities = colours_of(capacities, owners, ties.transfers_of_capacity.bags(transfers))
    leader, stand = _lead(ranks, capacities, list(ties.capacities))
    return Roles(leader, stand, dict(zip(ties.transfers, transfers.tolist(), strict=True)))


def _lead(ranks: Array, capacities: Array, keys: list[Key]) -> tuple[tuple[int, ...], frozenset[Key]]:
    """The lowest rank of every class leads it; a leader's own capacities stand for theirs."""
    import numpy as np

    leaders = first_of_each(ranks, np.zeros(len(ranks)))
    leading = set(leaders.tolist())
    others = np.fromiter((key[0] == "link" or key[1] not in leading for key in keys), dtype=bool, count=len(keys))
    stands = first_of_each(capacities, others)
    return tuple(leaders[ranks].tolist()), frozenset(keys[index] for index in stands.tolist())


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
