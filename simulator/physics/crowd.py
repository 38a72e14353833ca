"""Many flows that all share with each other and end one by one, handed over by the network to be moved together.

Solving rates afresh at every end touches every flow each time; here it takes a few hundred levels (`levels.py`). A
crowd only ever shrinks: as soon as another flow begins on one of its capacities it dissolves, and the network has all
of its flows back as they are at that moment.
"""

from __future__ import annotations

from math import ceil, inf

import numpy as np

from simulator.physics.flow import DONE, NEVER, Bound, Capacity, Flow
from simulator.physics.levels import Crowded, Levels
from simulator.physics.maxmin import LIMIT

RENEWED = 512  # after so many ends the levels are worked out from scratch, without those who have ended
_PS_S = 1e-12
_FORGIVEN_PS = 2**-7  # see to_ps


class Crowd:
    """Flows in flight that share with nobody else, and the capacities that they cross."""

    def __init__(self, flows: list[Flow], now_ps: int) -> None:
        self._flows = flows
        self._now_ps = now_ps
        level: dict[Capacity, float] = {}
        for flow in flows:
            for capacity, _ in flow.pulls:
                level.setdefault(capacity, inf)
            if isinstance(flow.bound, Capacity):
                level[flow.bound] = flow.rate_bytes_per_s / flow.weight
            flow.finish_ps = flow.queued_ps = NEVER
            flow.left_bytes -= flow.rate_bytes_per_s * ((now_ps - flow.since_ps) * _PS_S)
            flow.since_ps = now_ps
        self._capacities = sorted(level, key=lambda capacity: (level[capacity], capacity.serial))
        for capacity in self._capacities:
            capacity.crowd = self
        self._levels = Levels(np.array([c.rate_bytes_per_s for c in self._capacities]), self._rows(), now_ps)
        self._ended = 0  # since the levels were worked out from scratch
        self._next_ps = NEVER  # when the next flow ends, NEVER while the levels are not known

    def __len__(self) -> int:
        return len(self._flows) - self._ended

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
        if self._next_ps == NEVER and self._levels.settle(self._now_ps):
            self._next_ps = self._now_ps + max(0, ceil(self._levels.next_s() / _PS_S - _FORGIVEN_PS))
        return self._next_ps

    def used_bytes_per_s(self, capacity: Capacity) -> float:
        """How much moves on one of its capacities."""
        self.next_ps()
        return capacity.rate_bytes_per_s - self._levels.left(self._capacities.index(capacity))

    def take(self, now_ps: int) -> list[Flow]:
        """The flows that end now; they are marked as done and off their capacities."""
        if now_ps != self.next_ps():
            return []
        self._pass(now_ps)
        rows = self._levels.due(2 * _FORGIVEN_PS * _PS_S)
        held, _, _ = self._levels.state(rows)
        batch = []
        for row, load in zip(rows.tolist(), held.tolist(), strict=True):
            flow = self._flows[row]
            self._write_bound(flow, row, load)
            flow.finish_ps = DONE
            for capacity, _ in flow.pulls:
                del capacity.flows[flow]
                if not capacity.flows:
                    self._release(capacity)
            batch.append(flow)
        self._levels.end(rows)
        self._ended += len(rows)
        self._next_ps = NEVER
        if self._ended >= RENEWED and len(self):
            self._renew()
        return batch

    def dissolve(self, now_ps: int) -> tuple[list[Flow], bool]:
        """The flows that are left, each with its rate, its bound and what it has to move as of now.

        False: the rates are wrong and must be solved.
        """
        settled = not len(self) or self.next_ps() != NEVER
        self._pass(now_ps)
        rows = np.flatnonzero(self._levels.alive)
        held, level, work = self._levels.state(rows)
        every = zip(rows.tolist(), held.tolist(), level.tolist(), work.tolist(), strict=True)
        for row, load, its_level, its_work in every:
            flow = self._flows[row]
            self._write_bound(flow, row, load)
            flow.left_bytes, flow.since_ps = its_work * flow.weight, now_ps
            flow.rate_bytes_per_s = its_level * flow.weight
        for capacity in self._capacities:
            self._release(capacity)
        return [self._flows[row] for row in rows.tolist()], settled

    def _pass(self, now_ps: int) -> None:
        self._levels.advance((now_ps - self._now_ps) * _PS_S)
        self._now_ps = now_ps

    def _write_bound(self, flow: Flow, row: int, load: int) -> None:
        """What holds a flow back, and how long what has held it back before."""
        for other, spent_ps in enumerate(self._levels.spent_ps[row].tolist()):
            if spent_ps:
                flow.add_bound(_bound(flow, other), spent_ps)
        since_ps = int(self._levels.since_ps[row])
        flow.bound, flow.bound_since_ps = _bound(flow, load), since_ps

    def _renew(self) -> None:
        """Work out the levels from scratch, for those who are left."""
        self.next_ps()
        self._levels, rows, order = self._levels.renewed()
        self._flows = [self._flows[row] for row in rows.tolist()]
        self._capacities = [self._capacities[number] for number in order.tolist()]
        self._ended, self._next_ps = 0, NEVER

    def _release(self, capacity: Capacity) -> None:
        if capacity.crowd is self:
            capacity.crowd = None


def _bound(flow: Flow, load: int) -> Bound:
    return flow.pulls[load][0] if load < len(flow.pulls) else LIMIT
