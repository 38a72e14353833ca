"""A dragonfly: dies have ports to routers, the routers of a group are a full mesh, and so are the groups.

The link from group g to group h lies at router (h - g - 1) mod groups, mod routers, of g. Routes are minimal: to the
router with the link, over it, and to the receiver's router. Three groups of two routers of two dies:

    die 2 -> router 1 -> router 0 -> router 3 -> router 2 -> die 4      a local link, a global one, a local one
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, pairwise

from simulator.fabric.level import Edge, Level, Link, both_ways, die
from simulator.fabric.switch import Switch
from simulator.spec.levels import DragonflyLevel, LevelSpec


class Dragonfly(Switch):
    """See `DragonflyLevel`."""

    spec: DragonflyLevel

    def __init__(self, spec: LevelSpec, inner: Sequence[Level], ranks: int) -> None:
        super().__init__(spec, inner, ranks)
        self.groups, self.routers = self.spec.groups.count, self.spec.routers.count
        self.span = self.dies // (self.groups * self.routers)
        self.shortest = 0

    def links(self) -> Iterator[Link]:
        """The ports of all ranks, and all links inside groups and between them of every instance that has ranks."""
        spec = self.spec
        local, across = (spec.local_rate.si, spec.local_latency.si), (spec.global_rate.si, spec.global_latency.si)
        for ranks in self.instances():
            groups = range(self._group(ranks[0]), self._group(ranks[0]) + self.groups)
            for rank in ranks:
                yield from both_ways(die(rank), self.above(rank), spec.link_rate.si, self.edge_latency_s)
            for group in groups:
                for one, other in combinations(range(self.routers), 2):
                    yield from both_ways(self._router(group, one), self._router(group, other), *local)
            for group, other_group in combinations(groups, 2):
                yield from both_ways(self._gate(group, other_group), self._gate(other_group, group), *across)

    def way(self, source: int, target: int) -> tuple[Edge, ...]:
        """The minimal one."""
        here, there = self._group(source), self._group(target)
        gates = [] if here == there else [self._gate(here, there), self._gate(there, here)]
        routers = dict.fromkeys([self.above(source), *gates, self.above(target)])
        return tuple(pairwise(chain([die(source)], routers, [die(target)])))

    def _group(self, rank: int) -> int:
        """Which group a rank is in, counted over all instances."""
        return rank // (self.span * self.routers)

    def _router(self, group: int, place: int) -> str:
        return f"{self.name} {group * self.routers + place}"

    def _gate(self, group: int, to: int) -> str:
        """The router of a group that has the link to another one."""
        return self._router(group, (to - group - 1) % self.groups % self.routers)
