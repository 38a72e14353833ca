"""How often the routes between all members of a group cross each link, from the levels of the fabric.

Two members meet at the innermost level that holds both. Bytes for a member met at a level climb from the die through
the switches below that level's own and come down the same way on the other side (`Switch.climb`), so everything below
one end of a link crosses it together: members below the end x members that each of them meets at the level. That takes
time in proportion to the members, where counting pair by pair takes their square.

Worked example: 3 nodes of 2 dies under one switch. A die meets 1 other in its node and 4 at the switch above, so 5
pairs leave each die, and 2 x 4 = 8 each node.

Pairs are counted by *way* (`Fabric.ways`): those of one way are held back by the same kind of link, so they move alike,
while those of another way may end earlier. With uplinks narrower than the ports below them, the 1 pair inside a node
and the 4 across are two ways. In a mesh every pair has a link of its own, which it may share with other groups: those
that share it with the same ones are a way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import permutations

from simulator.fabric.graph import Fabric, Route
from simulator.fabric.level import Edge, die
from simulator.fabric.switch import Switch

MembersByInstance = dict[int, list[int]]  # instance of a level -> the members there


@dataclass(slots=True)
class Way:
    """Ordered pairs that move alike. links: how many of them cross each link. peers: how many of them leave a rank."""

    links: Counter[Edge] = field(default_factory=Counter)
    peers: Counter[int] = field(default_factory=Counter)


Sharers = Callable[[int, int], Hashable]  # of the link between two dies: who else uses it; (): it is theirs alone


def crossings(fabric: Fabric, members: tuple[int, ...], sharers: Sharers = lambda *_: ()) -> tuple[list[Way], float]:
    """The ways between all members, from the inside out, and the longest latency of a route, in seconds."""
    if not (fabric.arithmetic and fabric.whole):
        return crossings_by_pair(fabric, members, sharers)
    ways: dict[object, Way] = {}
    latency_s = 0.0
    inside: MembersByInstance = {rank: [rank] for rank in members}
    for level in fabric.by_level.values():
        dies, dies_inside, narrowest = level.dies, level.inside, fabric.ways[level.order]
        around: MembersByInstance = {}
        for rank in members:
            around.setdefault(rank // dies, []).append(rank)
        met = {child: len(around[child * dies_inside // dies]) - len(here) for child, here in inside.items()}
        pair = _pair_that_meets(around, met, dies_inside)
        if pair is not None:
            latency_s = max(latency_s, fabric.route(*pair).latency_s)
            if isinstance(level, Switch):
                way = ways.setdefault(narrowest, Way())
                way.peers.update({rank: met[child] for child, here in inside.items() if met[child] for rank in here})
                _climb_and_descend(level, inside, met, way.links)
            else:
                pairs = (pair for here in around.values() for pair in permutations(here, 2))
                for source, target in pairs:
                    if source // dies_inside != target // dies_inside:
                        way = ways.setdefault((narrowest, sharers(source, target)), Way())
                        way.links[die(source), die(target)] += 1
                        way.peers[source] += 1
        inside = around
    return list(ways.values()), latency_s


def crossings_by_pair(fabric: Fabric, members: tuple[int, ...],
                      sharers: Sharers = lambda *_: ()) -> tuple[list[Way], float]:
    """The same from the route of every pair: where links are missing, for other kinds of levels, and as a reference.

    Pairs that go around a missing link have a way of their own.
    """
    ways: dict[tuple[tuple[int, int], Hashable], Way] = {}
    latency_s = 0.0
    for source, target in permutations(members, 2):
        route = fabric.route(source, target)
        way = ways.setdefault(way_of(fabric, route, sharers, source, target), Way())
        way.links.update(route.edges)
        way.peers[source] += 1
        latency_s = max(latency_s, route.latency_s)
    return [ways[key] for key in sorted(ways, key=lambda key: key[0])], latency_s


def way_of(fabric: Fabric, route: Route, sharers: Sharers, source: int,
           target: int) -> tuple[tuple[int, int], Hashable]:
    """What the ways of two pairs have in common if they are one."""
    return fabric.way(route), sharers(source, target) if route.hops == 1 else ()


def _pair_that_meets(around: MembersByInstance, met: dict[int, int], dies_inside: int) -> tuple[int, int] | None:
    """Two members that meet at this level, if any do."""
    if not any(met.values()):
        return None
    for here in around.values():
        for other in here:
            if other // dies_inside != here[0] // dies_inside:
                return here[0], other
    return None


def _climb_and_descend(level: Switch, inside: MembersByInstance, met: dict[int, int], counts: Counter[Edge]) -> None:
    """Add the pairs that meet at the switches of a level to every link on their way."""
    for child, here in inside.items():
        if met[child]:
            for rank in here:
                for below, above in level.climb(rank):
                    counts[below, above] += met[child]
                    counts[above, below] += met[child]
