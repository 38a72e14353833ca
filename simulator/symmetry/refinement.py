"""Colours of many vertices at once: a new colour is a number for what a vertex is and for the bag of its ties.

A bag (a multiset of (label, colour of the other end)) is the sum of a 64-bit hash of its members, and colours are the
distinct values of a hash of what makes them: with a million vertices two different ones get one colour once in ten
million runs, and with the same input always the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from simulator import np
from simulator.np import Array


class Ties:
    """Ties from vertices to others, each with a label; the other ends are given as positions in their colours."""

    def __init__(self, vertices: int, owner: Array, label: Array, other: Array) -> None:
        order = np.argsort(owner, kind="stable")
        self.vertices = vertices
        self._label, self._other = label[order], other[order]
        self._tied, first = np.unique(owner[order], return_index=True)
        self._bounds = np.append(first, len(owner))

    def of(self, vertex: int) -> tuple[Array, Array]:
        """Labels and other ends of a vertex, in the order in which they were given."""
        start, end = self._bounds[np.searchsorted(self._tied, (vertex, vertex + 1))]
        return self._label[start:end], self._other[start:end]

    def bags(self, colours: Array) -> Array:
        """The bag of every vertex's ties, as a number; 0 for those without any."""
        bags = np.zeros(self.vertices, dtype=np.uint64)
        if len(self._tied):
            bags[self._tied] = np.add.reduceat(mixed(self._label, colours[self._other]), self._bounds[:-1])
        return bags


def mixed(*columns: Array) -> Array:
    """One hash per row."""
    rows = np.full(len(columns[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in columns:
        rows = (rows ^ column.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        rows = (rows ^ (rows >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # the finaliser of splitmix64
        rows = (rows ^ (rows >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        rows ^= rows >> np.uint64(31)
    return rows


def colours_of(*columns: Array) -> Array:
    """The same small number for rows that are the same."""
    return np.unique(mixed(*columns), return_inverse=True)[1].astype(np.int64)


def numbered(values: Iterable[Hashable]) -> Array:
    """Small numbers in the order of first appearance."""
    names: dict[Hashable, int] = {}
    return np.array([names.setdefault(value, len(names)) for value in values], dtype=np.int64)


def classes(colours: Array) -> int:
    """How many different colours there are."""
    return int(colours.max()) + 1 if len(colours) else 0


def first_of_each(colours: Array, rank: Array) -> Array:
    """The position of the vertex with the smallest `rank` (then the smallest position) in every class."""
    order = np.lexsort((np.arange(len(colours)), rank, colours))
    _, first = np.unique(colours[order], return_index=True)
    return order[first]
