"""From a recorded program to the tape that an NPU replays: costs, dependency counters, launch times.

Ranks that share a recording but for numbers of their own in some tasks: compiled once, changed where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from simulator.collective.algorithms import amounts
from simulator.collective.lowering import engine_of
from simulator.collective.one_sided import ONE_SIDED
from simulator.die.kernels import Cost, Work
from simulator.die.tape import LaunchWindow, Tape, TapeStep
from simulator.errors import InputError
from simulator.program.task import Collective, Flag, HostWait, Prefetch, Program, Task
from simulator.replay.costs import Costs
from simulator.spec.machine import MachineSpec
from simulator.units import to_ps

Launched = Work | Collective | Prefetch | Flag
_SAID = ("name", "stream", "kind", "layer", "micro_batch", "after", "host_after")
_DRIVERS = ("engine", "communication", "unit_cores")
_AMOUNTS = ("flops", "l2_bytes", "hbm_bytes", "wire_bytes")


class Compiler:
    """Tapes and columns of programs on one machine; what all variants of a recording share is made once.

    groups: size of each group of ranks, for the columns.
    """

    def __init__(self, machine: MachineSpec, generation: str, groups: dict[str, int] | None = None) -> None:
        self.costs, self.groups = Costs(machine, generation), groups or {}
        self._tapes: dict[int, tuple[Tape, Callable[[str, Cost], int]]] = {}  # and on how many units what runs
        self._sooner = cache(_sooner)
        self._columns: dict[int, dict[str, list]] = {}  # of recordings, by identity
        self._amounts: dict[int, tuple[Launched, tuple[float, ...]]] = {}  # by identity of the work

    def tape(self, program: Program) -> Tape:
        """Compile a program, or change what its recording was compiled to."""
        if not program.own:
            return _tape_of(program, self.costs)
        if id(program.items) not in self._tapes:
            slots = slots_of(program, self.costs.machine)
            known = _tape_of(program, self.costs), cache(lambda partition, cost: _units_of(cost, slots[partition]))
            self._tapes[id(program.items)] = known
        base, fitting = self._tapes[id(program.items)]
        costs, weights, units, steps = list(base.costs), list(base.weights), list(base.units), base.steps
        for index, work in program.own.items():
            if isinstance(work, Work):
                cost, step = self.costs.of(work), steps[index]
                costs[index], weights[index] = cost, work.weights
                units[index] = fitting(step.partition, cost) if step.exclusive or not cost.need else 0
        if program.programmatic:
            costs = _begin_sooner(program, self.costs, self._sooner)
        return replace(base, costs=costs, weights=weights, units=units)

    def column(self, program: Program, name: str) -> list:
        """What is known of every task before the run, by its name in StaticTasks. Lists may be shared."""
        shared = self._shared(program, name)
        if name not in _AMOUNTS or not program.own:
            return shared
        place, column = _AMOUNTS.index(name), list(shared)
        for index, work in program.own.items():
            if id(work) not in self._amounts:
                self._amounts[id(work)] = work, self._amounts_of(work)
            column[index] = self._amounts[id(work)][1][place]
        return column

    def _shared(self, program: Program, name: str) -> list:
        """The same of the recording, which its variants share."""
        made = self._columns.setdefault(id(program.items), {})
        if name not in made:
            make = next(make for names, make in ((_SAID, _said_in), (_DRIVERS, self._drivers_in),
                                                 (_AMOUNTS, self._amounts_in)) if name in names)  # fmt: skip
            made.update(make(program))
        return made[name]

    def _amounts_in(self, program: Program) -> dict[str, list]:
        """_AMOUNTS of every task of the recording."""
        rows = [self._amounts_of(item.work) for item in program.items if isinstance(item, Task)]
        return _columns_of(_AMOUNTS, rows)

    def _drivers_in(self, program: Program) -> dict[str, list]:
        """_DRIVERS of every task of the recording."""
        return _columns_of(_DRIVERS, [self._driver(item, program) for item in program.items if isinstance(item, Task)])

    def _driver(self, task: Task, program: Program) -> tuple[str, bool, tuple[int, ...]]:
        """Engine, whether it is communication, and the cores of each pool of the engine on a unit."""
        work = task.work
        if isinstance(work, Flag):
            spinning = "+".join(pool for pool, _ in work.cores)
            return spinning or "flag", True, tuple(count for _, count in work.cores)
        talks = isinstance(work, Collective)
        if isinstance(work, Collective):
            own = program.partitions.get(task.partition, {})
            need = _engine_cores(work, self.costs.machine, own)
        else:
            need = self.costs.of(work).need
        return "+".join(pool for pool, _ in need), talks, tuple(count for _, count in need)

    def _amounts_of(self, work: Launched) -> tuple[float, float, float, float]:
        """FLOPs, on-chip bytes, HBM bytes and wire bytes of one rank."""
        if isinstance(work, Flag):
            return 0.0, 0.0, 0.0, 0.0
        if not isinstance(work, Collective):
            cost = self.costs.of(work)
            return self.costs.flops(work), cost.onchip_bytes, cost.hbm_bytes, 0.0
        engine = engine_of(work, self.costs.machine.collectives)
        wire_bytes, memory_bytes = amounts(work, self.groups[work.group], engine)
        return 0.0, memory_bytes, memory_bytes, wire_bytes


def _said_in(program: Program) -> dict[str, list]:
    """_SAID of every task of the recording."""
    rows: list[tuple] = []
    last: dict[str, int] = {}
    host_after = -1
    for item in program.items:
        if isinstance(item, HostWait):
            host_after = item.task
            continue
        after = (last[item.stream], *item.after) if item.stream in last else item.after
        last[item.stream] = item.index
        rows.append((item.name, item.stream, item.kind, item.layer, item.micro_batch, after, host_after))
    return _columns_of(_SAID, rows)


def _columns_of(names: tuple[str, ...], rows: Sequence[tuple]) -> dict[str, list]:
    """Rows of these as columns."""
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def _tape_of(program: Program, costs: Costs) -> Tape:
    """Compile a program for the machine and the software generation of these costs.

    Eager programs pay the host for every launch and the operator calls around it; a captured one pays once for each
    graph, and all its tasks are issued then. A graph ends where the host blocks; one without tasks is none.
    """
    machine = costs.machine
    launch_ps = cache(lambda calls: 0 if program.captured else to_ps(launch_s(program, machine, calls)))
    graph_ps = to_ps(machine.host.launch_graph.si) if program.captured else 0
    offset_ps = 0
    read_ps = launch_ps(1) + to_ps(machine.host.device_read.si)  # the copy is launched too
    tape = Tape([], [], [], [], [], [LaunchWindow()])
    streams: dict[str, int] = {}
    exchanges = 0
    for item in program.items:
        if isinstance(item, HostWait):
            tape.windows[-1].length_ps = offset_ps
            tape.windows.append(LaunchWindow(item.task, item.reads * read_ps))
            tape.steps[item.task].read = True
            offset_ps = 0
            continue
        offset_ps = max(offset_ps, graph_ps) + launch_ps(getattr(item.work, "calls", 1))
        stream = streams.setdefault(item.stream, len(streams))
        step = TapeStep(stream, waits=len(item.after), window=len(tape.windows) - 1, offset_ps=offset_ps,
                        priority=item.priority)
        spent: Cost | None = None
        if isinstance(item.work, Collective):
            step.exchange, exchanges = exchanges, exchanges + 1
            step.need = _engine_cores(item.work, machine, program.partitions.get(item.partition, {}))
        elif isinstance(item.work, Flag):
            step.need = item.work.cores
        else:
            spent = costs.of(item.work)
        pools = [pool for pool, _ in (spent.need if spent else step.need)]
        if all(pool in program.partitions.get(item.partition, {}) for pool in pools):
            step.partition = item.partition
        if stream == len(tape.streams):
            tape.streams.append([])
        tape.streams[stream].append(item.index)
        for task in item.after:
            tape.steps[task].followers.append(item.index)
        tape.steps.append(step)
        tape.costs.append(spent)
        tape.weights.append("" if spent is None else item.work.weights)  # type: ignore[union-attr]
    tape.windows[-1].length_ps = offset_ps
    if program.programmatic:
        tape.costs = _begin_sooner(program, costs, cache(_sooner))
    _find_exclusive(tape.steps)
    slots = slots_of(program, machine)
    for step, spent in zip(tape.steps, tape.costs, strict=True):
        waits_for_none = spent is not None and (step.exclusive or not spent.need)
        tape.units.append(_units_of(spent, slots[step.partition]) if spent is not None and waits_for_none else 0)
    return tape


def _begin_sooner(program: Program, costs: Costs, sooner: Callable[[Cost, float], Cost]) -> list[Cost | None]:
    """Of every task of a programmatic program its cost, with the prologue that runs beside the launch before it."""
    before_s: dict[str, float] = {}  # latency of the last launch of each stream
    spent: list[Cost | None] = []
    for task, work in program.works():
        cost = costs.of(work) if isinstance(work, Work | Prefetch) else None
        if cost is not None and not task.after:
            cost = sooner(cost, min(cost.prologue_s, before_s.get(task.stream, 0.0)))
        before_s[task.stream] = _latency_s(work, cost, costs.machine, program.captured)
        spent.append(cost)
    return spent


def _sooner(cost: Cost, head_start_s: float) -> Cost:
    """The same with so much less latency."""
    return replace(cost, latency_s=cost.latency_s - head_start_s)


def launch_s(program: Program, machine: MachineSpec, calls: int = 1) -> float:
    """What the host takes to launch work eagerly by so many calls of operators, a kernel each (0: one kernel more of
    the call before)."""
    host, kernels = machine.host, max(calls, 1)
    return kernels * host.launch_eager.si + (calls * program.operators * host.operator.si if host.operator else 0.0)


def _find_exclusive(steps: list[TapeStep]) -> None:
    """Say of every step whether its stream is the only one that uses cores of its partition."""
    users: dict[str, set[int]] = {}
    for step in steps:
        users.setdefault(step.partition, set()).add(step.stream)
    for step in steps:
        step.exclusive = len(users[step.partition]) == 1


def slots_of(program: Program, machine: MachineSpec) -> dict[str, dict[str, int]]:
    """The chip's cores by partition, "" with what no stream was confined to; InputError: there are fewer cores."""
    slots = {pool: count.count for pool, count in machine.chip.cores.items()}
    rest = dict(slots)
    for stream, shares in program.partitions.items():
        for pool, count in shares.items():
            rest[pool] = rest.get(pool, 0) - count
            if rest[pool] < 0:
                had = slots.get(pool, 0)
                raise InputError(f"stream '{stream}' is confined to {count} '{pool}' cores: too many, there are {had}")
    return {"": rest, **program.partitions}


def _units_of(cost: Cost, slots: dict[str, int]) -> int:
    """On how many units a kernel runs that has these cores to itself; 0 if they are too few."""
    units = min([slots.get(pool, 0) // per_unit for pool, per_unit in cost.need], default=cost.want)
    return min(units, cost.want) if units >= cost.at_least else 0


def _latency_s(work: Launched, cost: Cost | None, machine: MachineSpec, captured: bool) -> float:
    """How long a launch lasts at least: so much of the next one's prologue fits beside it."""
    if isinstance(work, Collective):
        engine = engine_of(work, machine.collectives)
        return (engine if captured else engine.launched_eagerly()).startup_s(members=1)
    return cost.latency_s if cost is not None else 0.0


def _engine_cores(collective: Collective, machine: MachineSpec, own: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """The cores that the driving engine holds from before the meeting until the end; own: those of its partition.

    A one-sided exchange makes do with those there are, and is slower for it.
    """
    cores = dict(collective.cores) or {
        pool: count.count for pool, count in engine_of(collective, machine.collectives).cores.items()}
    if collective.kind in ONE_SIDED:
        cores = {pool: min(count, own.get(pool, count)) for pool, count in cores.items()}
    return tuple(cores.items())
