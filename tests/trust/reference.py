"""A run of recorded programs written a second time, as plainly as can be, from the text of what a run is.

Time passes as latency, on cores that a task holds alone, and with bytes that share capacities by max-min fairness;
durations are rounded up once, to picoseconds. Rank by rank, message by message: no roles, no tapes, no solver that
knows what has changed, no batches. What a kernel costs (latency, cores, bytes) and the routes of the fabric are data.

What happens in one instant happens in the order in which it was set off: faults, then bytes arrive, then the rest.
Of faults (`strikes`) links, memories, clocks, hosts and losses are known. What launches and kernels draw is data too, a
factor each. Flags and live hosts, whose cards and proxies faults strike as well, and protocols (algorithm "auto") are
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from heapq import heappop, heappush
from math import ceil, inf

from simulator import np
from simulator.die.kernels import FREE, Cost
from simulator.fabric.graph import Fabric
from simulator.program.task import Collective, HostWait, Program, Task
from simulator.program.world import World
from simulator.replay.costs import Costs
from simulator.replay.jitter import FACTORS, NONE, OF_KERNELS, STREAM, Jitter, factors_of
from simulator.spec.faults import Fault
from simulator.spec.machine import MachineSpec
from simulator.units import to_ps
from tests.trust import strikes
from tests.trust.exchanges import Exchanges, Key, Members, Steps
from tests.trust.sharing import DIGITS, Moving, Shared

Need = tuple[tuple[str, int], ...]
WHOLE = 1 << 40  # bytes in which the shares of a put that cross each port are counted

Times = dict[tuple[int, int], tuple[int, int, int, int]]
"""(rank, task) -> issued, ready, start and end in ps."""


class StuckError(Exception):
    """Tasks that can never end; `times` has those that did."""

    def __init__(self, times: Times) -> None:
        super().__init__(f"{len(times)} tasks have ended")
        self.times = times


def reference(world: World, machine: MachineSpec, fabric: Fabric, exchange: str,
              faults: Sequence[Fault] = (), jitter: Jitter = NONE) -> Times:
    """When every task of every rank was issued, ready, started and ended. StuckError: some never end.

    exchange: "pairwise" for message by message, "auto" for those of a balanced exchange that go the same way as one.
    """
    with localcontext() as context:
        context.prec = DIGITS
        return _Run(world, machine, fabric, exchange == "auto", faults, jitter).run()


class _Run:
    """All ranks on one clock. calls: what is due, as (time, faults first, number, function). held: shares that faults
    leave."""

    def __init__(self, world: World, machine: MachineSpec, fabric: Fabric, together: bool, faults: Sequence[Fault],
                 jitter: Jitter) -> None:
        self.world, self.machine, self.fabric = world, machine, fabric
        self.now_ps, self.calls, self.count = 0, [], 0  # type: ignore[var-annotated]
        self.shared = Shared(self.rate_of)
        self.exchanges = Exchanges(fabric, machine.collectives, world.groups, together)
        self.times: Times = {}
        self.meetings: dict[tuple, _Meeting] = {}
        self.boxes: dict[tuple, _Box] = {}
        costs = Costs(machine, next(iter(machine.kernels)))
        self.faults, self.jitter, self.held = faults, jitter, {}  # type: ignore[var-annotated]
        self.dies = [_Die(self, rank, program, costs) for rank, program in enumerate(world.programs)]

    def rate_of(self, key: Key) -> float:
        """Of a capacity, in bytes/s."""
        hbm = self.machine.chip.hbm
        if key[0] == "link":
            return self.fabric.link_rate(key[1], key[2])
        return {"hbm": hbm.peak.si * hbm.efficiency.si, "l2": self.machine.chip.l2.rate.si}.get(key[0]) or key[2]

    def at(self, at_ps: int, call: Callable[[], object], first: bool = False) -> None:
        self.count += 1
        heappush(self.calls, (at_ps, not first, self.count, call))

    def after(self, delay_ps: int, call: Callable[[], object]) -> None:
        self.at(self.now_ps + delay_ps, call)

    def move(self, size: float, loads: dict[Key, Decimal], latency_ps: int, ended: Callable[[], None],
             limit: float = inf, weight: float = 1.0) -> Moving:
        """Bytes on their way after a latency."""
        self.count += 1
        one = Moving(self.count, Decimal(size), loads, limit, Decimal(weight), ended)
        self.after(latency_ps, (lambda: self.shared.begin(one)) if size else ended)
        return one

    def run(self) -> Times:
        for fault in self.faults:
            self.expect(fault)
        for die in self.dies:
            self.at(0, lambda die=die: die.launch(0))
        while self.calls or any(one.end_ps is not None for one in self.shared.here):
            ends = [one.end_ps for one in self.shared.here if one.end_ps is not None]
            self.now_ps = min([*ends, *(call[0] for call in self.calls[:1])])
            self.instant()
        if any(die.left for die in self.dies):
            raise StuckError(self.times)
        return self.times

    def instant(self) -> None:
        """All that happens now; then rates."""
        while True:
            if self.calls and self.calls[0][0] == self.now_ps and not self.calls[0][1]:
                heappop(self.calls)[3]()
            elif ended := self.shared.take_ended(self.now_ps):
                for one in ended:
                    one.ended()
            elif self.calls and self.calls[0][0] == self.now_ps:
                heappop(self.calls)[3]()
            elif self.shared.changed:
                self.shared.solve(self.now_ps)
            else:
                return

    def expect(self, fault: Fault) -> None:
        """A fault begins and ends, maybe often, in times to come."""
        share = strikes.share_of(fault)
        for key in strikes.keys_of(fault, self.fabric):
            for from_s, to_s in strikes.times_of(fault):
                self.at(to_ps(from_s), lambda key=key: self.hold(key, list.append, share), True)
                if to_s < inf:
                    self.at(to_ps(to_s), lambda key=key: self.hold(key, list.remove, share), True)
        if fault.effect == "lost":
            for rank in strikes.ranks_of(fault, self.fabric):
                self.at(to_ps(fault.at_s), self.dies[rank].lose, True)

    def hold(self, key: Key, how: Callable[[list[float], float], None], share: float) -> None:
        """A capacity, or the clock of a rank, is held back, or let go again."""
        held = self.held.setdefault(key, [])
        how(held, share)
        left = min(held, default=1.0)
        self.shared.changed = True
        if key[0] == "clock":
            self.dies[key[1]].change_speed(left)
        else:
            self.shared.shares[key] = Decimal(left)


class _Die:
    """One rank: its host, its streams, its cores, its L2."""

    def __init__(self, run: _Run, rank: int, program: Program, costs: Costs) -> None:
        self.run, self.rank, self.program, self.machine = run, rank, program, run.machine
        self.tasks = program.tasks
        self.items = list(program.items)
        self.costs = {one.index: costs.of(one.work) for one in self.tasks if not isinstance(one.work, Collective)}
        if program.programmatic:
            self._start_sooner()
        self.pauses, self.lost = strikes.pauses_of(rank, run.faults, run.fabric), False
        self.launch_draws = np.random.default_rng((run.jitter.seed, STREAM, rank))
        if run.jitter.kernels:
            self._draw_kernels(run.jitter)
        self.place, self.free_ps, self.issued = 0, 0, {}  # type: ignore[var-annotated]
        self.blocked = -1
        self.streams: dict[str, list[Task]] = {}
        for task in self.tasks:
            self.streams.setdefault(task.stream, []).append(task)
        self.busy: dict[str, bool] = dict.fromkeys(self.streams, False)
        self.timed: dict[str, bool] = dict.fromkeys(self.streams, False)
        self.ready: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.left = len(self.tasks)
        slots = {pool: count.count for pool, count in self.machine.chip.cores.items()}
        rest = {pool: count - sum(own.get(pool, 0) for own in program.partitions.values())
                for pool, count in slots.items()}  # fmt: skip
        self.cores = {name: _Slots(dict(own)) for name, own in {"": rest, **program.partitions}.items()}
        self.weights: dict[str, float] = {}  # in L2, the oldest first
        self.speed = 1.0
        self.kernels: dict[str, _Kernel] = {}  # by stream, while bytes move
        self.counts: dict[tuple, int] = {}
        self.numbers = {one.index: self._number(one.work) for one in self.tasks if isinstance(one.work, Collective)}

    # the host -------------------------------------------------------------------------------------------------------

    def launch(self, free_ps: int) -> None:
        """Issue all up to the next task that the host waits for."""
        host, captured = self.machine.host, self.program.captured
        while True:
            following = self.items[self.place : self.place + 1]
            launches = following and isinstance(following[0], Task)
            if captured and launches:
                free_ps = self._launched_ps(free_ps, to_ps(host.launch_graph.si))
            while self.place < len(self.items) and isinstance(self.items[self.place], Task):
                task = self.items[self.place]
                if not captured:
                    free_ps = self._launched_ps(free_ps, to_ps(self._launch_s(getattr(task.work, "calls", 1))))
                self.issued[task.index] = free_ps
                self.place += 1
            self.free_ps = free_ps
            if self.place == len(self.items) or not self.read():
                break
            free_ps = self.free_ps
        for stream in self.streams:
            self.poke(stream)

    def read(self) -> bool:
        """The host's next wait: whether it is over; when, is known then."""
        wait = self.items[self.place]
        assert isinstance(wait, HostWait)
        if wait.task not in self.ended:
            self.blocked = wait.task
            return False
        each_ps = (0 if self.program.captured else to_ps(self._launch_s(1))) + to_ps(self.machine.host.device_read.si)
        self.free_ps = strikes.done_ps(self.pauses, max(self.free_ps, self.ended[wait.task]), wait.reads * each_ps)
        self.place, self.blocked = self.place + 1, -1
        return True

    def _launched_ps(self, free_ps: int, length_ps: int) -> int:
        """When the host has made a launch, which takes so long in the mean, and has not been paused meanwhile."""
        sigma = self.run.jitter.launches
        if sigma and length_ps:
            length_ps = round(length_ps * self.launch_draws.lognormal(-sigma * sigma / 2.0, sigma))
        return strikes.done_ps(self.pauses, free_ps, length_ps)

    def _draw_kernels(self, jitter: Jitter) -> None:
        """Of every task a factor; of kernels all that takes time and is their own takes so many times as long."""
        random, factors = np.random.default_rng((jitter.seed, OF_KERNELS, self.rank)), factors_of(jitter.kernels)
        for index, one in enumerate(random.integers(FACTORS, size=len(self.tasks)).tolist()):
            if cost := self.costs.get(index):
                self.costs[index] = replace(
                    cost, latency_s=cost.latency_s * factors[one], tile_s=cost.tile_s * factors[one],
                    unit_rate_bytes_per_s=cost.unit_rate_bytes_per_s / factors[one],
                    hbm_rate_bytes_per_s=cost.hbm_rate_bytes_per_s / factors[one])  # fmt: skip

    def _launch_s(self, calls: int) -> float:
        host = self.machine.host
        operators_s = calls * self.program.operators * host.operator.si if host.operator else 0.0
        return max(calls, 1) * host.launch_eager.si + operators_s

    def _start_sooner(self) -> None:
        """Kernels that wait for their stream alone begin their prologue in the launch before them."""
        before: dict[str, float] = {}
        for task in self.tasks:
            if isinstance(task.work, Collective):
                engine = self.machine.collectives[task.work.via]
                eager = engine.startup_eager if not self.program.captured else None
                before[task.stream] = (eager or engine.startup).si if eager or engine.startup else 0.0
                continue
            cost = self.costs[task.index]
            sooner_s = 0.0 if task.after else min(cost.prologue_s, before.get(task.stream, 0.0))
            self.costs[task.index] = cost = _sooner(cost, sooner_s)
            before[task.stream] = cost.latency_s

    # streams --------------------------------------------------------------------------------------------------------

    def poke(self, stream: str) -> None:
        """Start the first task of a stream if it is issued and all that it waits for has ended."""
        if self.busy[stream] or not self.streams[stream] or self.lost:
            return
        task = self.streams[stream][0]
        if any(other not in self.ended for other in task.after) or task.index not in self.issued:
            return
        if self.issued[task.index] > self.run.now_ps:
            if not self.timed[stream]:
                self.timed[stream] = True
                self.run.at(self.issued[task.index], lambda: self._timer(stream))
            return
        self.busy[stream] = True
        self.ready[task.index] = self.run.now_ps
        cost = self.costs.get(task.index)
        need = self.need(task)
        most = (cost.at_least, cost.want) if cost else (1, 1)
        self._slots(task, need).ask(task.priority, need, *most, lambda units: self._granted(task, units))

    def _timer(self, stream: str) -> None:
        self.timed[stream] = False
        self.poke(stream)

    def need(self, task: Task) -> Need:
        """Cores of each pool: per unit of a kernel, or of an exchange."""
        if task.index in self.costs:
            return self.costs[task.index].need
        one = task.work
        assert isinstance(one, Collective)
        if one.via == FREE:
            return ()
        cores = dict(one.cores) or {k: v.count for k, v in self.machine.collectives[one.via].cores.items()}
        if one.kind in ("put", "collect"):
            own = self.program.partitions.get(task.partition, {})
            cores = {pool: min(count, own.get(pool, count)) for pool, count in cores.items()}
        return tuple(cores.items())

    def _slots(self, task: Task, need: Need) -> _Slots:
        own = self.program.partitions.get(task.partition, {})
        return self.cores[task.partition if all(pool in own for pool, _ in need) else ""]

    def _granted(self, task: Task, units: int) -> None:
        if self.lost:
            return
        if task.index in self.costs:
            _Kernel(self, task, self.costs[task.index], units).start()
        elif task.work.kind in ("put", "collect"):  # type: ignore[union-attr]
            getattr(_box(self, task), task.work.kind)(self, task)  # type: ignore[union-attr]
        else:
            _meet(self, task)

    def finish(self, task: Task, start_ps: int, units: int = 1) -> None:
        """A task has ended."""
        now_ps, index = self.run.now_ps, task.index
        self.left -= 1
        self.ended[index] = now_ps
        self.run.times[self.rank, index] = self.issued[index], self.ready[index], start_ps, now_ps
        self.streams[task.stream].pop(0)
        self.busy[task.stream] = False
        need = self.need(task)
        self._slots(task, need).give(need, units)
        if self.blocked == index:
            self.read()
            self.launch(self.free_ps)
            return
        self.poke(task.stream)
        for other in self.tasks:
            if index in other.after:
                self.poke(other.stream)

    def change_speed(self, speed: float) -> None:
        """Compute goes so fast from now on."""
        self.speed = speed
        for kernel in self.kernels.values():
            kernel.change_speed()

    def lose(self) -> None:
        """From now on nothing starts; what has started goes on."""
        self.lost = True

    # L2 -------------------------------------------------------------------------------------------------------------

    def found(self, weights: str) -> float:
        """Bytes of these weights in L2, which are the youngest from now on."""
        if not weights or weights not in self.weights:
            return 0.0
        self.weights[weights] = self.weights.pop(weights)
        return self.weights[weights]

    def passed(self, cost: Cost, weights: str) -> None:
        """A kernel has gone through L2: it pushes out the oldest bytes, and leaves its weights."""
        capacity = self.machine.chip.l2.capacity.si
        self._make_room(max(capacity - cost.allocates_bytes, 0.0))
        if weights and cost.kept_bytes <= capacity:
            size = max(self.weights.pop(weights, 0.0), cost.kept_bytes)
            self._make_room(capacity - size)
            self.weights[weights] = size

    def _make_room(self, most: float) -> None:
        too_many = sum(self.weights.values()) - most
        while too_many > 0 and self.weights:
            oldest = next(iter(self.weights))
            gone = min(self.weights[oldest], too_many)
            too_many -= gone
            self.weights[oldest] -= gone
            if not self.weights[oldest]:
                del self.weights[oldest]

    def _number(self, one: Collective) -> tuple:
        """What an exchange is known by to all who meet: its group, its members, and how many there were before."""
        members: Members = self.run.world.instance(one.group, self.rank)
        side: tuple = (one.kind,) if one.kind in ("put", "collect") else ()
        if one.kind in ("send", "recv"):
            peer = members[one.peer]
            members = (self.rank, peer) if one.kind == "send" else (peer, self.rank)
            side = ("message", *members)
        number = self.counts[one.group, side] = self.counts.get((one.group, side), -1) + 1
        return one.group, members, bool(side and side[0] == "message"), number


def _sooner(cost: Cost, sooner_s: float) -> Cost:
    return replace(cost, latency_s=cost.latency_s - sooner_s)


@dataclass
class _Slots:
    """Cores of a partition, and who waits for some: the smaller priority first, then who came first."""

    free: dict[str, int]
    queue: list[tuple[int, int, Need, int, int, Callable[[int], None]]] = field(default_factory=list)
    count: int = 0

    def ask(self, priority: int, need: Need, at_least: int, want: int, granted: Callable[[int], None]) -> None:
        self.count += 1
        self.queue.append((priority, self.count, need, at_least, want, granted))
        self._serve()

    def give(self, need: Need, units: int) -> None:
        for pool, each in need:
            self.free[pool] += each * units
        self._serve()

    def _serve(self) -> None:
        """In order; who passes one that waits shares no pool with it."""
        waited_for: set[str] = set()
        served = []
        for request in sorted(self.queue, key=lambda one: one[:2]):
            _, _, need, at_least, want, granted = request
            pools = {pool for pool, _ in need}
            units = min([want, *(self.free[pool] // each for pool, each in need)])
            if pools & waited_for or units < at_least:
                waited_for |= pools
                continue
            for pool, each in need:
                self.free[pool] -= each * units
            self.queue.remove(request)
            served.append((granted, units))
        for granted, units in served:
            granted(units)


class _Kernel:
    """A kernel, or a prefetch, on so many units: latency, then bytes; of what is not overlapped, bytes then compute."""

    def __init__(self, die: _Die, task: Task, cost: Cost, units: int) -> None:
        self.die, self.task, self.cost, self.units = die, task, cost, units
        warm = min(die.found(task.work.weights), cost.weight_bytes)  # type: ignore[union-attr]
        self.hbm = (cost.hbm_bytes - warm) / cost.onchip_bytes if cost.onchip_bytes else 0.0
        self.start_ps, self.second = die.run.now_ps, False
        self.bytes: Moving | None = None

    @property
    def compute_s(self) -> float:
        return ceil(self.cost.tiles / self.units) * (self.cost.tile_s / self.die.speed)

    def start(self) -> None:
        cost = self.cost
        latency_ps = to_ps(cost.latency_s)
        if not cost.onchip_bytes:
            self.die.run.after(latency_ps + to_ps(self.compute_s), self.end)
            return
        self.die.kernels[self.task.stream] = self
        share = cost.unoverlapped
        self._move(cost.onchip_bytes * share if share else cost.onchip_bytes, latency_ps,
                   self._compute if share else self.end)  # fmt: skip

    def _compute(self) -> None:
        share, self.second = self.cost.unoverlapped, True
        self._move(self.cost.onchip_bytes * (1.0 - share), to_ps(self.compute_s * share), self.end)

    def _move(self, size: float, latency_ps: int, then: Callable[[], None]) -> None:
        loads = {("l2", self.die.rank): Decimal(1), ("hbm", self.die.rank): Decimal(max(self.hbm, 0.0))}
        self.bytes = self.die.run.move(size, loads, latency_ps, then, self._limit())

    def _limit(self) -> float:
        """Bytes/s that its cores ask for: as their ports and its way of reading HBM allow, and its compute."""
        cost = self.cost
        limit = self.units * cost.unit_rate_bytes_per_s
        if self.hbm:
            limit = min(limit, cost.hbm_rate_bytes_per_s / self.hbm)
        if (self.second or not cost.unoverlapped) and self.compute_s:
            limit = min(limit, cost.onchip_bytes / self.compute_s)
        return limit

    def change_speed(self) -> None:
        assert self.bytes is not None
        self.bytes.limit = self._limit()

    def end(self) -> None:
        self.die.kernels.pop(self.task.stream, None)
        self.die.passed(self.cost, self.task.work.weights)  # type: ignore[union-attr]
        self.die.finish(self.task, self.start_ps, self.units)


# exchanges ------------------------------------------------------------------------------------------------------------


@dataclass
class _Meeting:
    """Who has come, and from when on there was none missing."""

    members: Members
    steps: Steps
    here: list[tuple[_Die, Task]] = field(default_factory=list)
    start_ps: int = -1


def _meet(die: _Die, task: Task) -> None:
    """A member is there; the last one lets the exchange begin."""
    run, one, key = die.run, task.work, die.numbers[task.index]
    assert isinstance(one, Collective)
    if key not in run.meetings:
        members = key[1]
        steps: Steps = [(0.0, [])]
        if one.via != FREE:
            eager = any(not run.world.programs[rank].captured for rank in members)
            steps = run.exchanges.steps(one, members, eager)
        run.meetings[key] = _Meeting(members, steps)
    meeting = run.meetings[key]
    meeting.here.append((die, task))
    if len(meeting.here) == len(meeting.members):
        meeting.start_ps = run.now_ps
        _step(run, meeting, 0)


def _step(run: _Run, meeting: _Meeting, number: int) -> None:
    """A latency and what moves after it; then the next one, or members leave, each with the last bytes of its own."""
    latency_s, moved = meeting.steps[number]
    last = number + 1 == len(meeting.steps)
    latency_ps, left = to_ps(latency_s), set(range(len(moved)))
    waiting = {die.rank: {place for place in left if die.rank in moved[place].ranks} for die, _ in meeting.here}
    tasks = {die.rank: (die, task) for die, task in meeting.here}

    def leave(ranks: list[int]) -> None:
        for rank in ranks:
            tasks[rank][0].finish(tasks[rank][1], meeting.start_ps)

    def ended(place: int) -> None:
        left.discard(place)
        if not last:
            if not left:
                _step(run, meeting, number + 1)
            return
        done = [rank for rank, those in waiting.items() if place in those and not those & left]
        leave(done)

    if not moved and not last:
        run.after(latency_ps, lambda: _step(run, meeting, number + 1))
        return
    for place, one in enumerate(moved):
        loads = {key: Decimal(size / one.size) for key, size in one.loads.items()}
        run.move(one.size, loads, latency_ps, lambda place=place: ended(place), weight=one.weight)
    if last and (alone := [rank for rank, those in waiting.items() if not those]):
        run.after(latency_ps, lambda: leave(alone))


@dataclass
class _Box:
    """A one-sided exchange: whose puts have not left yet, to whom bytes still come, who is there to collect."""

    members: Members
    latency_ps: int
    absent: set[int]
    coming: set[int] = field(default_factory=set)
    here: dict[int, tuple[_Die, Task]] = field(default_factory=dict)

    def put(self, die: _Die, task: Task) -> None:
        """Own bytes leave, on own ports and memory; what comes drains through those of this rank."""
        run, one, rank, start_ps = die.run, task.work, die.rank, die.run.now_ps
        assert isinstance(one, Collective)
        peers, engine = len(self.members) - 1, run.machine.collectives.get(one.via)
        startup_ps, sent, held = 0, 0, sum(count for _, count in die.need(task))
        limit, weight = inf, 1.0
        if engine is not None and peers:
            eager = engine.startup_eager if not die.program.captured else None
            first_s = eager.si if eager else engine.startup.si if engine.startup else 0.0
            each_s = engine.startup_per_peer.si if engine.startup_per_peer else 0.0
            startup_ps, weight, sent = to_ps(first_s + each_s * peers), engine.share, one.sent_bytes
            limit = engine.rate_bytes_per_s("all_to_all", sent / peers) if sent else inf
            cores = sum(count.count for count in engine.cores.values())
            limit *= held / cores if cores else 1.0

        def left() -> None:
            die.finish(task, start_ps)
            self.absent.discard(rank)
            for other in () if self.absent else list(self.here):
                self.open(other)

        def drained() -> None:
            self.coming.discard(rank)
            self.open(rank)

        if one.received_bytes and engine is not None and peers:
            self.coming.add(rank)
            run.move(one.received_bytes, self.loads(run, engine, rank, True), startup_ps, drained, weight=weight)
        run.move(sent, self.loads(run, engine, rank, False) if sent and engine else {}, startup_ps, left, limit, weight)

    def loads(self, run: _Run, engine, rank: int, arriving: bool) -> dict[Key, Decimal]:  # type: ignore[no-untyped-def]
        """Of a byte that is spread evenly over the others: own memory, and the links at this die."""
        ports: dict[Key, int] = {}
        for peer in self.members:
            if peer != rank:
                edges = run.fabric.route(*((peer, rank) if arriving else (rank, peer))).edges
                edge = ("link", *(edges[-1] if arriving else edges[0]))
                ports[edge] = ports.get(edge, 0) + 1
        moved = round(WHOLE * (engine.transfer_bytes.si / 2.0 + engine.staging_bytes))
        loads = {("hbm", rank): moved, ("l2", rank): moved}
        loads |= {key: WHOLE * count // (len(self.members) - 1) for key, count in ports.items()}
        return {key: Decimal(size) / WHOLE for key, size in loads.items()}

    def collect(self, die: _Die, task: Task) -> None:
        """A rank is there to collect."""
        self.here[die.rank] = die, task
        self.open(die.rank)

    def open(self, rank: int) -> None:
        """Once all puts have left and everything for this rank is there, its last message crosses."""
        if rank not in self.here or rank in self.coming or self.absent:
            return
        die, task = self.here.pop(rank)
        start_ps = die.run.now_ps
        free = task.work.via == FREE  # type: ignore[union-attr]
        die.run.after(0 if free else self.latency_ps, lambda: die.finish(task, start_ps))


def _box(die: _Die, task: Task) -> _Box:
    group, members, _, number = die.numbers[task.index]
    key = group, members, number
    if key not in die.run.boxes:
        die.run.boxes[key] = _Box(members, to_ps(die.run.exchanges.furthest_s(members)), set(members))
    return die.run.boxes[key]
