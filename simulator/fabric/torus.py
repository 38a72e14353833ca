"""A torus: dies in a grid of one, two, three or more dimensions, linked to their neighbours and around the edges.

Routes go dimension by dimension, the first one first, the shorter way around; where both are as long, dies in even
places go up and those in odd ones down, so that both directions are used. Dies pass on what is not for them, whether
they are ranks or not; their memory is not loaded.

    extents 4, 2:    die 0 -> die 3 -> die 7      around the edge, then the second dimension
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from simulator.fabric.level import Edge, Level, Link, both_ways, die
from simulator.spec.levels import TorusLevel


class Torus(Level):
    """See `TorusLevel`."""

    spec: TorusLevel

    def _dimensions(self) -> Iterator[tuple[int, int]]:
        """(stride, extent) of each: dies of neighbouring places in it are `stride` ranks apart."""
        stride = 1
        for extent in self.spec.extents:
            yield stride, extent.count
            stride *= extent.count

    def links(self) -> Iterator[Link]:
        """Those of all dies of every instance that has ranks."""
        rate, latency_s = self.spec.link_rate.si, self.spec.latency.si
        for ranks in self.instances():
            for rank in range(ranks.start, ranks.start + self.dies):
                for stride, extent in self._dimensions():
                    place = rank // stride % extent
                    if place + 1 < extent or extent > 2:
                        after = rank + ((place + 1) % extent - place) * stride
                        yield from both_ways(die(rank), die(after), rate, latency_s)

    def way(self, source: int, target: int) -> tuple[Edge, ...]:
        """Dimension by dimension."""
        path = [source]
        for stride, extent in self._dimensions():
            place, to = source // stride % extent, target // stride % extent
            ahead = (to - place) % extent
            up = 2 * ahead + place % 2 <= extent
            for _ in range(ahead if up else extent - ahead):
                after = (place + (1 if up else -1)) % extent
                path.append(path[-1] + (after - place) * stride)
                place = after
        return tuple((die(one), die(other)) for one, other in pairwise(path))
