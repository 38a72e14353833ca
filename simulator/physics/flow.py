"""Capacities, and the flows of bytes that share them. What they do in time is up to the network (`flows.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any, TypeAlias

from simulator.physics.maxmin import LIMIT

ROOM = 1 - 1e-9
"""Of a capacity; what is nearer to full is shared out, because ties have rules."""

NEVER, DONE = -1, -2
"""Finish times of a flow that has no rate yet, and of one that has ended."""

_serials = count()


class StalledFlowError(ValueError):
    """A flow that can never move its bytes; the text names it and what stops it."""


@dataclass(slots=True)
class Stats:
    """Counters. started: flows; solves: instants at which rates were solved; solved: rates worked out in them."""

    started: int = 0
    solves: int = 0
    solved: int = 0


class Capacity:
    """Something that moves at most `rate_bytes_per_s`, shared by the flows that cross it; rate inf never binds.

    batch: what moves all flows in flight here, if not the network one by one. crowded: those here, or on their way
    here, may slow each other; where it is not, all of them go as fast as each would alone.
    """

    __slots__ = ("_booked", "_count", "_room", "batch", "crowded", "flows", "name", "number", "rate_bytes_per_s",
                 "serial")  # fmt: skip

    def __init__(self, name: str, rate_bytes_per_s: float) -> None:
        if not rate_bytes_per_s >= 0:
            raise ValueError(f"capacity {name!r}: rate {rate_bytes_per_s} bytes/s; it must be 0 or more")
        self.name = name
        self.rate_bytes_per_s = rate_bytes_per_s
        self.flows: dict[Flow, float] = {}  # those in flight here -> bytes moved here per byte of a member's own
        self.batch: Any = None
        self.number = 0  # in the batch
        self.crowded = False
        self._booked, self._count = 0.0, 0  # what they would move here if each went as fast as alone, and how many
        self._room = rate_bytes_per_s * ROOM
        self.serial = next(_serials)

    def __repr__(self) -> str:
        return f"Capacity({self.name!r}, {self.rate_bytes_per_s:g} B/s)"

    def book(self, rate_bytes_per_s: float) -> bool:
        """One more flow is on its way here, which alone moves so much; whether it makes this crowded."""
        self._booked += rate_bytes_per_s
        self._count += 1
        if self.crowded or self._booked <= self._room or self._count == 1:
            return False
        self.crowded = True
        return True

    def release(self, rate_bytes_per_s: float) -> None:
        """One flow less."""
        self._count -= 1
        self._booked = self._booked - rate_bytes_per_s if self._count else 0.0
        if self.crowded and self.batch is None:
            self._look()

    def enter(self, batch: object) -> None:
        """From now on a batch moves all flows here, or the network again."""
        self.batch = batch
        self._look()

    def _look(self) -> None:
        self.crowded = self.batch is not None or (self._count > 1 and self._booked > self._room)

    def used_bytes_per_s(self) -> float:
        """How much moves here at this moment."""
        if self.batch is not None:
            return self.batch.used_bytes_per_s(self)
        return sum(coefficient * flow.rate_bytes_per_s for flow, coefficient in self.flows.items())


class Countdown:
    """So many flows have to end; `reached` is called with the last of them."""

    __slots__ = ("left", "reached")

    def __init__(self, left: int, reached: Callable[[Flow], object]) -> None:
        self.left = left
        self.reached = reached


Pulls: TypeAlias = tuple[tuple[Capacity, float], ...]
"""Capacities, and the bytes that all members of a flow move there per byte of one."""

Bound: TypeAlias = Capacity | int
"""What limits a flow: a capacity, or LIMIT."""


def _before(capacity: Capacity, bound: Bound) -> bool:
    """Whether a tie goes to the capacity: it does against LIMIT, and against a capacity that was made later."""
    return not isinstance(bound, Capacity) or capacity.serial < bound.serial


class Flow:
    """`multiplicity` identical members that each move `size_bytes`, at `weight` times the fair level.

    loads: (capacity, bytes moved there per byte of a member's own). limit_bytes_per_s, size and rate are per member.
    done: called with the flow when its bytes are moved. countdowns: what its end counts down.
    Raises ValueError for numbers that make no sense, and for a flow that nothing bounds (no load, no finite limit).
    """

    __slots__ = (  # noqa: RUF023
        "size_bytes", "loads", "limit_bytes_per_s", "weight", "multiplicity", "tag", "rate_bytes_per_s",
        "pulls", "bound", "chosen", "index", "solo_rate", "solo_bound",
        "left_bytes", "since_ps", "finish_ps", "queued_ps", "bound_since_ps", "_bound_ps", "done", "countdowns",
        "serial",
    )  # fmt: skip

    def __init__(self, size_bytes: float, loads: Sequence[tuple[Capacity, float]], limit_bytes_per_s: float = inf,
                 weight: float = 1.0, multiplicity: int = 1, tag: Any = None) -> None:
        self.size_bytes = size_bytes
        self.loads = loads
        self.limit_bytes_per_s = limit_bytes_per_s
        self.weight = weight
        self.multiplicity = multiplicity
        self.tag = tag
        if not (0 <= size_bytes < inf and limit_bytes_per_s >= 0 and 0 < weight < inf and multiplicity >= 1):
            raise ValueError(f"{self!r}: limit {limit_bytes_per_s}, weight {weight}, multiplicity {multiplicity}; all "
                             "must be positive, and size and weight finite")
        if not loads and limit_bytes_per_s == inf:
            raise ValueError(f"{self!r} loads no capacity and has no finite limit: nothing bounds its rate")
        self.pulls: Pulls = ()  # the loads that can bind, for all members
        self.solo_rate = 0.0  # of the flow alone
        self.solo_bound: Bound = LIMIT
        self.rate_bytes_per_s = 0.0  # at this moment; in a batch, when it was formed: ask its capacities
        self.bound: Bound = LIMIT  # what sets this rate
        self.chosen = False  # for the solver: among those whose rates are being solved, and the index there
        self.index = 0
        self._add_up(loads)
        self.left_bytes: float = size_bytes
        self.finish_ps = self.queued_ps = NEVER
        self.since_ps = self.bound_since_ps = 0
        self._bound_ps: dict[Bound, int] | None = None
        self.done: Callable[[Flow], object] | None = None
        self.countdowns: Sequence[Countdown] = ()
        self.serial = -1

    def check(self) -> None:
        """StalledFlowError if it could never end, ValueError if it was started before."""
        if self.serial >= 0:
            raise ValueError(f"{self!r} has been started before")
        if self.size_bytes and not self.solo_rate:
            what = "its limit" if self.solo_bound == LIMIT else repr(self.solo_bound)
            raise StalledFlowError(f"{self!r} can never move its bytes: {what} is 0 bytes/s")

    def again(self, size_bytes: float | None = None, limit_bytes_per_s: float | None = None) -> Flow:
        """Another flow like this one as it was made, with another size and limit if they are given."""
        flow = Flow(0.0, (), 1.0, self.weight, self.multiplicity, self.tag)
        flow.become(self, self.pulls, self.solo_bound)
        flow.loads = self.loads
        if size_bytes is not None:
            flow.size_bytes = flow.left_bytes = size_bytes
        if limit_bytes_per_s is not None:
            flow.limit_bytes_per_s = limit_bytes_per_s
            flow.solo_rate, flow.solo_bound = flow.solo()
        return flow

    def become(self, like: Flow, pulls: Pulls, bound: Bound) -> None:
        """Be another flow, to be started once more: of the size and limit of this one, with the same pulls elsewhere.

        bound: what bounds it alone.
        """
        self.size_bytes = self.left_bytes = like.size_bytes
        self.limit_bytes_per_s = like.limit_bytes_per_s
        self.solo_rate, self.solo_bound = like.solo_rate, bound
        self.pulls = self.loads = pulls
        self.finish_ps = self.queued_ps = self.serial = NEVER
        self._bound_ps = None

    def _add_up(self, loads: Sequence[tuple[Capacity, float]]) -> None:
        """Set `pulls` (the loads that can bound, for all members) and the rate and bound of the flow alone."""
        if len(loads) > 1 and (loads[0][0] is loads[1][0] if len(loads) == 2 else len(dict(loads)) < len(loads)):
            merged: dict[Capacity, float] = {}
            for capacity, coefficient in loads:
                merged[capacity] = merged.get(capacity, 0.0) + coefficient
            loads = list(merged.items())
        members = self.multiplicity
        idle = False  # some of the loads can never bind
        for capacity, coefficient in loads:
            if not 0.0 <= coefficient < inf:
                raise ValueError(f"{self!r}: coefficient {coefficient} on {capacity!r}; it must be 0 or more")
            idle |= coefficient == 0.0 or capacity.rate_bytes_per_s == inf
        if members == 1 and not idle:
            self.pulls = tuple(loads)
        else:
            self.pulls = tuple([(c, a * members) for c, a in loads if a and c.rate_bytes_per_s < inf])
        self.solo_rate, self.solo_bound = self.solo()

    def solo(self) -> tuple[float, Bound]:
        """Its rate where no other flow is, and what bounds it then."""
        rate = self.limit_bytes_per_s
        bound: Bound = LIMIT
        for capacity, pull in self.pulls:
            most = capacity.rate_bytes_per_s / pull
            if most < rate or (most == rate and _before(capacity, bound)):
                rate, bound = most, capacity
        return rate, bound

    def __repr__(self) -> str:
        name = "" if self.tag is None else f"{self.tag!r}, "
        return f"Flow({name}{self.size_bytes:g} B)"

    def solo_s(self) -> float:
        """How long it takes without other flows, in seconds, without latency; inf if it can never end."""
        if not self.size_bytes:
            return 0.0
        return self.size_bytes / self.solo_rate if self.solo_rate else inf

    @property
    def bound_ps(self) -> Mapping[Bound, int]:
        """How long each bound has limited it, in ps; complete when it is done, else up to the last change of bound."""
        return self._bound_times(self.since_ps if self.finish_ps == DONE else self.bound_since_ps)

    def bound_by(self, now_ps: int | None = None) -> Bound:
        """What has limited it longest: until `now_ps` while it is in flight, in all after it is done."""
        return self.longest_bound(now_ps)[0]

    def longest_bound(self, now_ps: int | None = None) -> tuple[Bound, int]:
        """The same, and for how long, in ps."""
        until_ps = self.since_ps if now_ps is None or self.finish_ps == DONE else now_ps
        if self._bound_ps is None:
            return self.bound, until_ps - self.bound_since_ps
        times = self._bound_times(until_ps)
        bound = max(times, key=times.__getitem__)
        return bound, times[bound]

    def _bound_times(self, until_ps: int) -> dict[Bound, int]:
        times = dict(self._bound_ps or ())
        if until_ps > self.bound_since_ps:
            times[self.bound] = times.get(self.bound, 0) + until_ps - self.bound_since_ps
        return times

    def add_bound(self, bound: Bound, spent_ps: int) -> None:
        """It was limited by this for so long, before what limits it now."""
        times = self._bound_ps = dict(self._bound_ps or ())
        times[bound] = times.get(bound, 0) + spent_ps

    def set_bound(self, bound: Bound, now_ps: int) -> None:
        if now_ps > self.bound_since_ps:
            self._bound_ps = self._bound_times(now_ps)
            self.bound_since_ps = now_ps
        self.bound = bound
