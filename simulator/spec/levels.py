"""The levels of a machine's fabric: a kind each, with the numbers that the kind needs. What they build is in `fabric`.

Rates are one way. `size` is how many children an instance of a level has: dies, or instances of the level before it.
Links that a machine lacks, or whose rate is lower, are said in the words of a trace:

    cut  = "die 3 - node 0, die 5 to node 0"        both directions of one link, one direction of another
    slow = "die 3 - node 0: 0.5"                    half of its rate is left
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import Field

from simulator.spec.typed_toml import TomlTable
from simulator.units import BytesPerSecond, PositiveCount, Seconds

MOST_DIES = MOST_LINKS = 1_000_000
"""Of a machine, and in one instance of a level that joins all with all: what is more would take hours and memory that
no computer has."""
LINK_SETTINGS = ("fabric.cut", "fabric.slow")
_LINK_TEXT = '"A - B" for both directions of a link or "A to B" for one, as in "die 3 - node 0"; several with commas'


class _Level(TomlTable):
    """What every level has. latency: end to end, die to die, for two dies whose nearest common level is this one."""

    name: str
    size: PositiveCount
    link_rate: BytesPerSecond
    latency: Seconds
    note: str | None = None


class MeshLevel(_Level):
    """A link between every two dies (innermost level only); `link_rate` is that of one link."""

    kind: Literal["mesh"]


class SwitchLevel(_Level):
    """One non-blocking switch; `link_rate` is that of a port.

    `ports` says whose: every "die" has one (NICs, the first switch), or every "switch" of the level below has one
    uplink. Left out: "die" for the innermost level with switches, "switch" for the others.
    """

    kind: Literal["switch"]
    ports: Literal["die", "switch"] | None = None


class RailsLevel(_Level):
    """A switch for every place in a child: the dies of one place in all children share it (rail-optimised networks).

    `link_rate` is that of a die's port. Between places, bytes go inside the sender's child to the die of the receiver's
    place, then over its rail; `latency` is that of two dies of one place.
    """

    kind: Literal["rails"]


class TorusLevel(_Level):
    """A grid of dies with links to both neighbours in each dimension, and around its edges (innermost level only).

    extents: dies in each dimension, the first one that of neighbouring ranks. `link_rate` and `latency` are those of
    one link. Where an extent is 2, a die has one neighbour in that dimension and one link to it.
    """

    kind: Literal["torus"]
    extents: list[PositiveCount] = Field(min_length=1)


class DragonflyLevel(_Level):
    """`groups` of `routers`, each with as many dies; a link between every two routers of a group and every two groups.

    `link_rate` is that of a die's port, `latency` that of two dies of one router. local_rate, local_latency: of a link
    inside a group; global_rate, global_latency: of a link between groups.
    """

    kind: Literal["dragonfly"]
    groups: PositiveCount
    routers: PositiveCount
    local_rate: BytesPerSecond
    local_latency: Seconds
    global_rate: BytesPerSecond
    global_latency: Seconds


_Kinds: TypeAlias = MeshLevel | SwitchLevel | RailsLevel | TorusLevel | DragonflyLevel
LevelSpec: TypeAlias = Annotated[_Kinds, Field(discriminator="kind")]


def disagreeing_levels(fabric: Sequence[LevelSpec]) -> Iterator[tuple[str, Any, str]]:
    """(key, what is there, what is right) of levels that cannot be built, or whose latencies shrink on the way out."""
    names, inner, inside = [level.name for level in fabric], None, 1
    for place, level in enumerate(fabric):
        key = f"fabric.{level.name}"
        if names.index(level.name) != place:
            yield f"fabric[{place}].name", level.name, "every level needs a name of its own"
        if isinstance(level, MeshLevel | TorusLevel):
            if place > 0:
                yield f"{key}.kind", level.kind, f"a {level.kind} joins dies: only the innermost level can be one"
        elif isinstance(level, SwitchLevel):
            if level.ports == "switch" and inner is None:
                yield f"{key}.ports", level.ports, 'no switch lies below this level; write "die"'
            if inner is not None and level.ports != "die" and level.latency.si < inner.latency.si:
                yield f"{key}.latency", level.latency, f"at least {inner.latency}: the way leads through '{inner.name}'"
        yield from _counts(level, key, inside)
        inner = inner if isinstance(level, MeshLevel | TorusLevel) else level
        before, inside = inside, inside * (int(level.size.si) if level.size.si >= 1 else 1)
        if before <= MOST_DIES < inside:
            yield f"{key}.size", level.size, f"so small that the machine has at most {MOST_DIES:,} dies"


def _counts(level: LevelSpec, key: str, inside: int) -> Iterator[tuple[str, Any, str]]:
    """Counts of a level that do not fit its size. inside: dies of a child."""
    if isinstance(level, RailsLevel) and inside == 1:
        yield f"{key}.kind", level.kind, 'rails join dies of several nodes: a level must lie inside; or write "switch"'
    if isinstance(level, MeshLevel) and level.size.si * (level.size.si - 1) > MOST_LINKS:
        yield f"{key}.size", level.size, f"so small that every two dies are joined by at most {MOST_LINKS:,} links"
    if isinstance(level, TorusLevel):
        dies = prod(extent.si for extent in level.extents)
        if dies < level.size.si or dies > level.size.si:
            yield f"{key}.extents", level.extents, f"their product is {dies:g}, and must be the size, {level.size}"
    if isinstance(level, DragonflyLevel):
        dies, routers = inside * level.size.si, level.groups.si * level.routers.si
        if max(level.groups.si * (level.groups.si - 1), routers * (level.routers.si - 1)) > MOST_LINKS:
            yield f"{key}.groups", level.groups, f"so few, as the routers, that at most {MOST_LINKS:,} links join them"
        if dies % routers > 0:
            yield (f"{key}.routers", level.routers,
                   f"{dies:g} dies cannot be shared out evenly over {level.groups} groups of {level.routers} routers")


class LinkChange(NamedTuple):
    """A link as it was written, its directed edges, and the share of its rate that is left: 0 where it is cut."""

    text: str
    edges: tuple[tuple[str, str], ...]
    share: float


def cut_links(text: str) -> tuple[LinkChange, ...]:
    """The links of a `fabric.cut`; ValueError says what is right."""
    return tuple(_link(part, 0.0) for part in _parts(text))


def slow_links(text: str) -> tuple[LinkChange, ...]:
    """The links of a `fabric.slow`; ValueError says what is right."""
    return tuple(_slow(part) for part in _parts(text))


def _slow(part: str) -> LinkChange:
    link, _, share = part.rpartition(":")
    try:
        left = float(share)
    except ValueError:
        left = 0.0
    if not link or not 0 < left <= 1:
        right = f'{_LINK_TEXT}, each with ": " and the share of its rate that is left, more than 0 and at most 1'
        raise ValueError(f"'{part}': write {right}")
    return _link(link.strip(), left)


def _link(part: str, share: float) -> LinkChange:
    for between in (" - ", " to "):
        one, found, other = (end.strip() for end in part.partition(between))
        if one and found and other:
            return LinkChange(part, ((one, other), (other, one)) if found == "-" else ((one, other),), share)
    raise ValueError(f"'{part}': write {_LINK_TEXT}")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []
