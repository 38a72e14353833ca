"""Replays a recorded world on a machine: programs become tapes, NPUs run them, collectives meet, the clock runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

from simpy.events import Event

from simulator.collective.lowering import Lowering, engine_of
from simulator.collective.transfer import CapacityKey
from simulator.die.cache import Cache
from simulator.die.npu import Npu
from simulator.die.tape import Tape, TaskObserver
from simulator.die.timing import KernelTimings
from simulator.errors import InputError, RunError
from simulator.fabric.graph import Fabric
from simulator.physics.clock import URGENT, Clock, call_later
from simulator.physics.cores import Cores
from simulator.physics.flows import Capacity, Network
from simulator.program.task import Collective, Task
from simulator.program.world import World
from simulator.replay.faults import CLOCK, HOST, LOST, Schedule
from simulator.replay.jitter import NONE, Draws, Jitter
from simulator.replay.meetings import Meetings
from simulator.replay.tape import Compiler, slots_of
from simulator.spec.machine import NEVER, MachineSpec
from simulator.symmetry.roles import Roles
from simulator.units import PS_PER_S, format_si


class Replay:
    """A world on a machine, ready to run once.

    compiler: of programs for this machine. roles: which ranks are simulated for which. schedules: of capacities and
    clocks whose rates change, of hosts that pause, of ranks that are lost (see `faults`). jitter: of launches and
    kernels.
    launches_take_time: whether there is anything that the jitter of launches changes.
    """

    def __init__(self, world: World, compiler: Compiler, fabric: Fabric, lowering: Lowering, roles: Roles,
                 watch: TaskObserver, schedules: Mapping[CapacityKey, Schedule] | None = None,
                 jitter: Jitter = NONE) -> None:
        machine = compiler.costs.machine
        self.world, self.machine, self.fabric = world, machine, fabric
        self.env = Clock()
        self.network = Network(self.env)
        self._rate_of = cache(partial(rate_of, machine=machine, fabric=fabric))
        self.capacities = Capacities(fabric, self._rate_of)
        self._timings = KernelTimings(self._rate_of(("hbm", 0)), self._rate_of(("l2", 0)))
        self._tapes: dict[int, Tape] = {}
        self._draws = Draws(jitter)
        self._tasks: dict[int, list[Task]] = {}
        self.meetings = Meetings(
            self.env, self.network, world, roles, lowering, self.capacities, self._rate_of, self.tasks
        )
        self._slots: dict[int, dict[str, dict[str, int]]] = {}  # by recording: of each partition
        for rank in roles.leaders:
            program = world.programs[rank]
            if id(program) not in self._tapes:
                self._tapes[id(program)] = tape = compiler.tape(program)
                if id(program.items) not in self._slots:
                    self._slots[id(program.items)] = slots = slots_of(program, machine)
                    _check_cores(tape, program.tasks, slots)
        self._unfinished, self._changes = 0, list[Event]()
        schedules = schedules or {}
        self._pauses = {roles.leader[key[1]]: tuple((at_ps, int(length_ps)) for at_ps, length_ps in times)
                        for key, times in schedules.items() if key[0] == HOST}  # fmt: skip
        self.launches_take_time = any(one.length_ps for tape in self._tapes.values() for one in tape.windows)
        self.npus = {rank: self._npu(rank, watch) for rank in roles.leaders}
        for rank in roles.leaders:
            self.meetings.prepare(rank)
        self._speeds: dict[float, KernelTimings] = {1.0: self._timings}
        for key, schedule in schedules.items():
            for at_ps, share in schedule if key[0] != HOST else ():
                change = self._change(key, share, roles)
                if at_ps:
                    self.change_at(at_ps, change)
                else:
                    change(None)  # before anything begins

    def change_at(self, at_ps: int, change: Callable[[object], None]) -> None:
        """Change something at a time of the run, if it has not ended by then."""
        self._changes.append(call_later(self.env, at_ps, change, URGENT))

    def has_ended(self) -> None:
        """One of those that a run has to wait for: after the last one nothing is changed any more."""
        self._unfinished -= 1
        if not self._unfinished and self._changes:
            self.env.withdraw(self._changes)

    def _change(self, key: CapacityKey, share: float, roles: Roles) -> Callable[[object], None]:
        """What sets a capacity, or a clock, to a share of its rate, or loses a rank."""
        if key[0] == LOST:
            lost = self.npus[roles.leader[key[1]]]
            return lambda _: lost.lose()
        if key[0] == CLOCK:
            if share not in self._speeds:
                hbm, l2 = self._timings.hbm.rate_bytes_per_s, self._timings.l2.rate_bytes_per_s
                self._speeds[share] = KernelTimings(hbm, l2, share)
            npu, timings = self.npus[roles.leader[key[1]]], self._speeds[share]
            return lambda _: npu.set_speed(timings)
        standing = key if roles.folding is None else roles.folding.stands_for(key)
        if standing is None:
            return lambda _: None
        capacity, rate = self.capacities[standing], self._rate_of(standing) * share
        return lambda _: self.network.set_rate(capacity, rate)

    def run(self) -> int:
        """Run to the end; the makespan in ps.

        Raises:
            RunError: something can never go on (a deadlock, a collective on which ranks disagree); it names who.
        """
        for npu in self.npus.values():
            npu.begin()
        if not self._unfinished:
            self.env.withdraw(self._changes)
        self.env.run()
        if self.env.now_ps >= 2**63:
            raise OverflowError(f"it lasts {self.env.now_ps} ps")
        stuck = [npu for npu in self.npus.values() if npu.left]
        if stuck:
            raise RunError(self._deadlock(stuck))
        return self.env.now_ps

    def tasks(self, rank: int) -> list[Task]:
        """The tasks of a simulated rank, by index."""
        program = self.world.programs[rank]
        if id(program) not in self._tasks:
            self._tasks[id(program)] = program.tasks
        return self._tasks[id(program)]

    def _npu(self, rank: int, watch: TaskObserver) -> Npu:
        program, chip = self.world.programs[rank], self.machine.chip
        tape = self._tapes[id(program)]
        self._unfinished += bool(tape.steps)
        return Npu(self.env,
                   self.network,
                   rank,
                   self._draws.of(tape, rank),
                   hbm=self.capacities["hbm", rank],
                   l2=self.capacities["l2", rank],
                   cache=Cache(chip.l2.capacity.si),
                   timings=self._timings,
                   cores={partition: Cores(slots) for partition, slots in self._slots[id(program.items)].items()},
                   meet=self.meetings.arrive,
                   watch=watch,
                   done=self.has_ended,
                   pauses=self._pauses.get(rank, ()))

    def _deadlock(self, stuck: list[Npu]) -> str:
        lines = [f"deadlock: {len(stuck)} of {len(self.npus)} simulated ranks can never go on"]
        still = self.network.stalled()
        held = dict.fromkeys(flow.bound.name if isinstance(flow.bound, Capacity) else str(flow.bound) for flow in still)
        lost = [str(npu.rank) for npu in self.npus.values() if npu.lost_ps >= 0]
        lines += [f"  lost: rank {', rank '.join(lost)}"] * bool(lost)
        stand = "transfer stands" if len(still) == 1 else "transfers stand"
        lines += [f"  {len(still)} {stand} still: {', '.join(list(held)[:4])}"] * bool(still)
        for npu in stuck[:4]:
            lines += self._stuck_lines(npu)
        if len(stuck) > 4:
            lines.append(f"  ... and {len(stuck) - 4} more ranks")
        return "\n".join(lines)

    def _stuck_lines(self, npu: Npu) -> list[str]:
        tasks, lines = self.tasks(npu.rank), []
        if npu.blocked_on >= 0:
            lines.append(f"  rank {npu.rank} host: blocked until {_label(tasks[npu.blocked_on])} has ended")
        for stream in npu.streams:
            if stream.position < len(stream.order):
                task = tasks[stream.order[stream.position]]
                lines.append(f"  rank {npu.rank} stream '{task.stream}': {_label(task)} {self._waits(npu, task)}")
        return lines

    def _waits(self, npu: Npu, task: Task) -> str:
        if npu.lost_ps >= 0:
            return f"is lost since {npu.lost_ps / 1e9:.4g} ms"
        missing = [self.tasks(npu.rank)[index] for index in task.after if not npu.ended(index)]
        if missing:
            return "waits for " + ", ".join(f"{_label(other)} of stream '{other.stream}'" for other in missing)
        if npu.issued_ps(task.index) < 0:
            return "was never launched by the host"
        if isinstance(task.work, Collective):
            absent = self.meetings.absent(npu, task.index)
            if absent is not None:
                return self._exchanges(npu, task.index, task.work, absent)
        return "waits for cores"

    def _exchanges(self, npu: Npu, index: int, collective: Collective, absent: list[int]) -> str:
        """Whom a step that has come to its exchange waits for, and until when."""
        what = f"waits for ranks {absent} of group '{collective.group}'" if absent else "is on its way"
        timeout_ps = engine_of(collective, self.machine.collectives).timeout_ps
        if timeout_ps >= NEVER:
            return what
        return (f"{what}; given up at {format_si((npu.since_ps(index) + timeout_ps) / PS_PER_S, 's')} "
                f"('machine.collectives.{collective.via}.timeout')")


class Capacities(dict[CapacityKey, Capacity]):
    """The capacities of a run by their keys, each made when it is first asked for."""

    def __init__(self, fabric: Fabric, rate_of: Callable[[CapacityKey], float]) -> None:
        super().__init__()
        self._fabric, self._rate_of = fabric, rate_of

    def __missing__(self, key: CapacityKey) -> Capacity:
        capacity = self[key] = Capacity(_name(key, self._fabric), self._rate_of(key))
        return capacity


def rate_of(key: CapacityKey, machine: MachineSpec, fabric: Fabric) -> float:
    """The rate of a capacity in bytes/s."""
    if key[0] == "hbm":
        return machine.chip.hbm.peak.si * machine.chip.hbm.efficiency.si
    if key[0] == "l2":
        return machine.chip.l2.rate.si
    if key[0] == "link":
        return fabric.link_rate(key[1], key[2])
    if machine.nic is not None and key[0] in ("nic out", "nic in"):
        return machine.nic.goodput.si
    if machine.nic is not None and key[0] in ("pcie out", "pcie in"):
        return machine.nic.pcie.si
    return float(key[2])  # "out", "in": the rate that the driving engine achieves


def _name(key: CapacityKey, fabric: Fabric) -> str:
    """What it is, as in a timeline's `bound_by`, then which one."""
    if key[0] == "link":
        return f"link {fabric.link_level(key[1], key[2])}: {key[1]} to {key[2]}"
    words = {"hbm": "HBM: rank", "l2": "L2: rank", "out": "wire: out of rank", "in": "wire: into rank",
             "nic out": "nic.goodput: out of rank", "nic in": "nic.goodput: into rank",
             "pcie out": "nic.pcie: out of rank", "pcie in": "nic.pcie: into rank"}
    card = f", card {key[2]}" if key[0].startswith("nic") else ""
    return f"{words[key[0]]} {key[1]}{card}"


def _check_cores(tape: Tape, tasks: list[Task], slots: dict[str, dict[str, int]]) -> None:
    """InputError if a task needs more cores than the streams that are confined leave to it."""
    for step, cost, task in zip(tape.steps, tape.costs, tasks, strict=True):
        for pool, count in cost.need if cost else step.need:
            left = slots[step.partition].get(pool, 0)
            if count > left:
                what = f"task '{task.name}' of stream '{task.stream}' needs {count} '{pool}' cores"
                raise InputError(f"{what}, but only {left} are left for it")


def _label(task: Task) -> str:
    place = f" of layer {task.layer}" if task.layer >= 0 else ""
    return f"task '{task.name}' (#{task.index}{place})"
