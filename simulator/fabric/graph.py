"""The fabric as a networkx graph: dies and switches, directed edges with a rate and a latency, and routes over them.

Each level adds its links, in the way of its kind (`mesh`, `switch`, `rails`, `torus`, `dragonfly`), and says which way
leads from one die to another. Links can be missing or slower than their level says: the graph counts. Where a link of
the way is missing, the shortest way around it is taken.

Fabrics of meshes and switches that nothing changed need no graph to answer: routes, rates and crossings follow from the
levels by arithmetic, and are those of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from math import fsum
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError
from simulator.fabric.dragonfly import Dragonfly
from simulator.fabric.level import DIE, Edge, Level, die, joining, parts
from simulator.fabric.mesh import Mesh
from simulator.fabric.rails import Rails
from simulator.fabric.switch import Switch
from simulator.fabric.torus import Torus
from simulator.paths import did_you_mean
from simulator.spec.levels import LinkChange, cut_links, slow_links
from simulator.spec.machine import MachineSpec

if TYPE_CHECKING:
    import networkx as nx

KINDS: dict[str, type[Level]] = {
    "mesh": Mesh, "switch": Switch, "rails": Rails, "torus": Torus, "dragonfly": Dragonfly}


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
    their instance of each level by its name. by_level: the levels by their names, from the inside out. arithmetic:
    whether there are only meshes and switches, whose routes and crossings follow from ranks by arithmetic.
    InputError: more ranks than the machine has dies, or none; a link to cut or slow that is not there.
    """

    def __init__(self, spec: MachineSpec, ranks: int) -> None:
        if not 1 <= ranks <= spec.dies:
            raise InputError(f"{spec.name} has {spec.dies} dies ({_sizes(spec)}); {ranks} ranks were asked for")
        self.spec, self.ranks = spec, ranks
        self.answers: dict[Any, Any] = {}  # of who asks the same again
        self.by_level: dict[str, Level] = {}
        for level in spec.fabric:
            self.by_level[level.name] = KINDS[level.kind](level, tuple(self.by_level.values()), ranks)
        self.levels = tuple(self.by_level)
        self.arithmetic = all(type(level) in (Mesh, Switch) for level in self.by_level.values())
        self._latency_s = cache(_latency_s)
        self._graph: nx.DiGraph | None = None
        self._edges_built = 0
        if spec.cut or spec.slow or not self.arithmetic:
            self._build()

    @property
    def graph(self) -> nx.DiGraph:
        """All of it, made when it is first asked for: from then on it may be changed, and what it says counts."""
        return self._build() if self._graph is None else self._graph

    @property
    def as_described(self) -> bool:
        """Whether every link is surely there and as fast as the machine says, because nothing could change one."""
        return self._graph is None

    @cached_property
    def whole(self) -> bool:
        """Whether every link that the machine describes was there when this was first asked."""
        return self._graph is None or bool(self._graph.number_of_edges() == self._edges_built)

    def instance(self, rank: int, level: str) -> int:
        """Which instance of a level a rank belongs to: instance(17, "node") == 1. KeyError for a wrong level."""
        return rank // self.by_level[level].dies

    @cached_property
    def ways(self) -> tuple[int, ...]:
        """For each level the innermost one whose links hold back the dies that meet there, as far as the machine says.

        An uplink that carries all ports below it at once holds no die back.
        """
        ways: list[int] = []
        for level in self.by_level.values():
            below = level.below if isinstance(level, Switch) else None
            narrow = below is None or _ports_below(below) > level.spec.link_rate.si * (1 + 1e-9)
            ways.append(level.order if below is None or narrow else ways[below.order])
        return tuple(ways)

    def way(self, route: Route) -> tuple[int, int]:
        """The way of a route, and how many edges it is longer than it would be if no link were missing."""
        level = self.by_level[route.level]
        return self.ways[level.order], route.hops - level.shortest

    def moves(self, members: tuple[int, ...], shift: int) -> bool:
        """Whether the same members so many ranks further are joined in the same way, by the links so much further.

        At each level they move by whole instances, or stay together in one.
        """
        if not self.as_described:
            return False
        first, last = min(members), max(members)
        for level in self.by_level.values():
            dies = level.dies
            if first // dies == last // dies and (first + shift) // dies == (last + shift) // dies:
                return True  # nothing further out joins them
            if shift % dies:
                return False
        return True

    def route(self, source: int, target: int) -> Route:
        """The way from one rank to another through the innermost level that joins them; InputError: links are missing,
        and there is no way around them."""
        if source == target:
            return Route((), 0.0, "")
        level = joining(self.by_level.values(), source, target)
        way = level.way(source, target)
        if self._graph is None:
            return Route(way, self._latency_s(level), level.name)
        edges = self._graph.edges
        if not all(edge in edges for edge in way):
            way = self._around(source, target)
            level = max((self.by_level[edges[edge]["level"]] for edge in way), key=lambda each: each.order)
        return Route(way, fsum(edges[edge]["latency_s"] for edge in way), level.name)

    def link_rate(self, source: str, target: str) -> float:
        """Bytes per second of the link between two vertices."""
        if self._graph is None:
            return self.by_level[self.link_level(source, target)].spec.link_rate.si
        return float(self._graph.edges[source, target]["rate_bytes_per_s"])

    def link_level(self, source: str, target: str) -> str:
        """The level whose link joins two vertices: the outer one's, or the mesh of two dies."""
        if self._graph is not None:
            return str(self._graph.edges[source, target]["level"])
        orders = [self.levels.index(name) for name, _ in map(parts, (source, target)) if name != DIE]
        if orders:
            return self.levels[max(orders)]
        return joining(self.by_level.values(), parts(source)[1], parts(target)[1]).name

    def _build(self) -> nx.DiGraph:
        import networkx as nx  # only where links are looked at, or changed

        graph = self._graph = nx.DiGraph()
        for rank in range(self.ranks):
            places = {name: rank // level.dies for name, level in self.by_level.items()}
            graph.add_node(die(rank), rank=rank, **places)
        for name, level in self.by_level.items():
            if self.ranks > level.inside:  # with one child there is nothing to join here or further out
                for source, target, rate, latency_s in level.links():
                    graph.add_edge(source, target, rate_bytes_per_s=rate, latency_s=latency_s, level=name,
                                   order=4**level.order)  # fmt: skip
        self._edges_built = graph.number_of_edges()
        for key, changes in (("slow", slow_links(self.spec.slow)), ("cut", cut_links(self.spec.cut))):
            for change in changes:
                self._change(graph, f"machine.fabric.{key}", change)
        return graph

    def _change(self, graph: nx.DiGraph, key: str, change: LinkChange) -> None:
        """Cut a link, or slow it."""
        for edge in change.edges:
            problem = _no_such_link(graph, *edge)
            if problem:
                raise InputError(f"{key}: got '{change.text}': {problem}")
            if change.share:
                graph.edges[edge]["rate_bytes_per_s"] *= change.share
        if not change.share:
            graph.remove_edges_from(change.edges)

    def _around(self, source: int, target: int) -> tuple[Edge, ...]:
        """The way around links that are missing."""
        import networkx as nx

        # `order` grows faster than any way through inner levels, so the shortest way stays as far inside as it can
        try:
            return tuple(pairwise(nx.dijkstra_path(self.graph, die(source), die(target), weight="order")))
        except nx.NetworkXNoPath:
            cut = f": machine.fabric.cut is '{self.spec.cut}'" if self.spec.cut else ""
            raise InputError(f"links are missing, and no way leads from {die(source)} to {die(target)}{cut}") from None


def _latency_s(level: Level) -> float:
    """The sum of the latencies of the edges between dies that meet at a level, where all ways have as many."""
    if isinstance(level, Switch):
        return fsum([each.edge_latency_s for each in level.way_up] * 2)
    return level.spec.latency.si


def _ports_below(level: Switch) -> float:
    """Bytes/s of all ports below a switch of a level together."""
    return level.span // level.planes * level.way_up[0].spec.link_rate.si


def _no_such_link(graph: nx.DiGraph, source: str, target: str) -> str:
    """What is wrong with the name of a link; "" if it is there."""
    for vertex in (source, target):
        if vertex not in graph:
            names = sorted({name.rpartition(" ")[0] for name in graph})
            last = {name: max(parts(one)[1] for one in graph if parts(one)[0] == name) for name in names}
            there = ", ".join(f"{name} 0 to {last[name]}" if last[name] else f"{name} 0" for name in names)
            return f"there is no '{vertex}'{did_you_mean(vertex, graph)}; there are {there}"
    if graph.has_edge(source, target):
        return ""
    there = ", ".join(graph[source]) or "nothing"
    return f"no link leads from {source} to {target}; from {source} they lead to {there}"


def _sizes(spec: MachineSpec) -> str:
    """"2 dies per package, 8 packages per node"."""
    children = ["die", *(level.name for level in spec.fabric)]
    pairs = zip(children, spec.fabric, strict=False)
    return ", ".join(f"{level.size} {child}s per {level.name}" for child, level in pairs)
