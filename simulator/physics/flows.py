"""Flows of bytes over shared capacities, on a clock in integer picoseconds.

A flow moves `size_bytes` at a rate that depends on which others are there (`maxmin.py`: weighted max-min fairness), and
a kernel is such a flow: its bytes on chip, its HBM bytes as a coefficient, its compute as a limit. Rates are solved
once per instant, after everything that starts or ends in it, and only for flows that can notice (`sharing.py`). A flow
whose rate stays as it is is not touched, so its finish time carries no rounding noise from what happens elsewhere.
Where many flows share with each other, the compiled solver moves them together (`batch.py`).

Worked example. Capacity X = 10 B/s; flow a (30 B) starts at 0 s, flow b (10 B) at 1 s. a moves 10 B in the first
second; then both get 5 B/s: b ends at 3 s; a has 10 B left, gets 10 B/s again and ends at 4 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappush
from math import ceil, inf

from simpy.events import Event

from simulator.physics.batch import Reached
from simulator.physics.batches import Batches
from simulator.physics.clock import SOLVE, Alarm, Call, Clock, call_later
from simulator.physics.ends import Ends
from simulator.physics.flow import DONE, NEVER, Bound, Capacity, Countdown, Flow, StalledFlowError, Stats
from simulator.physics.maxmin import LIMIT
from simulator.physics.sharing import max_min_rates
from simulator.units import PS_PER_S, to_ps

__all__ = ["LIMIT", "Bound", "Capacity", "Countdown", "Flow", "Network", "StalledFlowError", "Stats"]

_SAME = 1e-14  # rates closer than this (relative) are the same rate: solving again must not move a finish time
_LATEST_PS = 2**62


class Network:
    """All flows in flight on one clock. `active` holds them in the order of their start, latency included.

    watchers: called as watcher(now_ps, network) after each solve, and after each end of flows, with the new rates set.
    """

    def __init__(self, env: Clock) -> None:
        self.env = env
        self.active: dict[Flow, None] = {}
        self.watchers: list[Callable[[int, Network], object]] = []
        self.stats = Stats()
        self._ends = Ends()
        self._heap = self._ends.heap
        self._batches = Batches(env, self._leave, self._come_back, self._begin_all, self._displace)
        self._alarm = Alarm(env, self._finish)
        self._solver = Call(env, self._solve)
        self._new: list[Flow] = []  # flows that are not alone and have no rate yet: solved at the end of this instant
        self._touched: dict[Capacity, None] = {}  # where flows came or went: those that they hold back are solved too
        self._solve_due = False
        self._changing = False  # rates have changed: what flows would move alone says nothing any more, all are solved
        self._ending = False  # while `done` of several is called: the alarm is set after it

    def start(self, flow: Flow, done: Callable[[Flow], object] | None, latency_ps: int = 0) -> None:
        """Set a flow off after `latency_ps`, in which it loads nothing; call `done(flow)` when its bytes are moved.

        `done` never runs inside `start`; None where only the flow's countdowns matter. Raises StalledFlowError if the
        flow could never end, ValueError if it was started before.
        """
        if self._set_off(flow, done, latency_ps):
            call_later(self.env, latency_ps, lambda _: self._begin(flow))

    def start_all(self, flows: Iterable[Flow], latency_ps: int) -> None:
        """Set flows off together, of which only the countdowns matter, as `start` does."""
        late = [flow for flow in flows if self._set_off(flow, None, latency_ps)]
        if late:
            call_later(self.env, latency_ps, lambda _: self._begin_all(late))

    def _set_off(self, flow: Flow, done: Callable[[Flow], object] | None, latency_ps: int) -> bool:
        """Start a flow; whether it has to begin after its latency, because others may slow it."""
        if flow.serial >= 0 or not (flow.solo_rate or self._changing):
            flow.check()
        stats = self.stats
        flow.serial = stats.started
        stats.started += 1
        flow.done = done
        self.active[flow] = None
        if not flow.size_bytes:
            call_later(self.env, latency_ps, lambda _: self._end_empty(flow))
            return False
        crowded, rate = self._changing, flow.solo_rate
        for capacity, pull in flow.pulls:
            if capacity.book(pull * rate):
                self._displace(capacity)
            crowded = crowded or capacity.crowded
        if not latency_ps:
            self._begin(flow)
            return False
        if crowded or self.watchers:
            return True
        for capacity, pull in flow.pulls:  # its end is known; unless another one makes one of its capacities crowded
            capacity.flows[flow] = pull
        flow.since_ps = flow.bound_since_ps = begin_ps = self.env.now_ps + latency_ps
        self._run_solo(flow, begin_ps)
        return False

    def _displace(self, capacity: Capacity) -> None:
        """Flows whose ends were known before they began, on a capacity that is crowded now, begin like any other."""
        now_ps = self.env.now_ps
        for flow in [one for one in capacity.flows if one.since_ps > now_ps]:
            self._put_off(flow)

    def _put_off(self, flow: Flow) -> None:
        """A flow whose end was known before it began begins at its time."""
        for capacity, _ in flow.pulls:
            del capacity.flows[flow]
        flow.rate_bytes_per_s = 0.0
        flow.finish_ps = flow.queued_ps = NEVER
        call_later(self.env, flow.since_ps - self.env.now_ps, lambda _: self._begin(flow))

    def _begin_all(self, flows: Iterable[Flow]) -> None:
        for flow in flows:
            self._begin(flow)

    def _begin(self, flow: Flow) -> None:
        flow.since_ps = flow.bound_since_ps = now_ps = self.env.now_ps
        if self._batches.here and self._batches.enter(flow):
            self._solve_later()
            return
        crowded = self._changing
        for capacity, pull in flow.pulls:
            flows = capacity.flows
            if capacity.crowded or self._changing:
                crowded = True
                if flows:
                    self._touched[capacity] = None
            flows[flow] = pull
        if not crowded:
            self._run_solo(flow, now_ps)
            return
        flow.chosen = True
        self._new.append(flow)
        self._solve_later()

    def _run_solo(self, flow: Flow, begin_ps: int) -> None:
        """Nothing slows it and it slows no other one: it goes as fast as alone."""
        flow.bound = flow.solo_bound
        flow.rate_bytes_per_s = rate = flow.solo_rate
        at_ps = begin_ps + ceil(flow.left_bytes / rate * 1e12 - 2**-7)  # see to_ps
        flow.finish_ps = flow.queued_ps = at_ps
        heappush(self._heap, (at_ps, flow.serial, flow))
        if self.watchers:
            self._solve_later()
        elif not self._ending:
            armed_ps = self._alarm.at_ps
            if armed_ps == NEVER or at_ps < armed_ps:
                self._alarm.set(at_ps)

    def set_rate(self, capacity: Capacity, rate_bytes_per_s: float) -> None:
        """A capacity moves at most so much from now on; with 0 all that cross it stand still until it moves again.

        Raises ValueError for a rate below 0 or without end, and for a capacity that never binds.
        """
        if not 0 <= rate_bytes_per_s < inf or capacity.rate_bytes_per_s == inf:
            raise ValueError(f"{capacity!r}: its rate cannot become {rate_bytes_per_s} bytes/s; 0 or more, and finite")
        capacity.rate_bytes_per_s = rate_bytes_per_s
        now_ps = self.env.now_ps
        if not self._changing:
            self._changing = True
            for flow in list(self.active):
                if flow.since_ps > now_ps and flow.rate_bytes_per_s:
                    self._put_off(flow)
        if capacity.batch is not None:
            capacity.batch.set_rate(capacity, now_ps)
        for flow in capacity.flows:
            if not flow.chosen:
                flow.chosen = True
                self._new.append(flow)
        self._solve_later()

    def set_limit(self, flow: Flow, limit_bytes_per_s: float) -> None:
        """A flow that was started moves at most so much from now on, or from when it begins."""
        if limit_bytes_per_s == flow.limit_bytes_per_s:
            return
        batch = next((c.batch for c, _ in flow.pulls if c.batch and flow in c.batch.flows), None)
        if batch is not None and inf in (limit_bytes_per_s, flow.limit_bytes_per_s):  # it gives and takes no limits
            self._batches.dissolve(batch)
            batch = None
        for capacity, pull in flow.pulls:
            capacity.release(pull * flow.solo_rate)
        flow.limit_bytes_per_s = limit_bytes_per_s
        flow.solo_rate, flow.solo_bound = flow.solo()
        for capacity, pull in flow.pulls:
            if capacity.book(pull * flow.solo_rate):
                self._displace(capacity)
        here = [capacity for capacity, _ in flow.pulls if flow in capacity.flows]
        if here and flow.since_ps > self.env.now_ps:
            self._put_off(flow)
        elif batch is not None:
            batch.set_limit(flow, self.env.now_ps)
        elif here and not flow.chosen:
            flow.chosen = True
            self._new.append(flow)
            self._touched |= dict.fromkeys(here)
        self._solve_later()

    def stalled(self) -> list[Flow]:
        """The flows that stand still because something that they cross moves nothing at present."""
        self._batches.dissolve_all()
        return [flow for flow in self.active if flow.finish_ps == NEVER and not flow.rate_bytes_per_s and flow.pulls]

    def _leave(self, flows: Iterable[Flow]) -> None:
        """Take flows off their capacities: something else moves them from now on."""
        for flow in flows:
            flow.chosen = False
            for capacity, _ in flow.pulls:
                capacity.flows.pop(flow, None)
                self._touched.pop(capacity, None)

    def _come_back(self, flows: Iterable[Flow]) -> None:
        """Move flows that are on their capacities again, at the rates that they have."""
        now_ps = self.env.now_ps
        for flow in flows:
            if flow.rate_bytes_per_s:
                flow.finish_ps = flow.queued_ps = now_ps + to_ps(flow.left_bytes / flow.rate_bytes_per_s)
                heappush(self._heap, (flow.finish_ps, flow.serial, flow))

    def _solve_later(self) -> None:
        if not self._solve_due:
            self._solve_due = True
            self._solver.at(self.env.now_ps, SOLVE)

    def _solve(self, _: Event) -> None:
        self._solve_due = False
        flows, self._new = self._new, []
        if self._batches.here:
            flows = self._batches.join(flows)
        for capacity in self._touched:
            for flow in capacity.flows:
                if flow.bound is capacity and not flow.chosen:
                    flow.chosen = True
                    flows.append(flow)
        self._touched.clear()
        if flows:
            self._share(flows)
        self._arm()
        for watcher in self.watchers:
            watcher(self.env.now_ps, self)

    def _share(self, flows: list[Flow]) -> None:
        """New rates for these and all whom they affect; where there are many, they become a batch."""
        if not self.watchers:
            flows = self._batches.gather(flows)
        if not flows:
            return
        rates, bounds = max_min_rates(flows)
        self.stats.solves += 1
        self.stats.solved += len(flows)
        now_ps = self.env.now_ps
        for flow, rate, bound in zip(flows, rates, bounds, strict=True):
            flow.chosen = False
            if bound is not flow.bound:
                flow.set_bound(bound, now_ps)
            old = flow.rate_bytes_per_s
            if abs(rate - old) > _SAME * rate or not old:
                self._set_rate(flow, rate, now_ps)
        if not self.watchers:
            self._batches.gather(flows)

    def _set_rate(self, flow: Flow, rate: float, now_ps: int) -> None:
        old = flow.rate_bytes_per_s
        if old:
            flow.left_bytes -= old * ((now_ps - flow.since_ps) / PS_PER_S)
        flow.since_ps = now_ps
        flow.rate_bytes_per_s = rate
        if not rate:
            flow.finish_ps = flow.queued_ps = NEVER
            return
        flow.finish_ps = finish_ps = now_ps + to_ps(flow.left_bytes / rate)
        if finish_ps < flow.queued_ps or flow.queued_ps < 0:  # a later end is put right when the old one comes up
            flow.queued_ps = finish_ps
            heappush(self._heap, (finish_ps, flow.serial, flow))

    def _arm(self) -> None:
        """Set the alarm to the first end."""
        at_ps = self._first_ps()
        if at_ps == NEVER:
            self._alarm.stop()
        else:
            self._alarm.set(at_ps)

    def _first_ps(self) -> int:
        """When the first flow ends; NEVER if none does."""
        batch_ps = self._batches.next_ps() if self._batches.here else NEVER
        at_ps = self._ends.first_ps()
        return batch_ps if at_ps is None or NEVER != batch_ps < at_ps else at_ps

    def _finish(self) -> None:
        env = self.env
        while True:
            self._take_ends(env.now_ps)
            if self._batches.here:
                self._run_batches()
            if self._solve_due:
                return
            at_ps = self._first_ps()
            if at_ps == NEVER:
                self._alarm.stop()
                return
            if at_ps > env.now_ps and not env.skip_to(at_ps):
                self._alarm.set(at_ps)
                return

    def _run_batches(self) -> None:
        """The batch with the next end goes on from end to end, until something is reached or happens outside."""
        at_ps, ended, reached = self._batches.run(self._outside_ps)
        if ended:
            self._forget(ended)
            if at_ps > self.env.now_ps:
                self.env.skip_to(at_ps)
            self._tell_reached(reached)

    def _forget(self, ended: list[Flow]) -> None:
        self.stats.solves += 1
        for flow in ended:
            del self.active[flow]
            for capacity, pull in flow.pulls:
                capacity.release(pull * flow.solo_rate)

    def _outside_ps(self) -> int:
        """Until when batches may go on by themselves: the next event, or end of another flow; now if a solve is due."""
        if self._solve_due:
            return self.env.now_ps
        first_ps = self._ends.first_ps()
        return int(min(self.env.peek(), first_ps if first_ps is not None else _LATEST_PS, _LATEST_PS))

    def _take_ends(self, now_ps: int) -> None:
        """Flows that end now, in batches too, leave their capacities, and it is told."""
        active, touched = self.active, self._touched
        batched = self._batches.here and self._batches.next_ps() == now_ps  # some come back from a batch for that
        batch = self._ends.take(now_ps)
        for flow in batch:
            solo_rate = flow.solo_rate
            for capacity, pull in flow.pulls:
                flows = capacity.flows
                del flows[flow]
                if capacity.crowded or self._changing:
                    for other in flows:
                        if other.bound is capacity:
                            touched[capacity] = None
                            break
                capacity.release(pull * solo_rate)
            flow.since_ps = now_ps
            flow.rate_bytes_per_s = 0.0
            del active[flow]
        (self._tell_together if batched else self._tell)(batch)

    def _end_empty(self, flow: Flow) -> None:
        flow.pulls, flow.finish_ps = (), DONE  # a flow without bytes has loaded nothing
        flow.since_ps = flow.bound_since_ps = self.env.now_ps
        del self.active[flow]
        self._tell([flow])
        if not self._solve_due:
            self._arm()

    def _tell(self, batch: list[Flow]) -> None:
        """Tell of flows that have ended at this instant."""
        self._ending = True
        for flow in batch:
            if flow.countdowns:
                for countdown in flow.countdowns:
                    countdown.left -= 1
                    if not countdown.left:
                        countdown.reached(flow)
            if flow.done is not None:
                flow.done(flow)
        self._ending = False
        if self._new or self._touched or self.watchers:
            self._solve_later()

    def _tell_together(self, batch: list[Flow]) -> None:
        """Tell of flows that have ended at this instant with what ends in batches bring about."""
        reached = [(flow, one) for flow in batch for one in (*flow.countdowns, *((None,) if flow.done else ()))]
        for _, countdown in reached:
            if countdown is not None:
                countdown.left -= 1
        for ended, more in self._batches.end_now():
            self._forget(ended)
            reached += more
        self._tell_reached(reached)

    def _tell_reached(self, reached: list[Reached]) -> None:
        """Tell what ends have brought about at this instant, in the order of their flows."""
        self._ending = True
        reached.sort(key=lambda one: one[0].serial)
        last = {countdown: flow for flow, countdown in reached}
        for flow, countdown in reached:
            if countdown is None:
                assert flow.done is not None
                flow.done(flow)
            elif not countdown.left and last[countdown] is flow:
                countdown.reached(flow)
        self._ending = False
        if self._new or self._touched:
            self._solve_later()
