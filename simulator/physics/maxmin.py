"""Weighted max-min fair sharing with limits and coefficients, by progressive filling. Pure functions, no clock.

Flows j move bytes at rates r_j over capacities i of C_i bytes/s. A flow that moves one byte of its own moves a_ij bytes
on capacity i (its coefficient). The allocation is feasible and fair when

    for every capacity i:   sum over j of a_ij r_j <= C_i
    for every flow j:       r_j = l_j (its limit),  or it crosses a capacity that is full and on which no other flow
                            has a higher level r_k / w_k (w: weight): it could only go faster by slowing a slower one.

There is exactly one such allocation, and filling finds it: let all flows rise together, r_j = w_j L, where L is the
common level. A flow stops when L = l_j / w_j. Capacity i is full, and stops those of its flows that still rise, when

    L_i = (C_i - sum over stopped flows of a_ij r_j) / (sum over rising flows of a_ij w_j).

Stopping flows only ever raises the L_i of others, so a heap whose keys are lower bounds finds the next stop: take the
smallest key, work out its L_i afresh, and put it back if it has grown.

Worked example. Capacities X = 10 and Y = 4; flows a on X, b on X and Y, c on Y with limit 1, all weights and
coefficients 1. L_X = 10/2 = 5, L_Y = 4/2 = 2. At L = 1 flow c stops at its limit. Then L_Y = (4 - 1)/1 = 3: at L = 3
flow b stops at Y. Then L_X = (10 - 3)/1 = 7: flow a stops at X. Rates a = 7, b = 3, c = 1; bounds X, Y, LIMIT.

Floating point. Sums are rounded once (`math.fsum`), so neither the order of flows nor that of capacities changes a
result, and m equal flows weigh exactly as much as one flow with m times the coefficient.
Source: Bertsekas and Gallager, Data Networks, section 6.5.2; weights and limits as in SimGrid's LMM.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from math import fsum, inf

LIMIT = -1
"""The bound of a flow that goes as fast as its own limit lets it."""

Members = Sequence[tuple[int, float]]
"""The flows that cross one capacity, each once: (index of the flow, coefficient > 0)."""


def fill(available: Sequence[float], members: Sequence[Members], limits: Sequence[float],
         weights: Sequence[float]) -> tuple[list[float], list[int]]:
    """(rates in bytes/s, bounds) of flows, on capacities that list theirs and have `available[i]` bytes/s left.

    A bound is the capacity that stopped a flow (the lowest, where several do at once) or LIMIT; one that nothing stops
    gets rate inf.
    """
    stops, rates, bounds = _own_stops(available, members, limits, weights)
    rising = [True] * len(limits)
    heap: list[tuple[float, int]] = [(stop, len(members) + j) for j, stop in enumerate(stops) if stop < inf]
    for i, crossing in enumerate(members):
        if len(crossing) == 2 and available[i] > 0.0:  # the same as _level, for the most frequent case
            (j, a), (k, b) = crossing
            heap.append((available[i] / (a * weights[j] + b * weights[k]), i))
        elif len(crossing) > 1:
            heap.append((_level(available[i], crossing, weights, rising, rates), i))
    heapify(heap)
    seen_at = [0] * len(members)  # how many flows had stopped when this capacity's key was worked out
    stopped = 0
    while heap and stopped < len(limits):
        level, i = heap[0]
        if i >= len(members):
            heappop(heap)
            if rising[i - len(members)]:
                rising[i - len(members)] = False
                stopped += 1
            continue
        full: list[int] = []  # all capacities that are full at this level: they stop their flows together
        while heap and heap[0][0] == level and heap[0][1] < len(members):
            i = heap[0][1]
            now = level if seen_at[i] == stopped else _level(available[i], members[i], weights, rising, rates)
            seen_at[i] = stopped
            if now > level:
                heapreplace(heap, (now, i))
            else:
                heappop(heap)
                full.append(i)
        for i in full:  # ascending, because equal keys leave the heap in the order of their index
            for j, _ in members[i]:
                if rising[j]:
                    rising[j] = False
                    stopped += 1
                    rates[j], bounds[j] = weights[j] * level, i
    return rates, bounds


def _own_stops(available: Sequence[float], members: Sequence[Members], limits: Sequence[float],
               weights: Sequence[float]) -> tuple[list[float], list[float], list[int]]:
    """Where each flow stops even if it shares with no flow: its limit and the capacities that it crosses alone.

    Returns (levels, rates, bounds) per flow.
    """
    rates, bounds = list(limits), [LIMIT] * len(limits)
    for i, crossing in enumerate(members):
        if len(crossing) == 1:
            j, coefficient = crossing[0]
            rate = available[i] / coefficient
            if rate < rates[j] or (rate == rates[j] and bounds[j] == LIMIT):
                rates[j], bounds[j] = (rate if rate > 0.0 else 0.0), i
    return [rate / weight for rate, weight in zip(rates, weights, strict=True)], rates, bounds


def _level(available: float, crossing: Members, weights: Sequence[float], rising: Sequence[bool],
           rates: Sequence[float]) -> float:
    """The level at which a capacity is full, as things stand; inf if none of its flows still rises."""
    pull = fsum([coefficient * weights[j] for j, coefficient in crossing if rising[j]])
    if not pull:
        return inf
    left = available - fsum([coefficient * rates[j] for j, coefficient in crossing if not rising[j]])
    return left / pull if left > 0.0 else 0.0
