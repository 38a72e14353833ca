"""Switches: dies have ports to them, or the switches of the level below have uplinks.

Levels say their latency end to end; an edge bears its part of it, so that the edges of a way add up to it:

    die 0 -> node 0 -> die 5                     0.35 + 0.35             = 0.7 us
    die 0 -> node 0 -> supernode 0 -> node 1 -> die 16    0.35 + 0.7 + 0.7 + 0.35 = 2.1 us
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from simulator.fabric.level import Edge, Level, Link, both_ways, die
from simulator.spec.levels import LevelSpec


class Switch(Level):
    """See `SwitchLevel`; also what all kinds with a switch above each die have in common.

    below: the level whose switches have the ports of this one; None where dies have them. way_up: the levels whose
    switches lie on the way up from a die, innermost first. Every `span` dies share `planes` switches, one by one.
    """

    def __init__(self, spec: LevelSpec, inner: Sequence[Level], ranks: int) -> None:
        super().__init__(spec, inner, ranks)
        under = [level for level in inner if isinstance(level, Switch)]
        self.below = under[-1] if under and getattr(spec, "ports", "die") != "die" else None
        self.way_up: tuple[Switch, ...] = (*(self.below.way_up if self.below else ()), self)
        self.shortest = 2 * len(self.way_up)
        self.span, self.planes = self.dies, 1

    @cached_property
    def edge_latency_s(self) -> float:
        """The part of the level's latency that each of its edges bears."""
        return (self.spec.latency.si - (self.below.spec.latency.si if self.below else 0.0)) / 2

    def above(self, rank: int) -> str:
        """The switch of this level over a die."""
        return f"{self.name} {rank // self.span * self.planes + rank % self.planes}"

    def climb(self, rank: int) -> tuple[Edge, ...]:
        """The edges from a die up to its switch of this level, innermost first."""
        edges, below = [], die(rank)
        for level in self.way_up:
            above = level.above(rank)
            edges.append((below, above))
            below = above
        return tuple(edges)

    def links(self) -> Iterator[Link]:
        """A link up and one down for every port."""
        for ranks in self.instances():
            ends = {self.below.above(rank) if self.below else die(rank): self.above(rank) for rank in ranks}
            for end, switch in ends.items():
                yield from both_ways(end, switch, self.spec.link_rate.si, self.edge_latency_s)

    def way(self, source: int, target: int) -> tuple[Edge, ...]:
        """Up to the switch that both have, and down again."""
        down = tuple((above, below) for below, above in reversed(self.climb(target)))
        return self.climb(source) + down
