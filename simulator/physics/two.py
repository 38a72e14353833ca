"""Max-min fair sharing of two capacities by a few flows, step by step, without the tables of `maxmin`.

What `maxmin.fill` finds for any network, for the memory of one die: the flows rise together, and the next to stop are
those at their own limit or all those on the capacity that is full first.

Worked example: capacities 10 and 4; a pulls 1 on the first, b 1 on each, c 1 on the second with limit 1. c stops at 1,
b at 3 (the second is full), a at 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import fsum, inf

OWN, FIRST, SECOND = -1, 0, 1
"""What stops a flow: its own limit, or one of the two capacities."""

Ask = tuple[float, float, float, float]
"""Bytes that a flow moves on the first and on the second capacity for each of its own, its limit, its weight."""


@lru_cache(maxsize=2**14)  # the kernels of many dies meet in the same few pairs
def share_two(first: float, second: float, asks: tuple[Ask, ...]) -> list[tuple[float, int]]:
    """(rate, what stops it) of every flow, with so many bytes/s of the first and the second capacity."""
    found: list[tuple[float, int]] = [(0.0, OWN)] * len(asks)
    rising = list(range(len(asks)))
    left_first, left_second = first, second
    while rising:
        level, stop = _next_stop(left_first, left_second, [asks[k] for k in rising])
        still = []
        for k in rising:
            ask = asks[k]
            if stop == OWN:
                if ask[2] / ask[3] <= level:
                    found[k] = ask[2], OWN
                else:
                    still.append(k)
            elif ask[stop]:
                found[k] = ask[3] * level, stop
            else:
                still.append(k)
        rising = still
        if rising:
            ended = [k for k in range(len(asks)) if k not in rising]
            left_first = first - fsum([asks[k][0] * found[k][0] for k in ended])
            left_second = second - fsum([asks[k][1] * found[k][0] for k in ended])
    return found


def _next_stop(left_first: float, left_second: float, rising: Sequence[Ask]) -> tuple[float, int]:
    """The lowest level at which one of these stops; capacities come first, in their order, where it is the same."""
    level, stop = inf, OWN
    on_first, on_second = [], []
    for first, second, limit, weight in rising:
        if limit / weight < level:
            level = limit / weight
        on_first.append(first * weight)
        on_second.append(second * weight)
    pull = fsum(on_second)
    if pull:
        full = left_second / pull if left_second > 0.0 else 0.0
        if full <= level:
            level, stop = full, SECOND
    pull = fsum(on_first)
    if pull:
        full = left_first / pull if left_first > 0.0 else 0.0
        if full <= level:
            level, stop = full, FIRST
    return level, stop
