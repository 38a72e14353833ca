"""Rates that change during a run: a link at half rate, HBM throttled, a link cut and restored, a slow rank.

    RateChange(at_s=0.010, what="die 3 - node 0", share=0.5)      a link at half its rate from 10 ms on, both directions
    RateChange(0.012, "die 3 to node 0", 0.0)                     one direction is cut; what crosses it stands still
    RateChange(0.015, "die 3 to node 0", 1.0)                     and goes on where it stood
    RateChange(0.0, "hbm 7", 0.5), RateChange(0.0, "l2 7", 0.5)   memory of rank 7
    RateChange(0.0, "clock 7", 0.8)                               compute of rank 7 at 0.8 of its speed

Shares are of the rate that the machine's file gives; of changes at one time the last one counts. A clock changes
compute of kernels, of those that are running too, and neither latencies nor memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

from simulator.collective.transfer import CapacityKey
from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.spec.levels import cut_links
from simulator.units import to_ps

POOLS = ("hbm", "l2", "clock")
CLOCK = "clock"
_RIGHT = f'a link ("die 3 - node 0" or "die 3 to node 0") or one of {", ".join(POOLS)} with a rank, as in "hbm 3"'


@dataclass(frozen=True, slots=True)
class RateChange:
    """From `at_s` seconds on, `what` goes at this share of its rate; see the module's text."""

    at_s: float
    what: str
    share: float


Schedule = tuple[tuple[int, float], ...]
"""(time in ps, share of the rate from then on), in order."""


def schedules(changes: Iterable[RateChange], fabric: Fabric) -> dict[CapacityKey, Schedule]:
    """When each capacity, or clock ("clock", rank), changes to what; InputError names a change that cannot be."""
    found: dict[CapacityKey, list[tuple[int, float]]] = defaultdict(list)
    for change in changes:
        if not (0 <= change.at_s < float("inf") and 0 <= change.share <= 1):
            raise InputError(f"{change}: at_s is 0 or more seconds, share from 0 to 1")
        for key in _keys_of(change, fabric):
            if key[0] == CLOCK and not change.share:
                raise InputError(f"{change}: a clock's share is more than 0")
            found[key].append((to_ps(change.at_s), change.share))
    return {key: tuple(sorted(times, key=itemgetter(0))) for key, times in found.items()}


def _keys_of(change: RateChange, fabric: Fabric) -> list[CapacityKey]:
    pool, _, rank = change.what.partition(" ")
    if pool in POOLS:
        if not rank.isdecimal() or int(rank) >= fabric.ranks:
            raise InputError(f"{change}: ranks are 0 to {fabric.ranks - 1}")
        return [(pool, int(rank))]
    try:
        links = cut_links(change.what)
    except ValueError:
        raise InputError(f"{change}: '{change.what}' is neither {_RIGHT}") from None
    edges = [edge for link in links for edge in link.edges]
    for edge in edges:
        if edge not in fabric.graph.edges:
            near = sorted(fabric.graph[edge[0]]) if edge[0] in fabric.graph else []
            hint = f"; {edge[0]} has links to {', '.join(near)}" if near else ""
            raise InputError(f"{change}: there is no link from '{edge[0]}' to '{edge[1]}'{hint}")
    return [("link", *edge) for edge in edges]
