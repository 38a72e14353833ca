"""The levels of those capacities that are tight, and an eye on the others.

Most capacities that a crowd crosses are never full: memory that is faster than the ports, say. The equations of
`levels.py` leave them out, which makes them several times smaller. With r the largest ratio by which a level has grown
since then, a capacity moves at most r times what it moved: flows only end, and a flow that another capacity holds back
now is slower than the one before would let it. So a capacity that is used to a part u of its rate has room for
everybody as long as r < 1 / u; when r has grown so far, it is looked at again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.physics.levels import Crowded, Levels, Picoseconds
from simulator.physics.places import Floats, Ints

ROOM = 1.5  # a capacity that has less room than that is tight
RENEWED = 512  # after so many ends the levels are worked out from scratch, without those who have ended
_NARROW = 1.1  # with less room than that it is not worth looking again and again
_TRIES = 20


class Tight:
    """Flows by row, on all capacities; rates: of all capacities. level: of each flow at the moment."""

    def __init__(self, rates: Floats, flows: Crowded, level: Floats, now_ps: int) -> None:
        self._rates, self._flows = rates, flows
        self._rows = np.arange(len(level))  # of the flows that are left
        self._begin(level, now_ps)

    def __len__(self) -> int:
        return len(self._rows) - self._ended

    def _begin(self, level: Floats, now_ps: int) -> None:
        """Choose the capacities that are tight, and find their levels."""
        flows, none = self._flows, len(self._rates)
        everyone = np.arange(len(level))
        load = self._load(flows, level)
        held_back = flows.held < flows.pulls.shape[1]
        holds = flows.capacities[everyone[held_back], flows.held[held_back]]
        levels = np.full(none, np.inf)
        levels[holds] = level[held_back]
        tight = (levels < np.inf) | (load * ROOM > self._rates)
        order = np.flatnonzero(tight)
        order = order[levels[order].argsort(kind="stable")]
        number = np.full(none + 1, len(order))
        number[order] = np.arange(len(order))
        loads = number[flows.capacities]
        pulls = np.where(loads < len(order), flows.pulls, 0.0)
        self._levels = Levels(self._rates[order], replace(flows, capacities=loads, pulls=pulls), now_ps)
        self._ended = 0
        self._others = ~tight
        self._room, self._level = 0.0, self._levels.level  # not known before the levels are settled

    def _load(self, flows: Crowded, level: Floats) -> Floats:
        """What moves on each capacity."""
        moved = flows.pulls * level[:, None]
        load = np.bincount(flows.capacities.ravel(), moved.ravel(), len(self._rates) + 1)
        return load[:-1].astype(float, copy=False)

    def _look_again(self) -> None:
        """How much room the others have."""
        load = self.used()
        others = self._others & (load > 0.0)
        self._room = float((self._rates[others] / load[others]).min(initial=np.inf))
        self._level = self._levels.level.copy()

    def settle(self, now_ps: int) -> bool:
        """Find the levels; False if that does not end."""
        for _ in range(_TRIES):
            if self._ended >= RENEWED and len(self):
                self._renew(now_ps)
            if not self._levels.settle(now_ps):
                return False
            self._levels.next_s()
            if self._still_room():
                return True
            self._look_again()
            if self._room > _NARROW:
                return True
            self._renew(now_ps)
        return False

    def _still_room(self) -> bool:
        if self._room == np.inf:
            return True
        now, then = self._levels.level, self._level
        grown = (now > then * self._room) | ((now == 0.0) & (then > 0.0))
        return not np.count_nonzero(grown)

    def _renew(self, now_ps: int) -> None:
        """From scratch, without those who have ended."""
        left = np.flatnonzero(self._levels.alive)
        held, level, work = self._levels.state(left)
        flows = self._flows
        self._rows = self._rows[left]
        self._flows = Crowded(flows.capacities[left], flows.pulls[left], flows.limits[left], work, held,
                              self._levels.since_ps[left], self._levels.spent_ps[left])
        self._begin(level, now_ps)

    def used(self) -> Floats:
        """What moves on each capacity."""
        level = np.zeros(len(self._rows))
        left = np.flatnonzero(self._levels.alive)
        level[left] = self._levels.state(left)[1]
        return self._load(self._flows, level)

    def next_s(self) -> float:
        """When the next flow ends."""
        return self._levels.next_s()

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self._levels.advance(seconds)

    def take(self, seconds: float) -> tuple[Ints, Ints, Picoseconds, Picoseconds]:
        """End the flows that end within this time: rows, what held them back, since when, and what did before."""
        ends = self._levels.due(seconds)
        held, _, _ = self._levels.state(ends)
        self._levels.end(ends)
        self._ended += len(ends)
        return self._rows[ends], held, self._levels.since_ps[ends], self._levels.spent_ps[ends]

    def left(self) -> tuple[Ints, Ints, Picoseconds, Picoseconds, Floats, Floats]:
        """The flows that are left: the same, and their levels and work."""
        left = np.flatnonzero(self._levels.alive)
        held, level, work = self._levels.state(left)
        return self._rows[left], held, self._levels.since_ps[left], self._levels.spent_ps[left], level, work
