"""The fabric as a networkx graph: dies and switches, directed edges with a rate and a latency, and routes over them.

Vertices are named for people: "die 3", "node 0" (the first-level switch of node 0), "supernode 0". A level of kind
"mesh" has no vertex: its dies have direct edges. Levels say their latency end to end; an edge carries its part of it,
so that the edges of a route add up to what the level says:

    die 0 -> node 0 -> die 5                     0.35 + 0.35             = 0.7 us
    die 0 -> node 0 -> supernode 0 -> node 1 -> die 16    0.35 + 0.7 + 0.7 + 0.35 = 2.1 us
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations
from math import fsum
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError

if TYPE_CHECKING:
    import networkx as nx

    from simulator.spec.machine import LevelSpec, MachineSpec

Edge = tuple[str, str]
DIE = "die"


@dataclass(frozen=True, slots=True)
class Route:
    """The way of bytes between two ranks. `level`: the outermost level it crosses ("" for a rank and itself)."""

    edges: tuple[Edge, ...]
    latency_s: float
    level: str

    @property
    def hops(self) -> int:
        """How many edges the way has."""
        return len(self.edges)


class Fabric:
    """What `ranks` dies of a machine are connected by; rank r is the r-th die, counted from the inside out.

    Only the switches that these dies need are there: 32 dies of Atlas A3 are two nodes under one second-level switch.
    `graph` is a networkx.DiGraph; edges have rate_bytes_per_s, latency_s and level, dies have rank and the index of
    their instance of each level by its name.

    Raises:
        InputError: more ranks than the machine has dies, or none.
    """

    def __init__(self, spec: MachineSpec, ranks: int) -> None:
        if not 1 <= ranks <= spec.dies:
            raise InputError(f"{spec.name} has {spec.dies} dies ({_sizes(spec)}); {ranks} ranks were asked for")
        self.spec, self.ranks = spec, ranks
        self.answers: dict[Any, Any] = {}  # of who asks the same again
        self.levels = tuple(level.name for level in spec.fabric)
        self._die_counts = _die_counts(spec)
        self._ladders = [self._ladder(order) for order in range(len(spec.fabric))]
        self._graph: nx.DiGraph | None = None
        self._edges_built = 0

    @property
    def graph(self) -> nx.DiGraph:
        """All of it, made when it is first asked for: from then on it may be changed, and what it says counts."""
        if self._graph is None:
            import networkx as nx  # only where somebody wants to look at links, or to change one

            self._graph = nx.DiGraph()
            for rank in range(self.ranks):
                places = {name: rank // dies for name, dies in self._die_counts.items()}
                self._graph.add_node(die(rank), rank=rank, **places)
            for order, level in enumerate(self.spec.fabric):
                self._add_level(level, order, self._graph)
            self._edges_built = self._graph.number_of_edges()
        return self._graph

    @property
    def as_described(self) -> bool:
        """Whether every link is surely there and as fast as the machine says, because nobody could change one."""
        return self._graph is None

    def instance(self, rank: int, level: str) -> int:
        """Which instance of a level a rank belongs to: instance(17, "node") == 1. KeyError for a wrong level."""
        return rank // self._die_counts[level]

    @cached_property
    def ways(self) -> tuple[int, ...]:
        """For each level the innermost one whose links hold back whoever meets there, as far as the machine says.

        An uplink that carries all ports below it at once holds nobody back.
        """
        ways: list[int] = []
        for order, level in enumerate(self.spec.fabric):
            ladder = self._ladders[order] if level.kind == "switch" else ()
            below = self.levels.index(ladder[-2][0]) if len(ladder) > 1 else order
            narrow = below == order or self._rate_below(below) > level.link_rate.si * (1 + 1e-9)
            ways.append(order if narrow else ways[below])
        return tuple(ways)

    def _rate_below(self, order: int) -> float:
        """Bytes/s of all ports below a switch of a level together."""
        port = self.levels.index(self._ladders[order][0][0])
        return self._die_counts[self.levels[order]] * self.spec.fabric[port].link_rate.si

    def way(self, route: Route) -> tuple[int, int]:
        """The way of a route, and how many edges it is longer than it would be if no link were missing."""
        order = self.levels.index(route.level)
        shortest = 1 if self.spec.fabric[order].kind == "mesh" else 2 * len(self._ladders[order])
        return self.ways[order], route.hops - shortest

    def dies_of(self, level: str) -> int:
        """How many dies a full instance of a level has."""
        return self._die_counts[level]

    def moves(self, members: tuple[int, ...], shift: int) -> bool:
        """Whether the same members so many ranks further are joined in the same way, by the links so much further.

        At each level they move by whole instances, or stay together in one.
        """
        if not self.as_described:
            return False
        for dies in self._die_counts.values():
            first, last = min(members), max(members)
            if first // dies == last // dies and (first + shift) // dies == (last + shift) // dies:
                return True  # nothing further out joins them
            if shift % dies:
                return False
        return True

    def members(self, level: str, index: int) -> range:
        """The ranks in one instance of a level: members("node", 1) == range(16, 32)."""
        dies = self._die_counts[level]
        return range(min(index * dies, self.ranks), min((index + 1) * dies, self.ranks))

    def links(self) -> Iterator[tuple[str, str, float]]:
        """Every directed edge with its rate in bytes per second."""
        yield from self.graph.edges(data="rate_bytes_per_s")

    def route(self, source: int, target: int) -> Route:
        """The way from one rank to another through the innermost level that joins them."""
        if source == target:
            return Route((), 0.0, "")
        order = self._joins(source, target)
        level = self.spec.fabric[order]
        if level.kind == "mesh":
            way: tuple[Edge, ...] = ((die(source), die(target)),)
        else:
            down = tuple((above, below) for below, above in reversed(self.climb(target, order)))
            way = self.climb(source, order) + down
        if self._graph is None:
            return Route(way, fsum(self._latency_s(self._order_of(*edge)) for edge in way), level.name)
        if not all(self._graph.has_edge(*edge) for edge in way):
            return self._search(source, target)
        return Route(way, fsum(self._graph.edges[edge]["latency_s"] for edge in way), level.name)

    def link_rate(self, source: str, target: str) -> float:
        """Bytes per second of the link between two vertices."""
        if self._graph is None:
            return self.spec.fabric[self._order_of(source, target)].link_rate.si
        return float(self._graph.edges[source, target]["rate_bytes_per_s"])

    def link_level(self, source: str, target: str) -> str:
        """The level whose link joins two vertices."""
        return self.levels[self._order_of(source, target)]

    def _order_of(self, source: str, target: str) -> int:
        """The place of the level whose link joins two vertices: the outer one's, or the mesh of two dies."""
        orders = [self.levels.index(name) for name, _ in map(parts, (source, target)) if name != DIE]
        return max(orders) if orders else self._joins(parts(source)[1], parts(target)[1])

    def climb(self, rank: int, order: int) -> tuple[Edge, ...]:
        """The edges from a die up to its switch of a level (by its place in the machine), innermost first."""
        edges, below = [], die(rank)
        for name, dies in self._ladders[order]:
            above = f"{name} {rank // dies}"
            edges.append((below, above))
            below = above
        return tuple(edges)

    @cached_property
    def whole(self) -> bool:
        """Whether every link that the machine describes was there when this was first asked."""
        return self._graph is None or bool(self._graph.number_of_edges() == self._edges_built)

    def _joins(self, source: int, target: int) -> int:
        """The place of the innermost level that holds both ranks in one instance."""
        counts = enumerate(self._die_counts.values())
        return next(order for order, dies in counts if source // dies == target // dies)

    def _search(self, source: int, target: int) -> Route:
        """The way around links that are missing; NetworkXNoPath if there is none."""
        import networkx as nx

        # `order` grows faster than any way through inner levels, so the shortest way stays as far inside as it can
        edges = self.graph.edges
        path = nx.dijkstra_path(self.graph, die(source), die(target), weight="order")
        way = tuple(pairwise(path))
        outermost = max((edges[edge] for edge in way), key=lambda each: each["order"])
        return Route(way, fsum(edges[edge]["latency_s"] for edge in way), outermost["level"])

    def _ladder(self, order: int) -> tuple[tuple[str, int], ...]:
        """(name, dies) of the switch levels on the way from a die up to a level, innermost first."""
        level = self.spec.fabric[order]
        below, _ = self._below(level, order)
        here = (level.name, self._die_counts[level.name])
        return (here,) if below is None else (*self._ladder(self.spec.fabric.index(below)), here)

    def _add_level(self, level: LevelSpec, order: int, graph: nx.DiGraph) -> None:
        """The edges of one level, as far as the ranks need them."""
        attributes = {"rate_bytes_per_s": level.link_rate.si, "latency_s": self._latency_s(order), "level": level.name,
                      "order": 4**order}  # fmt: skip
        if self.ranks <= self._die_counts[level.name] // level.size.count:
            return  # one child: nothing to join here or further out
        for index in range(self.instance(self.ranks - 1, level.name) + 1):
            ranks = self.members(level.name, index)
            if level.kind == "mesh":
                graph.add_edges_from(((die(a), die(b)) for a, b in permutations(ranks, 2)), **attributes)
                continue
            below, _ = self._below(level, order)
            ends = [die(rank) for rank in ranks]
            if below is not None:
                indices = dict.fromkeys(self.instance(rank, below.name) for rank in ranks)
                ends = [f"{below.name} {each}" for each in indices]
            for end in ends:
                switch = f"{level.name} {index}"
                graph.add_edges_from([(end, switch), (switch, end)], **attributes)

    def _latency_s(self, order: int) -> float:
        """The part of a level's latency that each of its edges bears."""
        level = self.spec.fabric[order]
        return level.latency.si if level.kind == "mesh" else (level.latency.si - self._below(level, order)[1]) / 2

    def _below(self, level: LevelSpec, order: int) -> tuple[LevelSpec | None, float]:
        """The switch level that has the ports of this one, and its latency; (None, 0.0) where dies have them."""
        inner = [each for each in self.spec.fabric[:order] if each.kind == "switch"]
        if level.ports == "die" or not inner:
            return None, 0.0
        return inner[-1], inner[-1].latency.si


def die(rank: int) -> str:
    """The vertex of a rank."""
    return f"{DIE} {rank}"


def parts(vertex: str) -> tuple[str, int]:
    """What a vertex is and its number: ("die", 3), ("node", 0)."""
    name, _, number = vertex.rpartition(" ")
    return name, int(number)


def _sizes(spec: MachineSpec) -> str:
    """"2 dies per package, 8 packages per node"."""
    children = ["die", *(level.name for level in spec.fabric)]
    pairs = zip(children, spec.fabric, strict=False)
    return ", ".join(f"{level.size} {child}s per {level.name}" for child, level in pairs)


def _die_counts(spec: MachineSpec) -> dict[str, int]:
    """Dies in one full instance of each level, by its name."""
    counts, product = {}, 1
    for level in spec.fabric:
        product *= level.size.count
        counts[level.name] = product
    return counts
