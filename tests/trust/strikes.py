"""What faults do to a plain run: shares that are left for a while, hosts that pause, ranks that are lost.

A link, a memory or a clock goes at the least share that any fault leaves it at the time, and at its own rate when none
is left. A host that is paused launches later what it has still to launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from simulator.fabric.graph import Fabric
from simulator.spec.faults import Fault
from simulator.units import to_ps
from tests.trust.sharing import Key

Pauses = Sequence[tuple[int, int]]
"""(from, to) in ps, apart from each other and in order."""


def ranks_of(fault: Fault, fabric: Fabric) -> list[int]:
    """Whom a fault strikes that names a rank, its host or a node."""
    size = fabric.spec.node_dies if fault.what == "node" else 1
    return [rank for rank in range(fabric.ranks) if rank // size == int(fault.name)]


def keys_of(fault: Fault, fabric: Fabric) -> list[Key]:
    """What it leaves less of: directions of links, memories, L2s, clocks."""
    if fault.what == "host":
        return []
    if fault.what != "link":
        ranks = ranks_of(fault, fabric)
        if fault.effect != "lost":
            return [(fault.effect, rank) for rank in ranks]
        dies = {f"die {rank}" for rank in ranks}
        own = [("link", *edge) for edge in fabric.graph.edges if dies & set(edge)]
        return [(memory, rank) for memory in ("hbm", "l2") for rank in ranks] + own
    if ".nic" in fault.name:
        rank, card = fault.name.removeprefix("rank").split(".nic")
        die = f"die {rank}"
        names = [level.name for level in fabric.spec.fabric]
        ports = [(names.index(fabric.graph[die][other]["level"]), other) for other in fabric.graph[die]
                 if not other.startswith("die")]  # fmt: skip
        other = sorted(ports, reverse=True)[int(card)][1]
        return [("link", die, other), ("link", other, die)]
    one, both, other = fault.name.partition(" - ")
    if both:
        return [("link", one, other), ("link", other, one)]
    return [("link", *fault.name.split(" to "))]


def times_of(fault: Fault) -> Iterator[tuple[float, float]]:
    """(from, to) in s, in which it leaves less."""
    if fault.effect != "flaps":
        yield fault.at_s, fault.end_s
        return
    number = 0
    while (at_s := fault.at_s + 2 * number * fault.value) < fault.end_s:
        yield at_s, min(at_s + fault.value, fault.end_s)
        number += 1


def share_of(fault: Fault) -> float:
    """What it leaves."""
    return fault.value if fault.effect in ("rate", "clock", "hbm") else 0.0


def pauses_of(rank: int, faults: Iterable[Fault], fabric: Fabric) -> Pauses:
    """Of the host of a rank: what overlaps is one."""
    found: list[tuple[int, int]] = []
    for at_ps, end_ps in sorted((to_ps(one.at_s), to_ps(one.at_s) + to_ps(one.for_s)) for one in faults
                                if one.what == "host" and rank in ranks_of(one, fabric)):  # fmt: skip
        if found and at_ps <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end_ps)
        else:
            found.append((at_ps, end_ps))
    return found


def done_ps(pauses: Pauses, now_ps: int, left_ps: int) -> int:
    """When a host has done so much work that it begins now."""
    for at_ps, end_ps in pauses:
        if now_ps >= end_ps:
            continue
        if now_ps < at_ps:
            if now_ps + left_ps <= at_ps:
                break
            left_ps -= at_ps - now_ps
        now_ps = end_ps
    return now_ps + left_ps
