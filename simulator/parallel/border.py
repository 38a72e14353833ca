"""Borders between pieces of a layer: what a rank holds of a group's tokens, what it needs, and the collective between.

Forms in which the ranks of a group hold the values of the same tokens (as DTensor's placements: Replicate, Shard,
Partial): ``all`` (every rank has them all), ``own`` (each has its equal share of the tokens), ``partial`` (each has a
partial sum of all), ``heads`` (each has its share of every token's values).

    gives     needs   collective           bytes of a rank of n, for tokens of so many bytes
    own       all     AllGather            its share to all
    partial   all     AllReduce            the whole buffer
    partial   own     ReduceScatter        a share of every rank's buffer
    heads     own     All2All              its heads of a share of the tokens, to each
    own       heads   All2All              the same, back
    heads     all     AllGather            its heads of all tokens to all
    all       own, heads, partial   none   a rank takes its part of what it has

All others are none (the form stays) or not needed. Groups of one rank need none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from simulator.errors import InputError
from simulator.program.rank import Event, Group
from simulator.stack.stacks import Stack

Form = Literal["all", "own", "partial", "heads"]

COLLECTIVES: dict[tuple[Form, Form], str] = {
    ("own", "all"): "all_gather",
    ("partial", "all"): "all_reduce",
    ("partial", "own"): "reduce_scatter",
    ("heads", "own"): "all_to_all",
    ("own", "heads"): "all_to_all",
    ("heads", "all"): "all_gather",
}
OF_ALL_TO_ALL = {"ring": "direct", "hierarchical": "pairwise"}
"""How an All2All goes about it where an algorithm is of other collectives alone: over nodes peer by peer."""
FREE: set[tuple[Form, Form]] = {("all", "own"), ("all", "heads")}


@dataclass(frozen=True)
class Engines:
    """What drives collectives, and how (`collective.algorithms`).

    reducing: for an AllReduce of up to `reducing_ranks` members and `reducing_bytes` of buffer, where there is such, by
    `reducing_algorithm`.
    all_to_all: how an All2All goes about it, where not as the others.
    """

    engine: str
    algorithm: str = "auto"
    reducing: str = ""
    reducing_ranks: int = 0
    reducing_bytes: float = inf
    all_to_all: str = ""
    reducing_algorithm: str = "auto"

    def of(self, kind: str, size_bytes: float, ranks: int) -> tuple[str, str]:
        """Engine and algorithm of a collective of so many members; `size_bytes` are an AllReduce's buffer."""
        near = ranks <= self.reducing_ranks and size_bytes <= self.reducing_bytes
        if self.reducing and kind == "all_reduce" and near:
            return self.reducing, self.reducing_algorithm
        if kind == "all_to_all":
            return self.engine, self.all_to_all or OF_ALL_TO_ALL.get(self.algorithm, self.algorithm)
        return self.engine, self.algorithm


def engines_for(stack: Stack, there: Mapping[str, int], engine: str, algorithm: str, reducing: str,
                most_bytes: float) -> Engines:
    """What drives a stack's collectives on a machine that has these engines, each for so many neighbours.

    engine, algorithm: of all (empty: the first that the stack takes). reducing: of an AllReduce of up to `most_bytes`
    (empty: as the stack; "none": as all). InputError where the machine has none that the stack takes.
    """
    chosen = engine or _first(stack.engines, there)
    if not chosen:
        raise InputError(f"knobs.engine: {stack.name} takes {', '.join(stack.engines)}, of which the machine has none; "
                         f"it has {', '.join(there)}")
    near = reducing or _first(stack.reducing_engines, there)
    return Engines(chosen, algorithm or stack.algorithm, "" if near == "none" else near, there.get(near, 0), most_bytes)


def _first(wanted: Sequence[str], there: Mapping[str, int]) -> str:
    return next((one for one in wanted if one in there), "")


def cross(group: Group, name: str, gives: Form, needs: Form, tokens: int, row_bytes: float,
          engines: Engines) -> Event | None:
    """Launch the collective that turns one form of a group's tokens into another; None if there is none to launch.

    tokens: of the whole group. row_bytes: of all values of one token. ValueError for a border that is in no table.
    """
    if group.size == 1 or gives == needs or (gives, needs) in FREE or not tokens:
        return None
    kind = COLLECTIVES.get((gives, needs))
    if kind is None:
        raise ValueError(f"{name}: no collective turns '{gives}' into '{needs}'")
    whole = round(tokens * row_bytes)
    share = -(-tokens // group.size) * row_bytes
    via, algorithm = engines.of(kind, whole, group.size)
    if kind == "all_reduce":
        return group.all_reduce(name, whole, via, algorithm)
    if kind == "reduce_scatter":
        return group.reduce_scatter(name, round(share), via, algorithm)
    if kind == "all_to_all":
        return group.all_to_all(name, round(share / group.size), via, algorithm)
    return group.all_gather(name, round(share if gives == "own" else whole / group.size), via, algorithm)
