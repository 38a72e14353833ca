"""A full mesh: every two dies have a link of their own.

    die 0 -> die 5        the whole latency
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from simulator.fabric.level import Edge, Level, Link, die


class Mesh(Level):
    """See `MeshLevel`."""

    shortest = 1

    def links(self) -> Iterator[Link]:
        """One for every ordered pair of dies."""
        rate, latency_s = self.spec.link_rate.si, self.spec.latency.si
        for ranks in self.instances():
            yield from (Link(die(a), die(b), rate, latency_s) for a, b in permutations(ranks, 2))

    def way(self, source: int, target: int) -> tuple[Edge, ...]:
        """The one link."""
        return ((die(source), die(target)),)
