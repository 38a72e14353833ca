"""Flows of bytes over shared capacities, on a SimPy clock in integer picoseconds.

A flow moves `size_bytes` at a rate that depends on who else is there (`maxmin.py`: weighted max-min fairness), and a
kernel is such a flow: its bytes on chip, its HBM bytes as a coefficient, its compute as a limit. Rates are solved once
per instant, after everything that starts or ends in it, and only for flows that can notice (`sharing.py`). A flow whose
rate stays as it is is not touched, so its finish time carries no rounding noise from what happens elsewhere.

Worked example. Capacity X = 10 B/s; flow a (30 B) starts at 0 s, flow b (10 B) at 1 s. a moves 10 B in the first
second; then both get 5 B/s: b ends at 3 s; a has 10 B left, gets 10 B/s again and ends at 4 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from itertools import count
from math import inf
from typing import TypeAlias

from simpy import Environment
from simpy.events import Event

from simulator.physics.clock import SOLVE, Timer, call_later
from simulator.physics.maxmin import LIMIT
from simulator.physics.sharing import share
from simulator.units import PS_PER_S, to_ps

_NEVER, _DONE = -1, -2  # finish times of a flow without a rate yet, and of one that has ended
_SAME = 1e-14  # rates closer than this (relative) are the same rate: solving again must not move a finish time
_serials = count()


class StalledFlowError(ValueError):
    """A flow that can never move its bytes; the text names it and what stops it."""


class Capacity:
    """Something that moves at most `rate_bytes_per_s`, shared by the flows that cross it; rate inf never binds."""

    __slots__ = ("flows", "name", "rate_bytes_per_s", "serial")

    def __init__(self, name: object, rate_bytes_per_s: float) -> None:
        if not rate_bytes_per_s >= 0:
            raise ValueError(f"capacity {name!r}: rate {rate_bytes_per_s} bytes/s; it must be 0 or more")
        self.name = name
        self.rate_bytes_per_s = rate_bytes_per_s
        self.flows: dict[Flow, float] = {}  # those in flight here -> bytes moved here per byte of a member's own
        self.serial = next(_serials)

    def __repr__(self) -> str:
        return f"Capacity({self.name!r}, {self.rate_bytes_per_s:g} B/s)"

    def used_bytes_per_s(self) -> float:
        """How much moves here at this moment."""
        return sum(coefficient * flow.rate_bytes_per_s for flow, coefficient in self.flows.items())


Bound: TypeAlias = Capacity | int
"""What limits a flow: a capacity, or LIMIT."""


class Flow:
    """`multiplicity` identical members that each move `size_bytes`, at `weight` times the fair level.

    loads: (capacity, bytes moved there per byte of a member's own). limit_bytes_per_s, size and rate are per member.
    Raises ValueError for numbers that make no sense, and for a flow that nothing bounds (no load, no finite limit).
    """

    __slots__ = (  # noqa: RUF023
        "size_bytes", "loads", "limit_bytes_per_s", "weight", "multiplicity", "tag", "rate_bytes_per_s",
        "pulls", "bound", "chosen", "index", "solo_rate", "solo_bound",
        "_left_bytes", "_since_ps", "_finish_ps", "_queued_ps", "_bound_since_ps", "_bound_ps", "_done", "_serial",
    )  # fmt: skip

    def __init__(
        self,
        size_bytes: float,
        loads: Sequence[tuple[Capacity, float]],
        limit_bytes_per_s: float = inf,
        weight: float = 1.0,
        multiplicity: int = 1,
        tag: object = None,
    ) -> None:
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
        self.rate_bytes_per_s = 0.0  # at this moment
        self.bound: Bound = LIMIT  # what sets the rate at this moment
        self.chosen = False  # for the solver: among those whose rates are being solved, and the index there
        self.index = 0
        self._add_up(loads)
        self._left_bytes: float = size_bytes
        self._finish_ps = self._queued_ps = _NEVER
        self._since_ps = self._bound_since_ps = 0
        self._bound_ps: dict[Bound, int] | None = None
        self._done: Callable[[Flow], object]
        self._serial = -1

    def _add_up(self, loads: Sequence[tuple[Capacity, float]]) -> None:
        """Set `pulls` (the loads that can bound, for all members) and the rate and bound of the flow alone."""
        if len(loads) > 1 and (loads[0][0] is loads[1][0] if len(loads) == 2 else len(dict(loads)) < len(loads)):
            merged: dict[Capacity, float] = {}
            for capacity, coefficient in loads:
                merged[capacity] = merged.get(capacity, 0.0) + coefficient
            loads = list(merged.items())
        pulls: list[tuple[Capacity, float]] = []
        rate = self.limit_bytes_per_s
        bound: Bound = LIMIT
        for capacity, coefficient in loads:
            if not 0 <= coefficient < inf:
                raise ValueError(f"{self!r}: coefficient {coefficient} on {capacity!r}; it must be 0 or more")
            total = capacity.rate_bytes_per_s
            if coefficient and total < inf:
                pull = coefficient * self.multiplicity
                pulls.append((capacity, pull))
                alone = total / pull
                if alone < rate or (alone == rate and (bound == LIMIT or capacity.serial < bound.serial)):  # type: ignore[union-attr]
                    rate, bound = alone, capacity
        self.pulls: list[tuple[Capacity, float]] = pulls
        self.solo_rate: float = rate
        self.solo_bound: Bound = bound

    def __repr__(self) -> str:
        name = "" if self.tag is None else f"{self.tag!r}, "
        return f"Flow({name}{self.size_bytes:g} B)"

    def solo_s(self) -> float:
        """How long it takes with nobody else there, in seconds, without latency; inf if it can never end."""
        if not self.size_bytes:
            return 0.0
        return self.size_bytes / self.solo_rate if self.solo_rate else inf

    @property
    def bound_ps(self) -> Mapping[Bound, int]:
        """How long each bound has limited it, in ps; complete when it is done, else up to the last change of bound."""
        return self._bound_times(self._since_ps if self._finish_ps == _DONE else self._bound_since_ps)

    def bound_by(self, now_ps: int | None = None) -> Bound:
        """What has limited it longest: until `now_ps` while it is in flight, in all after it is done."""
        if self._bound_ps is None:
            return self.bound
        until_ps = self._since_ps if self._finish_ps == _DONE or now_ps is None else now_ps
        times = self._bound_times(until_ps)
        return max(times, key=times.__getitem__)

    def _bound_times(self, until_ps: int) -> dict[Bound, int]:
        times = dict(self._bound_ps or ())
        if until_ps > self._bound_since_ps:
            times[self.bound] = times.get(self.bound, 0) + until_ps - self._bound_since_ps
        return times

    def _set_bound(self, bound: Bound, now_ps: int) -> None:
        if now_ps > self._bound_since_ps:
            self._bound_ps = self._bound_times(now_ps)
            self._bound_since_ps = now_ps
        self.bound = bound


@dataclass(slots=True)
class Stats:
    """Counters. started: flows; solves: instants at which rates were solved; solved: rates worked out in them."""

    started: int = 0
    solves: int = 0
    solved: int = 0


class Network:
    """All flows in flight on one clock. `active` holds them in the order of their start, latency included.

    watchers: called as watcher(now_ps, network) after each solve, and after each end of flows, with the new rates set.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.active: dict[Flow, None] = {}
        self.watchers: list[Callable[[int, Network], object]] = []
        self.stats = Stats()
        self._ends: list[tuple[int, int, Flow]] = []  # heap of (finish time or an earlier one, serial, flow)
        self._timer = Timer(env, self._finish)
        self._affected: list[Flow] = []  # flows whose rate must be solved at the end of this instant
        self._solve_due = False
        self._ending = False  # while `done` of a batch is called: the timer is set after it

    def start(self, flow: Flow, done: Callable[[Flow], object], latency_ps: int = 0) -> None:
        """Set a flow off after `latency_ps`, in which it loads nothing; call `done(flow)` when its bytes are moved.

        `done` never runs inside `start`. Raises StalledFlowError if the flow could never end, ValueError if it
        was started before.
        """
        if flow._serial >= 0:
            raise ValueError(f"{flow!r} has been started before")
        if not flow.solo_rate and flow.size_bytes:
            what = "its limit" if flow.solo_bound == LIMIT else repr(flow.solo_bound)
            raise StalledFlowError(f"{flow!r} can never move its bytes: {what} is 0 bytes/s")
        flow._serial = self.stats.started
        self.stats.started += 1
        flow._done = done
        self.active[flow] = None
        if not flow.size_bytes:
            call_later(self.env, latency_ps, lambda _: self._end([flow]))
        elif latency_ps:
            call_later(self.env, latency_ps, lambda _: self._begin(flow))
        else:
            self._begin(flow)

    def _begin(self, flow: Flow) -> None:
        now_ps: int = self.env._now  # type: ignore[assignment]
        flow._since_ps = flow._bound_since_ps = now_ps
        alone = True
        for capacity, pull in flow.pulls:
            if capacity.flows:
                alone = False
                self._affect(capacity)
            capacity.flows[flow] = pull
        if alone:  # nothing to solve; whoever comes later in this instant finds it as one in flight
            flow.bound = flow.solo_bound
            self._set_rate(flow, flow.solo_rate, now_ps)
            if self.watchers:
                self._solve_later()
            elif not self._ending:
                at_ps = self._timer.at_ps
                if at_ps is None or flow._finish_ps < at_ps:
                    self._timer.arm(flow._finish_ps)
        else:
            flow.chosen = True
            self._affected.append(flow)
            self._solve_later()

    def _solve_later(self) -> None:
        if not self._solve_due:
            self._solve_due = True
            call_later(self.env, 0, self._solve, SOLVE)

    def _affect(self, capacity: Capacity) -> None:
        """Whoever is held back by this capacity will notice that a flow has come or gone."""
        for flow in capacity.flows:
            if flow.bound is capacity and not flow.chosen:
                flow.chosen = True
                self._affected.append(flow)

    def _solve(self, _: Event) -> None:
        self._solve_due = False
        flows = [flow for flow in self._affected if flow._finish_ps != _DONE]
        self._affected = []
        if flows:
            rates, bounds = share(flows)
            self.stats.solves += 1
            self.stats.solved += len(flows)
            now_ps: int = self.env._now  # type: ignore[assignment]
            for flow, rate, bound in zip(flows, rates, bounds, strict=True):
                flow.chosen = False
                if bound is not flow.bound:
                    flow._set_bound(bound, now_ps)
                old = flow.rate_bytes_per_s
                if not old or abs(rate - old) > _SAME * rate:
                    self._set_rate(flow, rate, now_ps)
        self._arm()
        for watcher in self.watchers:
            watcher(self.env._now, self)  # type: ignore[arg-type]

    def _set_rate(self, flow: Flow, rate: float, now_ps: int) -> None:
        if not rate:
            raise StalledFlowError(f"{flow!r} gets no share of {flow.bound!r}")
        old = flow.rate_bytes_per_s
        if old:
            flow._left_bytes -= old * ((now_ps - flow._since_ps) / PS_PER_S)
        flow._since_ps = now_ps
        flow.rate_bytes_per_s = rate
        flow._finish_ps = finish_ps = now_ps + to_ps(flow._left_bytes / rate)
        if finish_ps < flow._queued_ps or flow._queued_ps < 0:  # a later end is put right when the old one comes up
            flow._queued_ps = finish_ps
            heappush(self._ends, (finish_ps, flow._serial, flow))

    def _arm(self) -> None:
        """Set the timer to the first end; entries of flows that are done or end later now are put right on the way."""
        ends = self._ends
        while ends:
            at_ps, serial, flow = ends[0]
            if flow._finish_ps == at_ps:
                self._timer.arm(at_ps)
                return
            if flow._finish_ps == _DONE or flow._queued_ps != at_ps:
                heappop(ends)
            else:
                flow._queued_ps = flow._finish_ps
                heapreplace(ends, (flow._finish_ps, serial, flow))
        self._timer.disarm()

    def _finish(self) -> None:
        ends, now_ps = self._ends, self.env._now
        batch: list[Flow] = []
        while ends and ends[0][0] == now_ps:
            flow = heappop(ends)[2]
            if flow._finish_ps == now_ps:
                flow._finish_ps = _DONE
                batch.append(flow)
            elif flow._finish_ps != _DONE and flow._queued_ps == now_ps:
                flow._queued_ps = flow._finish_ps
                heappush(ends, (flow._finish_ps, flow._serial, flow))
        self._end(batch)

    def _end(self, batch: list[Flow]) -> None:
        """Take flows that end at this instant off their capacities, all of them before the first `done`."""
        now_ps: int = self.env._now  # type: ignore[assignment]
        for flow in batch:
            flow._finish_ps = _DONE
            flow._since_ps = now_ps
            if not flow.rate_bytes_per_s:  # it had no bytes
                flow._bound_since_ps = now_ps
            flow.rate_bytes_per_s = 0.0
            for capacity, _ in flow.pulls:
                capacity.flows.pop(flow, None)
            del self.active[flow]
        for flow in batch:
            for capacity, _ in flow.pulls:
                if capacity.flows:
                    self._affect(capacity)
        self._ending = True
        for flow in batch:
            flow._done(flow)
        self._ending = False
        if self._affected or self.watchers:
            self._solve_later()
        elif not self._solve_due:
            self._arm()
