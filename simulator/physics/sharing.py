"""New rates for the flows that an arrival or a departure can affect, and for no others.

The max-min allocation is the only one in which no flow has a reason to object: every flow is at its limit, or crosses a
full capacity on which no flow has a higher level (rate / weight). So it is enough to

1. choose the flows that changed, and those held back by a capacity on which one came or went;
2. solve these, with the others as a fixed background on the capacities that they cross;
3. ask the others who share a capacity with them whether they object: one that has a higher level than a chosen flow
   held back there, one held back by a capacity that is no longer full, or where others get more now;
4. choose those as well and start again; done when no flow objects.

The result is the allocation of the whole network, while a kernel that ends on one of 288 dies usually asks only its
neighbours. The set of chosen flows only grows, so it ends at the latest with a connected component.
"""

from __future__ import annotations

from math import fsum
from operator import attrgetter
from typing import TYPE_CHECKING

from simulator.physics.maxmin import LIMIT, fill

if TYPE_CHECKING:
    from simulator.physics.flow import Bound, Capacity, Flow

_NOISE = 1e-12  # relative; levels and rates that differ by less are equal
_serial = attrgetter("serial")


def max_min_rates(flows: list[Flow]) -> tuple[list[float], list[Bound]]:
    """Rates and bounds, in the order of `flows`, all of which are marked `chosen`.

    Appends (and marks) those others whose rates must change as well.
    """
    joint: list[int] = []  # those that meet another chosen one, from then on
    apart = list(range(len(flows)))
    while True:
        rates: list[float] = [0.0] * len(flows)
        bounds: list[Bound] = [LIMIT] * len(flows)
        objectors: dict[Flow, None] = {}
        still_apart: list[int] = []
        for k in apart:
            if _only_chosen_one(flows[k], rates, bounds, k, objectors):
                still_apart.append(k)
            else:
                joint.append(k)
        if joint:
            _solve_together(flows, joint, rates, bounds, objectors)
        if not objectors:
            return rates, bounds
        for flow in objectors:  # only now: all of this round was solved with them as background
            flow.chosen = True
        apart = still_apart + list(range(len(flows), len(flows) + len(objectors)))
        flows.extend(objectors)


def _only_chosen_one(flow: Flow, rates: list[float], bounds: list[Bound], k: int, objectors: dict[Flow, None]) -> bool:
    """Solve a flow that meets no other chosen one; False if it does meet one."""
    rate = flow.limit_bytes_per_s
    bound: Bound = LIMIT
    shared: list[tuple[Capacity, float, float]] = []
    for capacity, pull in flow.pulls:
        left = capacity.rate_bytes_per_s
        if len(capacity.flows) > 1:
            taken: list[float] = []
            for other, c in capacity.flows.items():
                if other is not flow:
                    if other.chosen:
                        return False
                    taken.append(c * other.rate_bytes_per_s)
            left -= taken[0] if len(taken) == 1 else fsum(taken)
            shared.append((capacity, pull, left))
        most = left / pull if left > 0.0 else 0.0
        if most < rate or (most == rate and (bound == LIMIT or capacity.serial < bound.serial)):  # type: ignore[union-attr]
            rate, bound = most, capacity
    rates[k], bounds[k] = rate, bound
    level = rate / flow.weight
    for capacity, pull, left in shared:
        _ask(capacity, level if capacity is bound else None, level, left - pull * rate, objectors)
    return True


def _solve_together(flows: list[Flow], joint: list[int], rates: list[float], bounds: list[Bound],
                    objectors: dict[Flow, None]) -> None:
    """Solve flows[k] for k in `joint`, with all that are not chosen as background."""
    for j, k in enumerate(joint):
        flows[k].index = j
    capacities = sorted({capacity: None for k in joint for capacity, _ in flows[k].pulls}, key=_serial)
    available: list[float] = []
    members: list[list[tuple[int, float]]] = []
    contested: list[int] = []
    for i, capacity in enumerate(capacities):
        inside: list[tuple[int, float]] = []
        taken: list[float] = []
        for flow, pull in capacity.flows.items():
            if flow.chosen:
                inside.append((flow.index, pull))
            else:
                taken.append(pull * flow.rate_bytes_per_s)
        left = capacity.rate_bytes_per_s
        if taken:
            left -= fsum(taken)
            contested.append(i)
        members.append(inside)
        available.append(left)
    weights = [flows[k].weight for k in joint]
    found, stops = fill(available, members, [flows[k].limit_bytes_per_s for k in joint], weights)
    for j, k in enumerate(joint):
        rates[k] = found[j]
        if stops[j] != LIMIT:
            bounds[k] = capacities[stops[j]]
    for i in contested:
        crossing = [(found[j] / weights[j], stops[j] == i) for j, _ in members[i]]
        top = max((level for level, held in crossing if held), default=None)
        left = available[i] - fsum([pull * found[j] for j, pull in members[i]])
        _ask(capacities[i], top, max(level for level, _ in crossing), left, objectors)


def _ask(capacity: Capacity, top: float | None, highest: float, left_bytes_per_s: float,
         objectors: dict[Flow, None]) -> None:
    """Note the others on this capacity that object to the new rates.

    top: the highest level of the chosen flows that it holds back, None if it holds back none of them; highest: that of
    all chosen flows on it, wherever they are held back. left_bytes_per_s: what no flow uses.
    """
    room = left_bytes_per_s > _NOISE * capacity.rate_bytes_per_s
    for flow in capacity.flows:
        if flow.chosen:
            continue
        level = flow.rate_bytes_per_s / flow.weight
        if flow.bound is capacity:  # it is held back here: others have more, or there is room
            objects = highest > level * (1 + _NOISE) or (top is None and room)
        else:
            objects = False
        if objects or (top is not None and level > top * (1 + _NOISE)):
            objectors[flow] = None
