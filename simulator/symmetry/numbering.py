"""Every capacity of a machine as a number, so that moving a group of ranks along the fabric is an addition.

Capacities of one *family* follow each other: HBMs, L2s, what leaves the ranks at one rate, the links up from the
switches of one level. The one of rank r is r / stride further, where `stride` ranks share one; a link of a mesh has
`each` numbers for every rank, so that it is each x r further. Where a fabric is not as its levels describe it, or of
other kinds than meshes and switches, groups do not move, and links have the numbers of the graph's edges.

Worked example: 32 ranks in nodes of 16. The link from "node 1" up is 1 further than that from "node 0": a group that
moves by 16 ranks finds its links up one further, and its HBMs 16 further.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from simulator import np
from simulator.collective.transfer import CapacityKey
from simulator.fabric.graph import Fabric
from simulator.fabric.level import DIE, die, parts
from simulator.symmetry.refinement import Array


@dataclass(frozen=True, slots=True)
class CapacityFamily:
    """Capacities whose numbers start at `base`. key(n): the n-th one."""

    base: int
    stride: int
    each: int
    key: Callable[[int], CapacityKey]
    is_link: bool = False


class Numbering:
    """Numbers of capacities, by family in the order of their first use; rank r's HBM is r, its L2 is `ranks` + r."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.ranks = fabric, fabric.ranks
        self.families: list[CapacityFamily] = []
        self._known: dict[tuple, CapacityFamily] = {}
        self._bases: list[int] = []
        self._edges: dict[tuple[str, str], int] = {}
        self.total = 0
        for pool in ("hbm", "l2"):
            self._family((pool,), 1, lambda rank, pool=pool: (pool, rank))  # type: ignore[misc]

    def of(self, key: CapacityKey) -> tuple[int, CapacityFamily]:
        """The number of a capacity, and its family."""
        if key[0] == "link":
            return self._link(key[1], key[2])
        kind, rank, *rate = key
        family = self._family((kind, *rate), 1, lambda rank: (kind, rank, *rate))
        return family.base + rank, family

    def family(self, number: int) -> int:
        """The place of a number's family among all."""
        return bisect_right(self._bases, number) - 1

    def key(self, number: int) -> CapacityKey:
        """The capacity of a number."""
        family = self.families[self.family(number)]
        return family.key(number - family.base)

    def steps(self, numbers: Array) -> tuple[Array, Array]:
        """For every number how far it moves: `each` for every `stride` ranks."""
        place = np.searchsorted(self._bases, numbers, side="right") - 1
        each = np.array([family.each for family in self.families], dtype=np.int64)
        stride = np.array([family.stride for family in self.families], dtype=np.int64)
        return each[place], stride[place]

    def _family(self, name: tuple, stride: int, key: Callable[[int], CapacityKey], each: int = 1, is_link: bool = False,
                count: int = 0) -> CapacityFamily:
        """The family of a name, which begins where the others end if it is new."""
        if name in self._known:
            return self._known[name]
        family = self._known[name] = CapacityFamily(self.total, stride, each, key, is_link)
        self.families.append(family)
        self._bases.append(self.total)
        self.total += count or -(-self.ranks // stride) * each
        return family

    def _edge(self, source: str, target: str) -> tuple[int, CapacityFamily]:
        """A link by its place among the graph's edges."""
        family = self._known.get(("link",))
        if family is None:
            edges = list(self.fabric.graph.edges)
            self._edges = {edge: number for number, edge in enumerate(edges)}
            family = self._family(("link",), 1, lambda number: ("link", *edges[number]), 1, True, len(edges))
        return family.base + self._edges[source, target], family

    def _link(self, source: str, target: str) -> tuple[int, CapacityFamily]:
        if not self.fabric.as_described:
            return self._edge(source, target)
        (below, at), (above, to) = parts(source), parts(target)
        if below == above == DIE:
            return self._mesh_link(at, to)
        up = self._order(below) < self._order(above)
        if not up:
            below, above, at = above, below, to
        dies, around = self._dies(below), self._dies(above)

        def key(number: int) -> CapacityKey:
            ends = f"{below} {number}", f"{above} {number * dies // around}"
            return ("link", *ends) if up else ("link", *ends[::-1])

        family = self._family(("link", below, above, up), dies, key, is_link=True)
        return family.base + at, family

    def _mesh_link(self, source: int, target: int) -> tuple[int, CapacityFamily]:
        """Ends are less than the dies of an instance apart."""
        dies = self._dies(self.fabric.levels[0])

        def key(number: int) -> CapacityKey:
            rank, place = divmod(number, 2 * dies)
            return ("link", die(rank), die(rank + place - dies))

        family = self._family(("link",), 1, key, 2 * dies, is_link=True)
        return family.base + source * 2 * dies + target - source + dies, family

    def _order(self, name: str) -> int:
        return -1 if name == DIE else self.fabric.levels.index(name)

    def _dies(self, name: str) -> int:
        return 1 if name == DIE else self.fabric.by_level[name].dies
