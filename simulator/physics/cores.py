"""Exclusive integer slots in named pools: what a task holds alone from its start to its end.

A request names the slots that one unit of it needs in each pool, e.g. (("cube", 1), ("vector", 2)), the fewest units
with which it starts (`at_least`) and how many it can use (`want`). It gets

    units = min(want, min over its pools of free // per_unit)      as soon as units >= at_least

and no request ahead of it in the queue waits for one of its pools. The queue is ordered by (priority, arrival), the
smaller number first. So a request may pass one that is ahead of it and blocked only if they share no pool: a big
request is never starved by small ones.

Worked example. 4 cube slots; a holds 3. b asks for at least 2: it waits. c asks for 1, which is free, and waits all the
same, behind b. When a ends, b gets what it wants and c gets its share of what is left.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from typing import NamedTuple

Need = tuple[tuple[str, int], ...]
"""Slots per unit in each pool: ((pool, per_unit), ...)."""


class _Request(NamedTuple):
    priority: int
    arrival: int  # unique, so comparing two requests never looks further
    need: Need
    at_least: int
    want: int
    granted: Callable[[int], object]


class Cores:
    """Pools of slots with one queue. slots: how many each pool has. queue: who waits."""

    __slots__ = ("_arrivals", "free", "queue", "slots")

    def __init__(self, slots: Mapping[str, int]) -> None:
        for pool, count in slots.items():
            if count < 0 or count != int(count):
                raise ValueError(f"pool {pool!r} cannot have {count} slots: a whole number, 0 or more")
        self.slots = slots  # not copied: all dies of a program look at one table
        self.free: dict[str, int] = dict(slots)
        self.queue: list[_Request] = []
        self._arrivals = 0

    def take(self, need: Need, at_least: int, want: int) -> int:
        """Book as many units as there are, between at_least and want; 0 if there are too few.

        Not checked, and past the queue: while there is one, `acquire`.
        """
        free, units = self.free, want
        for pool, per_unit in need:
            if units * per_unit > free[pool]:
                units = free[pool] // per_unit
        if units < at_least:
            return 0
        for pool, per_unit in need:
            free[pool] -= units * per_unit
        return units

    def acquire(self, need: Need, at_least: int, want: int, priority: int, granted: Callable[[int], object]) -> None:
        """Call `granted(units)` at once if it can be served now, else when its turn has come.

        Raises ValueError if it asks for more than exists (it could never start), or makes no sense.
        """
        self._check(need, at_least, want)
        self._arrivals += 1
        request = _Request(priority, self._arrivals, need, at_least, want, granted)
        queue = self.queue
        if not queue or not self._is_behind(request):
            units = self.take(need, at_least, want)
            if units:
                granted(units)
                return
        insort(queue, request)

    def release(self, need: Need, units: int) -> None:
        """Give back what a grant of `units` took; requests that can now be served are granted before this returns."""
        for pool, per_unit in need:
            self.free[pool] += units * per_unit
            if self.free[pool] > self.slots[pool]:
                self.free[pool] -= units * per_unit
                raise ValueError(f"pool {pool!r} gets back {units * per_unit} slots, more than are held of it")
        if self.queue:
            self._regrant()

    def _regrant(self) -> None:
        blocked: set[str] = set()  # pools for which a request ahead waits
        served: list[tuple[_Request, int]] = []
        for request in self.queue:
            pools = {pool for pool, _ in request.need}
            units = 0
            if blocked.isdisjoint(pools):
                units = self.take(request.need, request.at_least, request.want)
            if units:
                served.append((request, units))
            else:
                blocked |= pools
        for request, _ in served:
            self.queue.remove(request)
        for request, units in served:  # all are booked before the first callback, which may acquire or release again
            request.granted(units)

    def _is_behind(self, request: _Request) -> bool:
        pools = {pool for pool, _ in request.need}
        return any(other < request and not pools.isdisjoint(pool for pool, _ in other.need) for other in self.queue)

    def _check(self, need: Need, at_least: int, want: int) -> None:
        if not 1 <= at_least <= want:
            raise ValueError(f"a request needs 1 <= at_least <= want, got at_least {at_least}, want {want}")
        for pool, per_unit in need:
            if pool not in self.slots:
                raise ValueError(f"there is no pool {pool!r}; present: {', '.join(self.slots) or 'none'}")
            if per_unit < 0:
                raise ValueError(f"pool {pool!r}: {per_unit} slots per unit; it cannot be negative")
            if len(need) > 1 and sum(pool == other for other, _ in need) > 1:
                raise ValueError(f"pool {pool!r} is named twice in one request")
            if at_least * per_unit > self.slots[pool]:
                raise ValueError(f"pool {pool!r}: asked for {at_least * per_unit} slots, present: {self.slots[pool]}")
