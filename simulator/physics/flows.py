"""Flows of bytes over shared capacities, on a SimPy clock in integer picoseconds.

A flow moves `size_bytes` at a rate that depends on who else is there (`maxmin.py`: weighted max-min fairness), and a
kernel is such a flow: its bytes on chip, its HBM bytes as a coefficient, its compute as a limit. Rates are solved once
per instant, after everything that starts or ends in it, and only for flows that can notice (`sharing.py`). A flow whose
rate stays as it is is not touched, so its finish time carries no rounding noise from what happens elsewhere. Where
many flows that all share end one by one, they are moved together (`crowd.py`) until another one comes.

Worked example. Capacity X = 10 B/s; flow a (30 B) starts at 0 s, flow b (10 B) at 1 s. a moves 10 B in the first
second; then both get 5 B/s: b ends at 3 s; a has 10 B left, gets 10 B/s again and ends at 4 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappush
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING

from simpy import Environment
from simpy.events import Event

from simulator.physics.clock import SOLVE, Timer, call_later
from simulator.physics.crowds import MANY, Crowds
from simulator.physics.ends import Ends
from simulator.physics.flow import DONE, NEVER, Bound, Capacity, Flow, StalledFlowError
from simulator.physics.maxmin import LIMIT
from simulator.physics.sharing import share
from simulator.units import PS_PER_S, to_ps

if TYPE_CHECKING:
    from simulator.physics.crowd import Crowd

__all__ = ["LIMIT", "Bound", "Capacity", "Flow", "Network", "StalledFlowError", "Stats"]

_SAME = 1e-14  # rates closer than this (relative) are the same rate: solving again must not move a finish time


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
        self._ends = Ends()
        self._heap = self._ends.heap
        self._crowds = Crowds()
        self._timer = Timer(env, self._finish)
        self._new: list[Flow] = []  # flows that are not alone and have no rate yet: solved at the end of this instant
        self._touched: dict[Capacity, None] = {}  # where flows came or went: whoever they hold back is solved as well
        self._solve_due = False
        self._ending = False  # while `done` of a batch is called: the timer is set after it

    def start(self, flow: Flow, done: Callable[[Flow], object], latency_ps: int = 0) -> None:
        """Set a flow off after `latency_ps`, in which it loads nothing; call `done(flow)` when its bytes are moved.

        `done` never runs inside `start`. Raises StalledFlowError if the flow could never end, ValueError if it
        was started before.
        """
        if flow.serial >= 0 or not flow.solo_rate:
            self.check(flow)
        stats = self.stats
        flow.serial = stats.started
        stats.started += 1
        flow.done = done
        self.active[flow] = None
        if flow.size_bytes and not latency_ps:
            self._begin(flow)
        else:
            call_later(self.env, latency_ps, lambda _: self._begin(flow) if flow.size_bytes else self._end_empty(flow))

    def adopt(self, flow: Flow, done: Callable[[Flow], object]) -> None:
        """Take in a flow that is under way, looked after by somebody else so far, at the rate that it has here too."""
        self.check(flow)
        flow.serial = self.stats.started
        self.stats.started += 1
        flow.done = done
        self.active[flow] = None
        for capacity, pull in flow.pulls:
            if capacity.crowd is not None:
                self._dissolve(capacity.crowd)
            capacity.flows[flow] = pull
        flow.queued_ps = flow.finish_ps
        heappush(self._heap, (flow.finish_ps, flow.serial, flow))
        if not self._ending:
            self._arm_by(flow.finish_ps)

    @staticmethod
    def check(flow: Flow) -> None:
        """StalledFlowError if the flow could never end, ValueError if it was started before."""
        if flow.serial >= 0:
            raise ValueError(f"{flow!r} has been started before")
        if not flow.solo_rate and flow.size_bytes:
            what = "its limit" if flow.solo_bound == LIMIT else repr(flow.solo_bound)
            raise StalledFlowError(f"{flow!r} can never move its bytes: {what} is 0 bytes/s")

    def _begin(self, flow: Flow) -> None:
        now_ps: int = self.env._now  # type: ignore[assignment]
        flow.since_ps = flow.bound_since_ps = now_ps
        alone = True
        for capacity, pull in flow.pulls:
            if capacity.guard is not None:
                capacity.guard(flow)
            flows = capacity.flows
            if flows:
                if capacity.crowd is not None:
                    self._dissolve(capacity.crowd)
                alone = False
                self._touched[capacity] = None
            flows[flow] = pull
        if not alone:
            flow.chosen = True
            self._new.append(flow)
            self._solve_later()
            return
        # nothing to solve; whoever comes later in this instant finds it as one in flight
        flow.bound = flow.solo_bound
        flow.rate_bytes_per_s = rate = flow.solo_rate
        flow.finish_ps = flow.queued_ps = at_ps = now_ps + ceil(flow.left_bytes / rate * 1e12 - 2**-7)  # see to_ps
        heappush(self._heap, (at_ps, flow.serial, flow))
        if self.watchers:
            self._solve_later()
        elif not self._ending:
            armed_ps = self._timer.at_ps
            if armed_ps is None or at_ps < armed_ps:
                self._timer.arm(at_ps)

    def _solve_later(self) -> None:
        if not self._solve_due:
            self._solve_due = True
            call_later(self.env, 0, self._solve, SOLVE)

    def _solve(self, _: Event) -> None:
        self._solve_due = False
        flows, self._new = self._new, []
        changes, effort = len(flows) + len(self._touched), 0
        for capacity in self._touched:
            effort += len(capacity.flows)
            for flow in capacity.flows:
                if flow.bound is capacity and not flow.chosen:
                    flow.chosen = True
                    flows.append(flow)
        self._touched.clear()
        if flows:
            rates, bounds = share(flows)
            self.stats.solves += 1
            self.stats.solved += len(flows)
            now_ps: int = self.env._now  # type: ignore[assignment]
            for flow, rate, bound in zip(flows, rates, bounds, strict=True):
                flow.chosen = False
                if bound is not flow.bound:
                    flow.set_bound(bound, now_ps)
                old = flow.rate_bytes_per_s
                if not old or abs(rate - old) > _SAME * rate:
                    self._set_rate(flow, rate, now_ps)
            effort += len(flows)
            if effort >= MANY and not self.watchers:
                self._crowds.consider(flows[0], effort, changes, now_ps)
        self._arm()
        for watcher in self.watchers:
            watcher(self.env._now, self)  # type: ignore[arg-type]

    def _set_rate(self, flow: Flow, rate: float, now_ps: int) -> None:
        if not rate:
            raise StalledFlowError(f"{flow!r} gets no share of {flow.bound!r}")
        old = flow.rate_bytes_per_s
        if old:
            flow.left_bytes -= old * ((now_ps - flow.since_ps) / PS_PER_S)
        flow.since_ps = now_ps
        flow.rate_bytes_per_s = rate
        flow.finish_ps = finish_ps = now_ps + to_ps(flow.left_bytes / rate)
        if finish_ps < flow.queued_ps or flow.queued_ps < 0:  # a later end is put right when the old one comes up
            flow.queued_ps = finish_ps
            heappush(self._heap, (finish_ps, flow.serial, flow))

    def _arm_by(self, at_ps: int) -> None:
        armed_ps = self._timer.at_ps
        if armed_ps is None or at_ps < armed_ps:
            self._timer.arm(at_ps)

    def _arm(self) -> None:
        """Set the timer to the first end."""
        at_ps = self._first_ps()
        if at_ps is None:
            self._timer.disarm()
        else:
            self._timer.arm(at_ps)

    def _first_ps(self) -> int | None:
        """When the first flow ends."""
        for crowd in self._crowds.here.copy():
            if crowd.next_ps() == NEVER:
                self._dissolve(crowd)
        at_ps = self._ends.first_ps()
        for crowd in self._crowds.here:
            crowd_ps = crowd.next_ps()
            if at_ps is None or crowd_ps < at_ps:
                at_ps = crowd_ps
        return at_ps

    def _finish(self) -> None:
        ends, timer, crowds = self._ends, self._timer, self._crowds.here
        active, touched = self.active, self._touched
        at_ps: int | None = self.env._now  # type: ignore[assignment]
        while at_ps is not None:
            batch = ends.take(at_ps)
            for flow in batch:
                for capacity, _ in flow.pulls:
                    flows = capacity.flows
                    del flows[flow]
                    if flows:
                        touched[capacity] = None
                flow.since_ps = at_ps
                flow.rate_bytes_per_s = 0.0
                del active[flow]
            if crowds:
                batch = self._take_from_crowds(batch)
            self._tell(batch)
            if self._solve_due:
                return
            at_ps = self._first_ps() if crowds else ends.first_ps()
            if at_ps is not None and not timer.skip_to(at_ps):
                timer.arm(at_ps)
                return
        timer.disarm()

    def _take_from_crowds(self, batch: list[Flow]) -> list[Flow]:
        """Add flows of crowds that end at this instant."""
        now_ps: int = self.env._now  # type: ignore[assignment]
        for crowd in self._crowds.here:
            for flow in crowd.take(now_ps):
                self._end(flow)
                batch.append(flow)
        for crowd in self._crowds.small():
            self._dissolve(crowd)
        self.stats.solves += 1
        return sorted(batch, key=attrgetter("serial"))

    def _dissolve(self, crowd: Crowd) -> None:
        """Have the flows of a crowd back."""
        now_ps: int = self.env._now  # type: ignore[assignment]
        self._crowds.here.remove(crowd)
        flows, settled = crowd.dissolve(now_ps)
        for flow in flows:
            if settled:
                flow.finish_ps = flow.queued_ps = now_ps + to_ps(flow.left_bytes / flow.rate_bytes_per_s)
                heappush(self._heap, (flow.finish_ps, flow.serial, flow))
            else:
                flow.chosen, flow.rate_bytes_per_s = True, 0.0
                self._new.append(flow)
                self._solve_later()

    def _end_empty(self, flow: Flow) -> None:
        flow.pulls, flow.finish_ps = (), DONE  # a flow without bytes has loaded nothing
        flow.bound_since_ps = self.env._now  # type: ignore[assignment]
        self._end(flow)
        self._tell([flow])
        if not self._solve_due:
            self._arm()

    def _end(self, flow: Flow) -> None:
        """A flow that is off its capacities ends now."""
        flow.since_ps = self.env._now  # type: ignore[assignment]
        flow.rate_bytes_per_s = 0.0
        del self.active[flow]

    def _tell(self, batch: list[Flow]) -> None:
        """Tell of flows that have ended at this instant."""
        self._ending = True
        for flow in batch:
            flow.done(flow)
        self._ending = False
        if self._new or self._touched or self.watchers:
            self._solve_later()
