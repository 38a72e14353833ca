"""Many flows that share with each other, handed over by the network to the compiled solver (`ranked.c`).

There they go from end to end by themselves until something is reached that is waited for, or until the next event
outside. Others join them when they begin on their capacities; what is left when few are in flight goes back to the
network.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable
from math import inf
from operator import attrgetter
from typing import TypeAlias

from simulator.physics.flow import DONE, NEVER, Bound, Capacity, Countdown, Flow
from simulator.physics.maxmin import LIMIT
from simulator.physics.ranked import library

Reached: TypeAlias = "tuple[Flow, Countdown | None]"
"""A flow that was the last one of a countdown, or whose own end is told (None)."""

_PS_S = 1e-12
_NONE = -1
_TOO_LATE = 2**63 - 1


class Batch:
    """Flows in flight that share with no others, and the capacities that they cross. flows: those still in flight.

    changed: where it notes itself when its next end may be another one.
    """

    def __init__(self, now_ps: int, changed: list[Batch]) -> None:
        self._changed = changed
        self._known = True  # when the next flow ends
        self._next_ps = NEVER
        self._library = library()
        self._net = self._library.net_new(now_ps)
        self._capacities: list[Capacity] = []
        self._counters: dict[Countdown, int] = {}
        self._countdowns: list[Countdown] = []
        self._all: list[Flow] = []  # by number
        self.flows: dict[Flow, int] = {}
        self._state, self._level = (ctypes.c_int64 * 2)(), ctypes.c_double()
        self._spent = ctypes.POINTER(ctypes.c_int64)()

    def __del__(self) -> None:
        self._library.net_free(self._net)

    def __len__(self) -> int:
        return len(self.flows)

    @property
    def worn(self) -> bool:
        """Whether most of the flows that it ever had have ended, so that one made anew would be faster."""
        return len(self._all) > 4 * len(self.flows) + 256

    def add(self, flows: list[Flow], now_ps: int) -> None:
        """These flows share with those here from now on; they are off the network."""
        self._change()
        new = {capacity for flow in flows for capacity, _ in flow.pulls if capacity.batch is not self}
        for capacity in sorted(new, key=attrgetter("serial")):
            capacity.enter(self)
            capacity.number = self._library.net_capacity(self._net, capacity.rate_bytes_per_s, capacity.serial)
            self._capacities.append(capacity)
        held, longs, reals = array("q"), array("q"), array("d")
        for flow in flows:
            weight, countdowns = flow.weight, flow.countdowns
            held.append(_held(flow))
            longs.extend((flow.bound_since_ps, flow.done is not None, len(flow.pulls), len(countdowns)))
            longs.extend([capacity.number for capacity, _ in flow.pulls])
            if countdowns:
                longs.extend([self._counter(one) for one in countdowns])
            left = flow.left_bytes - flow.rate_bytes_per_s * ((now_ps - flow.since_ps) * _PS_S)
            reals.extend((left / weight, weight, flow.limit_bytes_per_s))
            reals.extend([pull * weight for _, pull in flow.pulls])
            self.flows[flow] = len(self._all)
            self._all.append(flow)
            flow.finish_ps = flow.queued_ps = NEVER
        self._columns = held, longs, reals  # the library reads them: they live at least as long as its call
        at, at_longs, at_reals = held.buffer_info()[0], longs.buffer_info()[0], reals.buffer_info()[0]
        self._library.net_flows(self._net, now_ps, len(flows), at, at_longs, at_reals)

    def _counter(self, countdown: Countdown) -> int:
        """The number of a countdown."""
        number = self._counters.get(countdown)
        if number is None:
            number = self._counters[countdown] = self._library.net_counter(self._net)
            self._countdowns.append(countdown)
        return number

    def set_limit(self, flow: Flow, now_ps: int) -> None:
        """A flow that has a limit has another one from now on."""
        self._change()
        self._library.net_limit(self._net, now_ps, self.flows[flow], flow.limit_bytes_per_s)

    def set_rate(self, capacity: Capacity, now_ps: int) -> None:
        """A capacity has another rate from now on."""
        self._change()
        self._library.net_rate(self._net, now_ps, capacity.number, capacity.rate_bytes_per_s)

    def next_ps(self) -> int:
        """When the next flow ends; NEVER if none does as things stand. OverflowError beyond 64 bits."""
        if not self._known:
            self._known, self._next_ps = True, int(self._library.net_next(self._net))
            if self._next_ps == _TOO_LATE:
                raise OverflowError(f"flows end after {_TOO_LATE} ps")
        return self._next_ps

    def _change(self) -> None:
        if self._known:
            self._known = False
            self._changed.append(self)

    def run(self, until_ps: int) -> tuple[int, list[Flow], list[Reached]]:
        """Go from end to end before `until_ps`, no further than the first instant in which something is reached.

        Returns the instant of the last end (NEVER if there was none), the flows that have ended, and what is reached:
        flows with the countdown of which they were the last one here, or None where their own end is told.
        """
        self._change()
        told = self._library.net_run(self._net, until_ps)
        at_ps, count, reached_count = told[:3]
        ended = [self._all[number] for number in told[3 : 3 + count]]
        for flow in ended:
            del self.flows[flow]
            flow.finish_ps = DONE
            flow.rate_bytes_per_s = 0.0
            for countdown in flow.countdowns:
                countdown.left -= 1
        reached: list[Reached] = []
        place = 3 + count
        for _ in range(reached_count):
            number, counter, held, since_ps, loads = told[place : place + 5]
            flow = self._all[number]
            if not reached or reached[-1][0] is not flow:
                _set_bounds(flow, held, since_ps, told[place + 5 : place + 5 + loads])
                flow.since_ps = at_ps
            reached.append((flow, None if counter == _NONE else self._countdowns[counter]))
            place += 5 + loads
        return at_ps, ended, reached

    def _read(self, flow: Flow, number: int) -> float:
        """Set what holds a flow back, since when, and how long what has held it before; what it has left, by weight."""
        state, spent = self._state, self._spent
        left = self._library.net_state(self._net, number, state, ctypes.byref(self._level), ctypes.byref(spent))
        _set_bounds(flow, state[0], state[1], spent[: len(flow.pulls) + (flow.limit_bytes_per_s < inf)])
        return float(left)

    def used_bytes_per_s(self, capacity: Capacity) -> float:
        """How much moves on one of its capacities."""
        self.next_ps()
        total = 0.0
        state, level, spent = self._state, ctypes.byref(self._level), ctypes.byref(self._spent)
        for flow, number in self.flows.items():
            self._library.net_state(self._net, number, state, level, spent)
            total += sum(pull for other, pull in flow.pulls if other is capacity) * self._level.value * flow.weight
        return total

    def dissolve(self, now_ps: int) -> Iterable[Flow]:
        """The flows that are left, on their capacities again, each with its rate, bound and what it has to move."""
        self.next_ps()
        self._library.net_advance(self._net, now_ps)
        for capacity in self._capacities:
            capacity.enter(None)
        for flow, number in self.flows.items():
            left = self._read(flow, number)
            flow.left_bytes, flow.since_ps = left * flow.weight, now_ps
            flow.rate_bytes_per_s = self._level.value * flow.weight
            for capacity, pull in flow.pulls:
                capacity.flows[flow] = pull
        return self.flows


def _set_bounds(flow: Flow, held: int, since_ps: int, spent_ps: list[int]) -> None:
    """Set which load holds a flow back, its limit counted last, since when, and how long each has held it before."""
    if any(spent_ps):
        for place, spent in enumerate(spent_ps):
            if spent:
                flow.add_bound(_bound(flow, place), spent)
    flow.bound, flow.bound_since_ps = _bound(flow, held), since_ps


def _bound(flow: Flow, place: int) -> Bound:
    """A load as what limits a flow; its limit is counted last."""
    return flow.pulls[place][0] if place < len(flow.pulls) else LIMIT


def _held(flow: Flow) -> int:
    """Which of its loads, its limit counted last, holds a flow at present; -1 if it has no rate yet."""
    if not flow.rate_bytes_per_s:
        return _NONE
    if flow.bound == LIMIT:
        return len(flow.pulls)
    return next(place for place, (capacity, _) in enumerate(flow.pulls) if capacity is flow.bound)
