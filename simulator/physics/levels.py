"""Fair sharing among many flows on few capacities, of which one after the other ends: levels instead of rates.

`maxmin.py` says what is fair. There every flow is held back by the full capacity with the lowest level that it crosses
(or by its limit), and then moves at w_f L_c: its weight times the level of that capacity. So a hundred thousand rates
are known by a few hundred levels, and these solve linear equations. With c(f) for what holds back flow f, and s_i for
what a capacity that holds back nobody has left, for every capacity i:

    sum over flows f on i of a_if w_f L_c(f)  +  s_i  =  C_i          (A x = C, x: a level or what is left, each)

Time. Let V_c be the integral of L_c. A flow that c holds back moves w_f bytes while V_c grows by one, so it ends when
V_c has reached a known number, whatever happens to L_c meanwhile; only a flow that is held back elsewhere from now on
gets another number. The next of all ends takes one division and one minimum over the capacities.

A change. If a flow ends, or is held back by d instead of c, the columns c and d of A change: the levels follow by an
update of the solution (`inverse.py`). Who is held back where follows from the order of the capacities by level: each
flow by the first one that it crosses. After an update the order is looked at: a capacity that is out of order takes its
new place, and its flows look for what holds them back now; a capacity with less than nothing left holds back those with
the highest levels. That is repeated until nobody objects, and then it is the max-min allocation, as there is just one.
The order decides among equal levels too: so A is a triangle in this order and can always be solved.

Worked example. Ports X = 10 and Y = 4; flows a on X (30 bytes), b on X and Y (2 bytes), c on Y (4 bytes). Y holds back
b and c, X holds back a: L_X + L_Y = 10 and 2 L_Y = 4, so L_Y = 2, L_X = 8. b ends when V_Y = 2: after 1 s. Then
L_Y = 4, L_X = 10; c ends when V_Y = 4, which is 2 + 4 * 0.5 s: half a second later; a when V_X = 30 = 8 + 10 * 2.2 s.

A limit is like one more capacity, that of the clock, with level 1: a flow that it holds back has the limit as weight.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.physics.inverse import Inverse
from simulator.physics.places import Floats, Ints, Places

Picoseconds = NDArray[np.int64]
Moves = tuple[Ints, Ints]  # flows, and by which of their loads each is held back from now on
NOISE = 1e-12  # relative; levels that differ by less are equal
ROUNDS = 60  # of objections, at most
_NOBODY = np.empty(0, np.intp)


@dataclass
class Crowded:
    """Flows by row. capacities: those that each loads, and one number more than there are where it loads fewer.

    pulls: bytes moved there per unit of level; limits: levels, inf where there is none; work: how much level times time
    each has to do; held: the number of the load that holds it back, one behind the last for its limit; since_ps: since
    when it has done so; spent_ps: for how long each load did so before.
    """

    capacities: Ints
    pulls: Floats
    limits: Floats
    work: Floats
    held: Ints
    since_ps: Picoseconds
    spent_ps: Picoseconds


class Levels:
    """rates: of the capacities, in the order of their levels. level: of each capacity and the clock, 0 if it holds back
    nobody. alive: flows that have not ended. since_ps and spent_ps as in Crowded.
    """

    def __init__(self, rates: Floats, flows: Crowded, now_ps: int) -> None:
        self.clock, self.depth = len(rates), flows.pulls.shape[1]
        count = len(flows.limits)
        self._rates = np.append(rates, 1.0)
        self._capacities = np.column_stack((flows.capacities, np.full(count, self.clock)))
        self._pulls, self._limits, self._held = flows.pulls, flows.limits, flows.held.copy()
        self._scale = np.ones((count, self.depth + 1))  # what a flow moves per unit of what holds it back
        self._scale[:, -1] = np.where(flows.limits < np.inf, flows.limits, 1.0)
        self._limited = np.flatnonzero(flows.limits < np.inf)
        self.alive = np.ones(count, bool)
        self.spent_ps, self.since_ps = flows.spent_ps.copy(), flows.since_ps.copy()
        self._now_ps = now_ps
        self._least = -10 * NOISE * self._rates
        self._virtual = np.zeros(self.clock + 1)  # V
        self._filled: list[int] = []  # capacities that hold back flows regardless of the order, before it is looked at
        self._places = Places(self._capacities, self.clock)
        self._first_order()
        self._spend(np.flatnonzero(self._held != flows.held), flows.held)
        everyone = np.arange(count)
        self._places.ends[self._places.of[everyone, self._held]] = flows.work / self._scale[everyone, self._held]
        self._places.find_first(range(self.clock + 1))
        self._solve()
        self.next_s()

    # How it begins

    def _first_order(self) -> None:
        """As they are given; of all that hold back somebody the first one is it now."""
        self._order = self._range = np.arange(self.clock)
        self._rank = np.append(self._order, self.clock)
        for _ in range(2):
            holds = self._capacities[np.arange(len(self._held)), self._held]
            self._count = np.bincount(holds, minlength=self.clock + 1).tolist()
            self._full = np.array([count > 0 for count in self._count])
            self._full[self.clock] = True
            full = self._full[self._order]
            self._order = np.concatenate((self._order[full], self._order[~full]))
            self._rank[self._order] = self._range
            level = np.where(self._full, 0.0, np.inf)
            self._held = np.where(self._held == self.depth, self._held, self._first_of(np.arange(len(holds)), level))

    def _solve(self) -> None:
        """Everything from scratch; A as above, and the clock: x = 1."""
        flows = np.flatnonzero(self.alive)
        held = self._held[flows]
        holds, scale = self._capacities[flows, held], self._scale[flows, held]
        matrix = np.zeros((self.clock + 1, self.clock + 1))
        for load in range(self.depth):
            np.add.at(matrix, (self._capacities[flows, load], holds), self._pulls[flows, load] * scale)
        matrix[self.clock] = 0.0
        free = np.append(np.flatnonzero(~self._full), self.clock)
        matrix[free, free] = 1.0
        self._inverse = Inverse(matrix)
        self._x = self._inverse.solve(self._rates)
        self._x += self._inverse.solve(self._rates - matrix @ self._x)
        self._rough = False  # on the way some numbers were so large that others have lost digits

    # Time

    def next_s(self) -> float:
        """When the next flow ends."""
        self.level = np.abs(self._x * self._full)
        wait = (self._places.first - self._virtual) / self.level
        return float(wait[wait.argmin()])

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self._virtual += self.level * seconds

    def due(self, seconds: float) -> Ints:
        """The flows that end within this time."""
        near = self.level * seconds + 1e-15 * np.abs(self._virtual)  # and what rounding has done
        return self._places.due(self._virtual, near)

    def state(self, flows: Ints) -> tuple[Ints, Floats, Floats]:
        """What holds back each, its level, and the work that is left for it."""
        held = self._held[flows]
        holds, scale = self._capacities[flows, held], self._scale[flows, held]
        left = self._places.ends[self._places.of[flows, held]] - self._virtual[holds]
        return held, self.level[holds] * scale, left * scale

    # Changes

    def end(self, flows: Ints) -> None:
        """These have ended."""
        self.alive[flows] = False
        if len(flows) != 1 or not self._end_one(int(flows[0])):
            self._move(flows, None)

    def _end_one(self, flow: int) -> bool:
        """What `_move` does, for the most frequent case: one that is held back together with others."""
        held = self._held[flow]
        c = int(self._capacities[flow, held])
        if c == self.clock or self._count[c] < 2:
            return False
        step = self._inverse.change([c], self._capacities[flow, :-1], -self._pulls[flow, None])
        if step is None:
            return False
        self._count[c] -= 1
        self._places.ends[self._places.of[flow, held]] = np.inf
        self._places.find_first([c])
        self._x -= self._x[c] * step[0]
        return True

    def _move(self, flows: Ints, to: Ints | None) -> None:
        """Flows are held back by another of their loads from now on, or have ended."""
        held = self._held[flows]
        places, ends = self._places.of, self._places.ends
        old, place, scale = self._capacities[flows, held], places[flows, held], self._scale[flows, held]
        number: dict[int, int] = {}  # column -> which of those that change
        leave = self._column_of(old, number, -1)
        loads = self._capacities[flows, :-1]
        if to is None:
            ends[place] = np.inf
            by = np.zeros((len(number), self.clock + 1))
        else:
            new, new_scale = self._capacities[flows, to], self._scale[flows, to]
            join = self._column_of(new, number, 1)
            work = (ends[place] - self._virtual[old]) * scale
            ends[place] = np.inf
            ends[places[flows, to]] = work / new_scale + self._virtual[new]
            self._spend(flows, self._held)
            self._held[flows] = to
            by = np.zeros((len(number), self.clock + 1))
            np.add.at(by, (join[:, None], loads), self._pulls[flows] * new_scale[:, None])
        np.subtract.at(by, (leave[:, None], loads), self._pulls[flows] * scale[:, None])
        self._change(number, by)

    def _spend(self, flows: Ints, held: Ints) -> None:
        """Note how long these have been held back as they were."""
        self.spent_ps[flows, held[flows]] += self._now_ps - self.since_ps[flows]
        self.since_ps[flows] = self._now_ps

    def _column_of(self, capacities: Ints, number: dict[int, int], more: int) -> Ints:
        """The number of each capacity's column; counts whom the capacities hold back."""
        count = self._count
        columns = []
        for c in capacities.tolist():
            count[c] += more
            columns.append(number.setdefault(c, len(number)))
        return np.array(columns)

    def _change(self, number: dict[int, int], by: Floats) -> None:
        """Columns of A change."""
        full, clock = self._full, self.clock
        for c, k in number.items():
            if full[c] != (self._count[c] > 0) and c != clock:
                by[k, c] += 1.0 if full[c] else -1.0  # what is left of it instead of its level, or the other way round
                full[c] = not full[c]
        by[:, clock] = 0.0
        self._places.find_first(number)
        columns = list(number)
        step = None
        if len(columns) <= clock // 2:
            rows = np.flatnonzero(by.any(axis=0))
            step = self._inverse.change(columns, rows, by[:, rows])
        if step is None:
            self._solve()
        else:
            self._x -= self._x[columns] @ step

    # Objections

    def settle(self, now_ps: int) -> bool:
        """Find who is held back where; False if that does not end."""
        self._now_ps = now_ps
        with suppress(np.linalg.LinAlgError):
            for _ in range(ROUNDS):
                moves = self._objections()
                if moves is None and not self._rough:
                    return True
                if moves is None:
                    self._solve()
                elif len(moves[0]):
                    self._move(*moves)
        return False

    def _objections(self) -> Moves | None:
        level = np.where(self._full[:-1], self._x[:-1], np.inf)
        ranked = level.take(self._order)
        lacks = self._x < self._least
        lacking = np.flatnonzero(lacks) if np.count_nonzero(lacks) else _NOBODY
        if len(lacking) and np.count_nonzero(self._full[lacking] | (self._x[lacking] < -self._rates[lacking])):
            self._rough = True
        movers, self._filled = self._filled, []
        if np.count_nonzero(ranked[1:] < ranked[:-1] * (1 - NOISE)):
            movers += self._reorder(level, ranked)
        if movers:
            return self._look_again(np.concatenate([self._places.on[c] for c in movers]), level)
        over = [c for c in lacking.tolist() if not self._full[c]]
        if over:
            return self._hold_back(over, level)
        return self._limit(level) if len(self._limited) else None

    def _reorder(self, level: Floats, ranked: Floats) -> list[int]:
        """The smaller set of capacities without which the others are in order goes where it belongs."""
        up = ranked > np.minimum.accumulate(ranked[::-1])[::-1] * (1 + NOISE / 4)
        down = ranked < np.maximum.accumulate(ranked) * (1 - NOISE / 4)
        out, tie = (up, 1 - NOISE / 4) if np.count_nonzero(up) <= np.count_nonzero(down) else (down, 1 + NOISE / 4)
        movers: list[int] = self._order[out].tolist()
        ranked[out] = 0.0
        ranked = np.maximum.accumulate(ranked)
        ranked[out] = level[movers] * tie
        self._order = self._order[ranked.argsort(kind="stable")]
        self._rank[self._order] = self._range
        return movers

    def _look_again(self, flows: Ints, level: Floats) -> Moves:
        flows = flows[self.alive[flows]]
        to = self._first_of(flows, level)
        moved = to != self._held[flows]
        flows, to = flows[moved], to[moved]
        if len(flows) > 1:
            flows, first = np.unique(flows, return_index=True)
            to = to[first]
        return flows, to

    def _first_of(self, flows: Ints, level: Floats) -> Ints:
        """By which of its loads each is held back: the first in the order, or its limit."""
        loads = self._capacities[flows, :-1]
        first = self._rank[loads].argmin(axis=1)
        if len(self._limited):
            lowest = np.append(level, np.inf)[loads[np.arange(len(flows)), first]]
            first[self._limits[flows] < lowest] = self.depth
        return first

    def _limit(self, level: Floats) -> Moves | None:
        """Flows faster than their limit, or at their limit where a capacity gives less."""
        flows = self._limited = self._limited[self.alive[self._limited]]
        lowest = np.append(level, np.inf)[self._capacities[flows, :-1]].min(axis=1)
        limits = self._limits[flows]
        at_limit = self._held[flows] == self.depth
        objects = np.where(at_limit, lowest < limits * (1 - NOISE), limits < lowest * (1 - NOISE))
        return self._look_again(flows[objects], level) if np.count_nonzero(objects) else None

    def _hold_back(self, over: list[int], level: Floats) -> Moves | None:
        """Capacities of which more than all is used hold back the fastest flows on them."""
        to: dict[int, int] = {}
        for c in over:
            flows, loads = self._places.on[c], self._places.load_on[c]
            alive = self.alive[flows]
            flows, loads = flows[alive], loads[alive]
            if not len(flows):
                self._rough = True  # nobody uses it: digits were lost
                continue
            self._filled.append(c)
            held = self._held[flows]
            speed = np.append(level, 1.0)[self._capacities[flows, held]] * self._scale[flows, held]
            fast = (-speed).argsort(kind="stable")
            flows, loads, speed = flows[fast], loads[fast], speed[fast]
            pull = self._pulls[flows, loads]
            given = (pull * speed).cumsum()
            water = (self._rates[c] - given[-1] + given) / pull.cumsum()
            enough = (water[:-1] >= speed[1:]).nonzero()[0]
            many = int(enough[0]) + 1 if len(enough) else len(flows)
            for flow, load in zip(flows[:many].tolist(), loads[:many].tolist(), strict=True):
                to.setdefault(flow, load)
        return (np.array(list(to)), np.array(list(to.values()))) if to else None
