"""Max-min fair sharing of two capacities by a few flows, step by step, without the tables of `maxmin`.

What `maxmin.fill` finds for any network, for the memory of one die: the flows rise together, and the next to stop are
those at their own limit or all those on the capacity that is full first.

Worked example: capacities 10 and 4; a pulls 1 on the first, b 1 on each, c 1 on the second with limit 1. c stops at 1,
b at 3 (the second is full), a at 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

OWN, FIRST, SECOND = -1, 0, 1
"""What stops a flow: its own limit, or one of the two capacities."""

Ask = tuple[float, float, float, float]
"""Bytes that a flow moves on the first and on the second capacity for each of its own, its limit, its weight."""


def share_two(first: float, second: float, asks: Sequence[Ask]) -> list[tuple[float, int]]:
    """(rate, what stops it) of every flow, with so many bytes/s of the first and the second capacity."""
    found: list[tuple[float, int]] = [(0.0, OWN)] * len(asks)
    rising, wholes = list(range(len(asks))), (first, second)
    left: Sequence[float] = wholes
    while rising:
        level, stop = _next_stop(left, [asks[k] for k in rising])
        if stop == OWN:
            stopped = [k for k in rising if asks[k][2] / asks[k][3] <= level]
        else:
            stopped = [k for k in rising if asks[k][stop]]
        for k in stopped:
            found[k] = (asks[k][2] if stop == OWN else asks[k][3] * level), stop
        rising = [k for k in rising if k not in stopped]
        if rising:
            ended = [k for k in range(len(asks)) if k not in rising]
            left = [whole - fsum([asks[k][side] * found[k][0] for k in ended]) for side, whole in enumerate(wholes)]
    return found


def _next_stop(left: Sequence[float], rising: Sequence[Ask]) -> tuple[float, int]:
    """The lowest level at which one of these stops; capacities come first, in their order, where it is the same."""
    level, stop = min(limit / weight for _, _, limit, weight in rising), OWN
    for side in (SECOND, FIRST):
        pull = fsum([ask[side] * ask[3] for ask in rising])
        if pull:
            full = left[side] / pull if left[side] > 0.0 else 0.0
            if full <= level:
                level, stop = full, side
    return level, stop
