"""One NPU at run time: in-order streams, a host thread that launches, exclusive cores, shared HBM and L2.

The NPU replays a `Tape`. The host never costs an event of its own: between two blocking reads its launches follow each
other at fixed offsets, so the issue time of every step of such a *window* is known as soon as the window opens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from simulator.die.cache import Cache
from simulator.die.kernels import Cost
from simulator.die.tape import LaunchWindow, Tape, TaskObserver, worked_ps
from simulator.die.timing import KernelTiming, KernelTimings, Stage
from simulator.physics.clock import Call, Clock
from simulator.physics.cores import Cores, Need
from simulator.physics.flows import Capacity, Flow, Network


class Npu:
    """A die that replays a tape.

    cores: its pools by partition ("" is the whole chip). meet: called as meet(npu, step index) when a collective's
    step is ready and holds its cores; the collective calls `finish` on every member. done: called once it has replayed
    all of it. pauses: of its host, in ps, as `worked_ps` takes them.
    """

    def __init__(self, env: Clock, network: Network, rank: int, tape: Tape, *, hbm: Capacity, l2: Capacity,
                 cache: Cache, timings: KernelTimings, cores: dict[str, Cores], meet: Callable[[Npu, int], None],
                 watch: TaskObserver, done: Callable[[], object],
                 pauses: tuple[tuple[int, int], ...] = ()) -> None:
        self.env, self.network, self.hbm, self.l2 = env, network, hbm, l2
        self.rank, self.tape, self.steps, self.windows = rank, tape, tape.steps, tape.windows
        self.costs, self.weights, self.units = tape.costs, tape.weights, tape.units
        self.cache, self.cores, self.meet, self.timings = cache, cores, meet, timings
        self._record, self.found, self.late = watch.record, watch.found, watch.late
        self.pending = [step.waits for step in tape.steps]
        self._read_ps: dict[int, int] = {}  # when those have ended that the host reads
        self.opened_ps: list[int] = []  # start of every open host window
        self.blocked_on = -1  # the step that the host waits for
        self.left, self.lost_ps = len(tape.steps), -1
        self._done, self._pauses = done, pauses
        self._in_window: defaultdict[int, list[int]] = defaultdict(list)  # of a host that pauses: steps by window
        if pauses:
            self.steps, self.windows = [*tape.steps], [*tape.windows]
            for index, step in enumerate(tape.steps):
                self._in_window[step.window].append(index)
        self.streams = [Stream(self, number) for number in range(len(tape.streams))]

    def begin(self) -> None:
        """Let the host start launching at the present time."""
        self._open_windows(self.env.now_ps, 0)

    def _open_windows(self, free_ps: int, read_ps: int) -> None:
        """Open the next window once the host has nothing else to do and has read, and those behind it whose blocking
        reads are already answered."""
        windows = self.windows
        self._opens(free_ps, read_ps)
        self.blocked_on = -1
        while len(self.opened_ps) < len(windows):
            following = windows[len(self.opened_ps)]
            ended_ps = self._read_ps.get(following.after)
            if ended_ps is None:
                self.blocked_on = following.after
                break
            free_ps = self.opened_ps[-1] + windows[len(self.opened_ps) - 1].length_ps
            self._opens(max(free_ps, ended_ps), following.read_ps)
        for stream in self.streams:
            stream.poke()

    def _opens(self, free_ps: int, read_ps: int) -> None:
        """The host has nothing else to do any more, reads, and opens the next window."""
        if not self._pauses:
            self.opened_ps.append(free_ps + read_ps)
            return
        opened_ps, number = worked_ps(self._pauses, free_ps, read_ps), len(self.opened_ps)
        self.opened_ps.append(opened_ps)
        for index in self._in_window[number]:
            step = self.steps[index]
            launched_ps = worked_ps(self._pauses, opened_ps, step.offset_ps)
            self.steps[index] = replace(step, offset_ps=launched_ps - opened_ps)
        window = self.windows[number]
        ended_ps = worked_ps(self._pauses, opened_ps, window.length_ps)
        self.windows[number] = LaunchWindow(window.after, window.read_ps, ended_ps - opened_ps)

    def lose(self) -> None:
        """From now on no step starts; what has started goes on as its flows do."""
        self.lost_ps = self.env.now_ps
        self.pending = [len(self.steps) + 1] * len(self.steps)

    def set_speed(self, timings: KernelTimings) -> None:
        """Compute at the speed of these timings from now on, kernels that are running included."""
        self.timings = timings
        for stream in self.streams:
            stream.change_speed()

    def ended(self, index: int) -> bool:
        """Whether a step has ended."""
        stream = self.streams[self.steps[index].stream]
        return index in stream.order[: stream.position]

    def issued_ps(self, index: int) -> int:
        """When the host issued this step, in ps, or -1 if it is not known yet."""
        step = self.steps[index]
        if step.window >= len(self.opened_ps):
            return -1
        return self.opened_ps[step.window] + step.offset_ps

    def since_ps(self, index: int) -> int:
        """When the step at the head of its stream was ready, in ps."""
        return self.streams[self.steps[index].stream].ready_ps

    def finish(self, index: int, start_ps: int, solo_ps: int, bound_by: str, need: Need, units: int) -> None:
        """A step has ended: record it, free its cores, wake what waited for it."""
        now_ps = self.env.now_ps
        step = self.steps[index]
        self.left -= 1
        if not self.left:
            self._done()
        if step.read:
            self._read_ps[index] = now_ps
        issued_ps = self.opened_ps[step.window] + step.offset_ps
        stream = self.streams[step.stream]
        self._record(self.rank, index, issued_ps, stream.ready_ps, start_ps, now_ps, solo_ps, bound_by, units)
        stream.position += 1
        stream.running = False
        followers = step.followers
        if followers:
            pending = self.pending
            for follower in followers:
                pending[follower] -= 1
        if need and not step.exclusive:
            self.cores[step.partition].release(need, units)
        if self.blocked_on == index:
            free_ps = self.opened_ps[-1] + self.windows[len(self.opened_ps) - 1].length_ps
            self._open_windows(max(free_ps, now_ps), self.windows[len(self.opened_ps)].read_ps)
            return  # opening pokes every stream
        stream.poke()
        if followers:
            for follower in followers:
                if not pending[follower]:
                    self.streams[self.steps[follower].stream].poke()


class Stream:
    """Queue number `number` of `npu`: a callback state machine, not a process.

    Its head step starts once the host has issued it, the step before it has ended and every step that it waits for has
    ended; then it takes cores, and spends its latency and bytes (a kernel) or meets the other ranks (an exchange).
    position: index of its head in `order`. running: its head holds it. ready_ps: since when.
    """

    __slots__ = ("_delayed", "_flow", "_granted", "_in_company", "_issued", "_key", "_moved", "_moving",
                 "_stage", "_start_ps", "_timer_set", "_timing", "_units", "index", "npu", "order",
                 "position", "ready_ps", "running")  # fmt: skip

    def __init__(self, npu: Npu, number: int) -> None:
        self.npu, self.order = npu, npu.tape.streams[number]
        self.position = self.ready_ps = 0
        self.index = -1  # of the step that is running
        self.running = self._timer_set = False
        self._units = self._stage = self._start_ps = 0
        self._timing: KernelTiming
        self._moving = False
        self._key: tuple[Cost, int, float]
        self._delayed = Call(npu.env, self._waited)
        self._flow = Flow(0.0, ((npu.l2, 1.0),), 0.0)
        self._in_company = len(npu.tape.streams) > 1
        self._issued = Call(npu.env, self._issue)
        self._granted, self._moved = self._start, self._stage_ended  # bound once, for the hot path

    def poke(self) -> None:
        """Start the head if nothing holds it back any more."""
        npu = self.npu
        if self.running or self.position == len(self.order):
            return
        index = self.order[self.position]
        if npu.pending[index]:
            return
        step, opened_ps = npu.steps[index], npu.opened_ps
        if step.window >= len(opened_ps):
            return
        at_ps, cost = npu.env.now_ps, npu.costs[index]
        issued_ps = opened_ps[step.window] + step.offset_ps
        if issued_ps > at_ps:
            if cost is None or self._in_company:
                if not self._timer_set:
                    self._timer_set = True
                    self._issued.at(issued_ps)
                return
            at_ps = issued_ps  # no other task takes cores or changes L2 until then: the kernel can be sent off now
        self.running = True
        self.index = index
        self.ready_ps = at_ps
        if cost is not None:
            units = npu.units[index]
            if units:
                self._launch(cost, units, at_ps)
                return
            cores = npu.cores[step.partition]
            units = 0 if cores.queue else cores.take(cost.need, cost.at_least, cost.want)
            if units:
                self._launch(cost, units, at_ps)
            else:
                cores.acquire(cost.need, cost.at_least, cost.want, step.priority, self._granted)
        elif step.need and not step.exclusive:
            cores = npu.cores[step.partition]
            if not cores.queue and cores.take(step.need, 1, 1):
                npu.meet(npu, index)
            else:
                cores.acquire(step.need, 1, 1, step.priority, self._granted)
        else:
            npu.meet(npu, index)

    def _issue(self, _: object) -> None:
        self._timer_set = False
        self.poke()

    def _start(self, units: int) -> None:
        """The head holds its cores."""
        npu = self.npu
        if npu.lost_ps >= 0:
            return
        cost = npu.costs[self.index]
        if cost is None:
            npu.meet(npu, self.index)
            return
        self._launch(cost, units, npu.env.now_ps)

    def _launch(self, cost: Cost, units: int, at_ps: int) -> None:
        self._units = units
        npu = self.npu
        weights = npu.weights[self.index]
        warm = npu.cache.resident_bytes(weights) if weights else 0.0
        if warm:
            npu.found(npu.rank, self.index, min(warm, cost.weight_bytes))
        self._key = cost, units, warm
        timing = self._timing = npu.timings[self._key]
        self._start_ps, self._stage = at_ps, 0
        self._moving = bool(timing.stages)
        if timing.stages:
            stage = timing.stages[0]
            npu.network.start(self._flow_of(stage), self._moved, at_ps - npu.env.now_ps + stage.wait_ps)
        else:
            self._delayed.at(at_ps + timing.delay_ps)

    def change_speed(self) -> None:
        """The bytes of the kernel at the head move on at the limit that its NPU's present speed gives."""
        if not self._moving:
            return
        self._timing = self.npu.timings[self._key]
        self.npu.network.set_limit(self._flow, self._timing.stages[self._stage].like.limit_bytes_per_s)

    def _flow_of(self, stage: Stage) -> Flow:
        """The flow of a stage on this die: the stream's own one, which never moves two at once."""
        flow, like, npu = self._flow, stage.like, self.npu
        pulls = ((npu.l2, 1.0), (npu.hbm, stage.hbm)) if stage.hbm > 0 else ((npu.l2, 1.0),)
        bound = like.solo_bound
        if bound is npu.timings.hbm:
            bound = npu.hbm
        elif bound is npu.timings.l2:
            bound = npu.l2
        flow.become(like, pulls, bound)
        return flow

    def _waited(self, _: object) -> None:
        """A kernel that moves no bytes has ended, unless its rank was lost before it was to start."""
        if not 0 <= self.npu.lost_ps <= self._start_ps:
            self._ended(self._timing.latency_name)

    def _stage_ended(self, flow: Flow) -> None:
        """The bytes of one stage are moved."""
        self._stage += 1
        stages = self._timing.stages
        if self._stage == len(stages):
            self._moving = False
            self._ended(self._timing.bound_by(flow))
        else:
            stage = stages[self._stage]
            self.npu.network.start(self._flow_of(stage), self._moved, stage.wait_ps)

    def _ended(self, bound_by: str) -> None:
        """The kernel at the head has ended."""
        npu = self.npu
        cost, weights = npu.costs[self.index], npu.weights[self.index]
        assert cost is not None
        cache, passing = npu.cache, cost.allocates_bytes
        if cache.held_bytes > cache.capacity_bytes - passing:
            cache.passes(passing)
        if weights:
            cache.keep(weights, cost.kept_bytes)
        npu.finish(self.index, self._start_ps, self._timing.solo_ps, bound_by, cost.need, self._units)
