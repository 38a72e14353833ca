"""Many flows that all share with each other and end one by one, handed over by the network to be moved together.

Solving rates afresh at every end touches every flow each time; here it takes a few hundred levels (`levels.py`). A
crowd only ever shrinks: as soon as another flow begins on one of its capacities it dissolves, and the network has all
of its flows back as they are at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, inf
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.physics.flow import DONE, NEVER, Bound, Capacity, Flow
from simulator.physics.levels import Crowded
from simulator.physics.maxmin import LIMIT
from simulator.physics.tight import Tight

_PS_S = 1e-12
_FORGIVEN_PS = 2**-7  # see to_ps


class Crowd:
    """Flows in flight that share with nobody else, and the capacities that they cross."""

    def __init__(self, flows: list[Flow], now_ps: int) -> None:
        self._flows = flows
        self._now_ps = now_ps
        self._capacities = sorted({c: None for flow in flows for c, _ in flow.pulls}, key=attrgetter("serial"))
        for flow in flows:
            flow.finish_ps = flow.queued_ps = NEVER
            flow.left_bytes -= flow.rate_bytes_per_s * ((now_ps - flow.since_ps) * _PS_S)
            flow.since_ps = now_ps
        for capacity in self._capacities:
            capacity.crowd = self
        level = np.array([flow.rate_bytes_per_s / flow.weight for flow in flows])
        self._tight = Tight(np.array([c.rate_bytes_per_s for c in self._capacities]), self._rows(), level, now_ps)
        self._next_ps = NEVER  # when the next flow ends, NEVER while the levels are not known

    def __len__(self) -> int:
        return len(self._tight)

    def _rows(self) -> Crowded:
        """The flows as the levels want them."""
        number = {capacity: number for number, capacity in enumerate(self._capacities)}
        flows = self._flows
        depth = max(len(flow.pulls) for flow in flows)
        capacities = np.full((len(flows), depth), len(number))
        pulls = np.zeros((len(flows), depth))
        held = np.full(len(flows), depth)
        for row, flow in enumerate(flows):
            for load, (capacity, pull) in enumerate(flow.pulls):
                capacities[row, load], pulls[row, load] = number[capacity], pull * flow.weight
                if capacity is flow.bound:
                    held[row] = load
        limits = [inf if isinstance(f.solo_bound, Capacity) else f.limit_bytes_per_s / f.weight for f in flows]
        work = np.array([flow.left_bytes / flow.weight for flow in flows])
        since_ps = np.array([flow.bound_since_ps for flow in flows])
        spent_ps = np.zeros((len(flows), depth + 1), np.int64)
        return Crowded(capacities, pulls, np.array(limits), work, held, since_ps, spent_ps)

    def next_ps(self) -> int:
        """When the next flow ends; NEVER if the levels cannot be found."""
        if self._next_ps == NEVER and self._tight.settle(self._now_ps):
            self._next_ps = self._now_ps + max(0, ceil(self._tight.next_s() / _PS_S - _FORGIVEN_PS))
        return self._next_ps

    def used_bytes_per_s(self, capacity: Capacity) -> float:
        """How much moves on one of its capacities."""
        self.next_ps()
        return float(self._tight.used()[self._capacities.index(capacity)])

    def take(self, now_ps: int) -> list[Flow]:
        """The flows that end now; they are marked as done and off their capacities."""
        if now_ps != self.next_ps():
            return []
        self._pass(now_ps)
        batch = []
        for row, *bound in _lists(*self._tight.take(2 * _FORGIVEN_PS * _PS_S)):
            flow = self._flows[row]
            _write_bound(flow, *bound)
            flow.finish_ps = DONE
            for capacity, _ in flow.pulls:
                del capacity.flows[flow]
                if not capacity.flows:
                    self._release(capacity)
            batch.append(flow)
        self._next_ps = NEVER
        return batch

    def dissolve(self, now_ps: int) -> tuple[list[Flow], bool]:
        """The flows that are left, each with its rate, its bound and what it has to move as of now.

        False: the rates are wrong and must be solved.
        """
        settled = not len(self) or self.next_ps() != NEVER
        self._pass(now_ps)
        flows = []
        for row, load, since_ps, spent_ps, level, work in _lists(*self._tight.left()):
            flow = self._flows[row]
            _write_bound(flow, load, since_ps, spent_ps)
            flow.left_bytes, flow.since_ps = work * flow.weight, now_ps
            flow.rate_bytes_per_s = level * flow.weight
            flows.append(flow)
        for capacity in self._capacities:
            self._release(capacity)
        return flows, settled

    def _pass(self, now_ps: int) -> None:
        self._tight.advance((now_ps - self._now_ps) * _PS_S)
        self._now_ps = now_ps

    def _release(self, capacity: Capacity) -> None:
        if capacity.crowd is self:
            capacity.crowd = None


def _lists(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _write_bound(flow: Flow, load: int, since_ps: int, spent_ps: list[int]) -> None:
    """What holds a flow back since when, and how long what has held it back before."""
    for other, its_ps in enumerate(spent_ps):
        if its_ps:
            flow.add_bound(_bound(flow, other), its_ps)
    flow.bound, flow.bound_since_ps = _bound(flow, load), since_ps


def _bound(flow: Flow, load: int) -> Bound:
    return flow.pulls[load][0] if load < len(flow.pulls) else LIMIT
