"""What every kind of level is to a fabric: its links, and the way between two dies that meet there.

Vertices are named for people: "die 3", "node 0" (the switch of node 0 of a level "node"). A kind is a class in a file
of its own, which says `links` and `way`; the graph is made of all links, and a way may only take what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from simulator.spec.levels import LevelSpec

Edge = tuple[str, str]
DIE = "die"


class Link(NamedTuple):
    """A directed edge. latency_s: its part of that of the routes that take it."""

    source: str
    target: str
    rate_bytes_per_s: float
    latency_s: float


class Level:
    """One level among `ranks` dies. inner: the levels inside it, inside out. inside, dies: of a child, of an instance.

    shortest: how many edges the way between two dies has that meet here; 0 where that depends on the two.
    """

    shortest = 0

    def __init__(self, spec: LevelSpec, inner: Sequence[Level], ranks: int) -> None:
        self.spec, self.name, self.inner, self.ranks = spec, spec.name, inner, ranks
        self.order = len(inner)
        self.inside: int = inner[-1].dies if inner else 1
        self.dies: int = self.inside * spec.size.count

    def instances(self) -> Iterator[range]:
        """The ranks of each instance that has any."""
        for first in range(0, self.ranks, self.dies):
            yield range(first, min(first + self.dies, self.ranks))

    def links(self) -> Iterator[Link]:
        """The directed edges of this level, as far as the ranks need them."""
        raise NotImplementedError

    def way(self, source: int, target: int) -> tuple[Edge, ...]:
        """The edges from one rank to another one of the same instance and another child."""
        raise NotImplementedError


def joining(levels: Iterable[Level], source: int, target: int) -> Level:
    """The innermost level that holds both ranks in one instance."""
    return next(level for level in levels if source // level.dies == target // level.dies)


def both_ways(one: str, other: str, rate_bytes_per_s: float, latency_s: float) -> Iterator[Link]:
    """A link and its opposite."""
    yield Link(one, other, rate_bytes_per_s, latency_s)
    yield Link(other, one, rate_bytes_per_s, latency_s)


def die(rank: int) -> str:
    """The vertex of a rank."""
    return f"{DIE} {rank}"


def parts(vertex: str) -> tuple[str, int]:
    """What a vertex is and its number: ("die", 3), ("node", 0)."""
    name, _, number = vertex.rpartition(" ")
    return name, int(number)
