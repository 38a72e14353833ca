"""One NPU at run time: in-order streams, a host thread that launches, exclusive cores, shared HBM and L2.

The NPU replays a `Tape`. A stream is a callback state machine, not a process: its head step starts once the host has
issued it, the step before it has ended and every step it waits for has ended; then it takes cores, spends its latency
and moves its bytes. The host never costs an event of its own: between two blocking reads its launches follow each
other at fixed offsets, so the issue time of every step of such a *segment* is known as soon as the segment opens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

import simpy

from simulator.machine.cache import Cache
from simulator.machine.kernels import Cost
from simulator.physics.clock import call_later
from simulator.physics.cores import Cores
from simulator.physics.flows import Capacity, Flow, Network
from simulator.units import to_ps


@dataclass(slots=True)
class Step:
    """One task of a tape. `exchange` (a collective's index on this tape) or `cost` (a kernel) says what it does.

    stream: index of its stream. waits: how many other steps must end first (its stream predecessor not counted).
    followers: the steps that wait for it. segment, offset_ps: when the host issues it. need: cores of an exchange.
    """

    stream: int
    cost: Cost | None = None
    exchange: int = -1
    need: tuple[tuple[str, int], ...] = ()
    waits: int = 0
    followers: list[int] = field(default_factory=list)
    segment: int = 0
    offset_ps: int = 0
    priority: int = 0
    partition: str = ""


@dataclass(slots=True)
class Segment:
    """Launches between two blocking reads of the host: it opens when `after` has ended (-1: at once)."""

    after: int = -1
    read_ps: int = 0
    length_ps: int = 0


@dataclass(slots=True)
class Tape:
    """What one NPU replays; NPUs with the same program share it."""

    steps: list[Step]
    streams: list[list[int]]
    segments: list[Segment]


class Watch(Protocol):
    """Who is told of every finished task (the kernel does not know who watches)."""

    def record(
        self,
        rank: int,
        task: int,
        issued_ps: int,
        ready_ps: int,
        start_ps: int,
        end_ps: int,
        solo_ps: int,
        bound_by: str,
    ) -> None: ...


class Npu:
    """A die that replays a tape.

    cores: its pools by partition ("" is the whole chip). meet: called as meet(npu, step index) when a collective's
    step is ready and holds its cores; the collective calls `finish` on every member.
    """

    def __init__(
        self,
        env: simpy.Environment,
        network: Network,
        rank: int,
        tape: Tape,
        *,
        hbm: Capacity,
        l2: Capacity,
        cache: Cache,
        cores: dict[str, Cores],
        meet: Callable[[Npu, int], None],
        watch: Watch,
    ) -> None:
        self.env: Any = env  # its times are whole picoseconds, which simpy's types do not know
        self.network, self.rank, self.tape = network, rank, tape
        self.hbm, self.l2, self.cache, self.cores = hbm, l2, cache, cores
        self.meet, self.watch = meet, watch
        self.pending = [step.waits for step in tape.steps]
        self.ended_ps = [-1] * len(tape.steps)
        self.ready_ps = [-1] * len(tape.steps)
        self.position = [0] * len(tape.streams)  # index of each stream's head in its list
        self.running = [False] * len(tape.streams)
        self.timer_set = [False] * len(tape.streams)
        self.opened_ps: list[int] = []  # start of every open host segment
        self.left = len(tape.steps)
        self._loads: dict[tuple[int, int, bool], tuple[tuple[tuple[Capacity, float], ...], float, int]] = {}

    def begin(self) -> None:
        """Let the host start launching at the present time."""
        self._open_segments(self.env.now)

    # host -----------------------------------------------------------------------------------------------------------

    def _open_segments(self, opens_ps: int) -> None:
        """Open the next segment, and those behind it whose blocking reads are already answered."""
        segments = self.tape.segments
        self.opened_ps.append(opens_ps)
        while len(self.opened_ps) < len(segments):
            following = segments[len(self.opened_ps)]
            ended_ps = self.ended_ps[following.after]
            if following.after >= 0 and ended_ps < 0:
                break
            free_ps = self.opened_ps[-1] + segments[len(self.opened_ps) - 1].length_ps
            self.opened_ps.append(max(free_ps, ended_ps) + following.read_ps)
        for stream in range(len(self.position)):
            self._poke(stream)

    def host_waits_for(self) -> int:
        """The step that the host is blocked on, or -1."""
        if len(self.opened_ps) == len(self.tape.segments):
            return -1
        return self.tape.segments[len(self.opened_ps)].after

    def issued_ps(self, index: int) -> int:
        """When the host issued this step, in ps, or -1 if it is not known yet."""
        step = self.tape.steps[index]
        if step.segment >= len(self.opened_ps):
            return -1
        return self.opened_ps[step.segment] + step.offset_ps

    # streams --------------------------------------------------------------------------------------------------------

    def _poke(self, stream: int) -> None:
        """Start the head of a stream if nothing holds it back any more."""
        if self.running[stream]:
            return
        order = self.tape.streams[stream]
        position = self.position[stream]
        if position == len(order):
            return
        index = order[position]
        if self.pending[index]:
            return
        step = self.tape.steps[index]
        if step.segment >= len(self.opened_ps):
            return
        now = self.env.now
        issued_ps = self.opened_ps[step.segment] + step.offset_ps
        if issued_ps > now:
            if not self.timer_set[stream]:
                self.timer_set[stream] = True
                call_later(self.env, issued_ps - now, lambda _: self._issue(stream))
            return
        self.running[stream] = True
        self.ready_ps[index] = now
        cost = step.cost
        if cost is None:
            if step.need:
                cores = self.cores[step.partition]
                cores.acquire(step.need, 1, 1, step.priority, lambda _: self.meet(self, index))
            else:
                self.meet(self, index)
        else:
            self.cores[step.partition].acquire(
                cost.need, cost.at_least, cost.want, step.priority, lambda units: self._work(index, units)
            )

    def _issue(self, stream: int) -> None:
        self.timer_set[stream] = False
        self._poke(stream)

    # kernels --------------------------------------------------------------------------------------------------------

    def _work(self, index: int, units: int) -> None:
        """Spend a kernel's latency and bytes on the cores that it got."""
        step = self.tape.steps[index]
        cost = step.cost
        assert cost is not None
        start_ps = self.env.now
        warm = bool(cost.weights) and self.cache.holds(cost.weights)
        shape = self._loads.get((id(cost), units, warm)) or self._shape(cost, units, warm)
        loads, limit, solo_ps = shape
        latency_ps = to_ps(cost.latency_s)
        if not cost.onchip_bytes:
            delay_ps = latency_ps + to_ps(cost.compute_s(units))
            call_later(self.env, delay_ps, lambda _: self._release(index, units, start_ps, solo_ps, cost.latency_name))
            return
        if cost.unoverlapped:
            self._serial_share(index, units, start_ps, shape)
            return
        self.network.start(
            Flow(cost.onchip_bytes, loads, limit), self._releasing(index, units, start_ps, solo_ps), latency_ps
        )

    def _serial_share(self, index: int, units: int, start_ps: int, shape: tuple) -> None:
        """First the unoverlapped share (bytes, then compute, one after the other), then the rest side by side."""
        cost = self.tape.steps[index].cost
        assert cost is not None
        loads, limit, solo_ps = shape
        share = cost.unoverlapped
        latency_ps = to_ps(cost.latency_s)
        compute_ps = to_ps(cost.compute_s(units) * share)

        def rest(_: object) -> None:
            flow = Flow(cost.onchip_bytes * (1.0 - share), loads, limit)
            self.network.start(flow, self._releasing(index, units, start_ps, solo_ps), compute_ps)

        hbm = loads[1][1] if len(loads) > 1 else 0.0
        ports = cost.memory_limit_bytes_per_s(units, hbm)
        self.network.start(Flow(cost.onchip_bytes * share, loads, ports), rest, latency_ps)

    def _shape(self, cost: Cost, units: int, warm: bool) -> tuple[tuple[tuple[Capacity, float], ...], float, int]:
        """Loads, limit and solo duration of a kernel on so many units, weights in L2 (`warm`) or not."""
        if not cost.onchip_bytes:
            shape: tuple = ((), inf, to_ps(cost.latency_s + cost.compute_s(units)))
        else:
            hbm = (cost.hbm_bytes - (cost.weight_bytes if warm else 0.0)) / cost.onchip_bytes
            loads = ((self.l2, 1.0), (self.hbm, hbm)) if hbm > 0 else ((self.l2, 1.0),)
            limit = cost.limit_bytes_per_s(units, hbm)
            memory = min(capacity.rate_bytes_per_s / load for capacity, load in loads)
            ports = cost.memory_limit_bytes_per_s(units, hbm)
            share = cost.unoverlapped
            solo_s = cost.latency_s + cost.onchip_bytes * (1.0 - share) / min(limit, memory)
            if share:
                solo_s += share * (cost.onchip_bytes / min(ports, memory) + cost.compute_s(units))
            shape = (loads, limit, to_ps(solo_s))
        self._loads[id(cost), units, warm] = shape
        return shape

    def _releasing(self, index: int, units: int, start_ps: int, solo_ps: int) -> Callable[[Flow], None]:
        """What to do when a kernel's last flow has ended."""
        cost = self.tape.steps[index].cost
        assert cost is not None
        latency_ps = to_ps(cost.latency_s)
        return lambda done: self._release(index, units, start_ps, solo_ps, _bound(done, latency_ps, cost))

    def _release(self, index: int, units: int, start_ps: int, solo_ps: int, bound_by: str) -> None:
        step = self.tape.steps[index]
        cost = step.cost
        assert cost is not None
        self.cache.passes(cost.allocates_bytes)
        if cost.weights:
            self.cache.keep(cost.weights, cost.weight_bytes)
        self.finish(index, start_ps, solo_ps, bound_by, cost.need, units)

    # completion -----------------------------------------------------------------------------------------------------

    def finish(
        self, index: int, start_ps: int, solo_ps: int, bound_by: str, need: tuple[tuple[str, int], ...], units: int
    ) -> None:
        """A step has ended: record it, free its cores, wake what waited for it."""
        now = self.env.now
        step = self.tape.steps[index]
        self.ended_ps[index] = now
        self.left -= 1
        issued_ps = self.opened_ps[step.segment] + step.offset_ps
        self.watch.record(self.rank, index, issued_ps, self.ready_ps[index], start_ps, now, solo_ps, bound_by)
        stream = step.stream
        self.position[stream] += 1
        self.running[stream] = False
        pending = self.pending
        for follower in step.followers:
            pending[follower] -= 1
        if need:
            self.cores[step.partition].release(need, units)
        if self.host_waits_for() == index:
            segment = self.tape.segments[len(self.opened_ps)]
            free_ps = self.opened_ps[-1] + self.tape.segments[len(self.opened_ps) - 1].length_ps
            self._open_segments(max(free_ps, now) + segment.read_ps)
            return  # opening pokes every stream
        self._poke(stream)
        for follower in step.followers:
            if not pending[follower]:
                self._poke(self.tape.steps[follower].stream)


def _bound(flow: Flow, latency_ps: int, cost: Cost) -> str:
    """In words, what limited a kernel longest."""
    by = flow.bound_by()
    if latency_ps > max(flow.bound_ps.values(), default=0):
        return cost.latency_name
    return by.name.partition(":")[0] if isinstance(by, Capacity) else cost.limit_name
