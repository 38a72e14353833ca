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
from itertools import pairwise, permutations
from math import fsum

import networkx as nx

from simulator.errors import InputError
from simulator.machine.spec import LevelSpec, MachineSpec

Edge = tuple[str, str]


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
        self.levels = tuple(level.name for level in spec.fabric)
        self.graph = nx.DiGraph()
        self._routes: dict[int, dict[int, Route]] = {}
        self._die_counts = _die_counts(spec)
        for rank in range(ranks):
            places = {name: rank // dies for name, dies in self._die_counts.items()}
            self.graph.add_node(die(rank), rank=rank, **places)
        for order, level in enumerate(spec.fabric):
            self._add_level(level, order)

    def instance(self, rank: int, level: str) -> int:
        """Which instance of a level a rank belongs to: instance(17, "node") == 1. KeyError for a wrong level."""
        return rank // self._die_counts[level]

    def members(self, level: str, index: int) -> range:
        """The ranks in one instance of a level: members("node", 1) == range(16, 32)."""
        dies = self._die_counts[level]
        return range(min(index * dies, self.ranks), min((index + 1) * dies, self.ranks))

    def links(self) -> Iterator[tuple[str, str, float]]:
        """Every directed edge with its rate in bytes per second."""
        yield from self.graph.edges(data="rate_bytes_per_s")

    def route(self, source: int, target: int) -> Route:
        """The way from one rank to another through the innermost level that joins them.

        All ways from one source are found together, the first time one of them is asked for.
        """
        ways = self._routes.get(source)
        if ways is None:
            ways = self._routes[source] = self._routes_from(source)
        return ways[target]

    def _routes_from(self, source: int) -> dict[int, Route]:
        # `order` grows faster than any way through inner levels, so the shortest way stays as far inside as it can
        paths = nx.single_source_dijkstra_path(self.graph, die(source), weight="order")
        edges = self.graph.edges
        ways = {}
        for target in range(self.ranks):
            way = tuple(pairwise(paths[die(target)]))
            outermost = max((edges[edge] for edge in way), key=lambda each: each["order"], default={"level": ""})
            ways[target] = Route(way, fsum(edges[edge]["latency_s"] for edge in way), outermost["level"])
        return ways

    def _add_level(self, level: LevelSpec, order: int) -> None:
        """The edges of one level, as far as the ranks need them."""
        if self.ranks <= self._die_counts[level.name] // level.size.count:
            return  # one child: nothing to join here or further out
        for index in range(self.instance(self.ranks - 1, level.name) + 1):
            ranks = self.members(level.name, index)
            if level.kind == "mesh":
                for one, other in permutations(ranks, 2):
                    self._edge(die(one), die(other), level, order, level.latency.si)
                continue
            below, below_latency_s = self._below(level, order)
            ends = [die(rank) for rank in ranks]
            if below is not None:
                indices = dict.fromkeys(self.instance(rank, below.name) for rank in ranks)
                ends = [f"{below.name} {each}" for each in indices]
            for end in ends:
                for edge in ((end, f"{level.name} {index}"), (f"{level.name} {index}", end)):
                    self._edge(*edge, level, order, (level.latency.si - below_latency_s) / 2)

    def _below(self, level: LevelSpec, order: int) -> tuple[LevelSpec | None, float]:
        """The switch level that has the ports of this one, and its latency; (None, 0.0) where dies have them."""
        inner = [each for each in self.spec.fabric[:order] if each.kind == "switch"]
        if level.ports == "die" or not inner:
            return None, 0.0
        return inner[-1], inner[-1].latency.si

    def _edge(self, source: str, target: str, level: LevelSpec, order: int, latency_s: float) -> None:
        self.graph.add_edge(source, target, rate_bytes_per_s=level.link_rate.si, latency_s=latency_s,
                            level=level.name, order=4**order)


def die(rank: int) -> str:
    """The vertex of a rank."""
    return f"die {rank}"


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
