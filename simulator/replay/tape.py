"""From a recorded program to the tape that an NPU replays: costs, dependency counters, launch times."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from simulator.collective.algorithms import amounts as exchanged
from simulator.collective.lowering import engine_of
from simulator.collective.one_sided import ONE_SIDED
from simulator.die.kernels import Cost, Work
from simulator.die.tape import LaunchWindow, Tape, TapeStep
from simulator.errors import InputError
from simulator.program.task import Collective, Flag, HostWait, Prefetch, Program
from simulator.replay.costs import Costs
from simulator.spec.machine import MachineSpec
from simulator.units import to_ps


def tape_of(program: Program, costs: Costs) -> Tape:
    """Compile a program for the machine and the software generation of these costs.

    Eager programs pay the host for every launch; a captured one pays once for each graph, and all its tasks are issued
    then. A graph ends where the host blocks.
    """
    machine = costs.machine
    sooner = cache(lambda spent, head_start_s: replace(spent, latency_s=spent.latency_s - head_start_s))
    before_s: dict[int, float] = {}  # latency of the last launch of each stream
    launch_ps = 0 if program.captured else to_ps(machine.host.launch_eager.si)
    offset_ps = graph_ps = to_ps(machine.host.launch_graph.si) if program.captured else 0
    read_ps = launch_ps + to_ps(machine.host.device_read.si)  # the copy is launched too
    tape = Tape([], [], [], [], [], [LaunchWindow()])
    streams: dict[str, int] = {}
    exchanges = 0
    for item in program.items:
        if isinstance(item, HostWait):
            tape.windows[-1].length_ps = offset_ps
            tape.windows.append(LaunchWindow(item.task, item.reads * read_ps))
            tape.steps[item.task].read = True
            offset_ps = graph_ps
            continue
        offset_ps += launch_ps
        stream = streams.setdefault(item.stream, len(streams))
        step = TapeStep(
            stream, waits=len(item.after), window=len(tape.windows) - 1, offset_ps=offset_ps, priority=item.priority
        )
        spent: Cost | None = None
        if isinstance(item.work, Collective):
            step.exchange, exchanges = exchanges, exchanges + 1
            step.need = _engine_cores(item.work, machine, program.partitions.get(item.partition, {}))
        elif isinstance(item.work, Flag):
            step.need = item.work.cores
        else:
            spent = costs.of(item.work)
            if program.programmatic and not item.after:
                spent = sooner(spent, min(spent.prologue_s, before_s.get(stream, 0.0)))
        before_s[stream] = _latency_s(item.work, spent, machine)
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
    _find_exclusive(tape.steps)
    slots = slots_of(program, machine)
    for step, spent in zip(tape.steps, tape.costs, strict=True):
        tape.units.append(units_of(spent, slots[step.partition]) if spent is not None and step.exclusive else 0)
    return tape


def _find_exclusive(steps: list[TapeStep]) -> None:
    """Say of every step whether its stream is the only one that uses cores of its partition."""
    users: dict[str, set[int]] = {}
    for step in steps:
        users.setdefault(step.partition, set()).add(step.stream)
    for step in steps:
        step.exclusive = len(users[step.partition]) == 1


def slots_of(program: Program, machine: MachineSpec) -> dict[str, dict[str, int]]:
    """The chip's cores by partition; "" has what no stream was confined to.

    Raises:
        InputError: streams are confined to more cores than there are.
    """
    slots = {pool: count.count for pool, count in machine.chip.cores.items()}
    rest = dict(slots)
    for stream, shares in program.partitions.items():
        for pool, count in shares.items():
            rest[pool] = rest.get(pool, 0) - count
            if rest[pool] < 0:
                had = slots.get(pool, 0)
                raise InputError(f"stream '{stream}' is confined to {count} '{pool}' cores: too many, there are {had}")
    return {"": rest, **program.partitions}


def units_of(cost: Cost, slots: dict[str, int]) -> int:
    """On how many units a kernel runs that has these cores to itself; 0 if they are too few."""
    units = min([slots.get(pool, 0) // per_unit for pool, per_unit in cost.need], default=cost.want)
    return min(units, cost.want) if units >= cost.at_least else 0


def _latency_s(work: Work | Collective | Prefetch | Flag, cost: Cost | None, machine: MachineSpec) -> float:
    """How long a launch lasts at least: so much of the next one's prologue fits beside it."""
    if isinstance(work, Collective):
        return engine_of(work, machine.collectives).startup.si
    return cost.latency_s if cost is not None else 0.0


def _engine_cores(collective: Collective, machine: MachineSpec, own: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """The cores that the driving engine holds from before the meeting until the end; own: those of its partition.

    A one-sided exchange makes do with those there are, and is slower for it.
    """
    engine = engine_of(collective, machine.collectives)
    one_sided = collective.kind in ONE_SIDED
    return tuple(
        (pool, min(count.count, own.get(pool, count.count)) if one_sided else count.count)
        for pool, count in engine.cores.items()
    )


def statics(program: Program, costs: Costs, groups: dict[str, int]) -> dict[str, list]:
    """What is known of every task before the run, as columns; groups: size of each group of ranks."""
    columns: dict[str, list] = {name: [] for name in _STATIC}
    last: dict[str, int] = {}
    host_after = -1
    for item in program.items:
        if isinstance(item, HostWait):
            host_after = item.task
            continue
        before = (last[item.stream],) if item.stream in last else ()
        last[item.stream] = item.index
        row = (
            item.name,
            item.stream,
            item.kind,
            item.layer,
            item.micro_batch,
            (*before, *item.after),
            host_after,
            *driver(item.work, costs),
            *amounts(item.work, costs, groups),
        )
        for name, value in zip(_STATIC, row, strict=True):
            columns[name].append(value)
    return columns


_STATIC = (
    "name", "stream", "kind", "layer", "micro_batch", "after", "host_after",
    "engine", "communication", "flops", "hbm_bytes", "wire_bytes",
)  # fmt: skip


def driver(work: Work | Collective | Prefetch | Flag, costs: Costs) -> tuple[str, bool]:
    """Engine, and whether it is communication."""
    if isinstance(work, Collective):
        return "+".join(engine_of(work, costs.machine.collectives).cores), True
    if isinstance(work, Flag):
        return "flag", True
    return "+".join(pool for pool, _ in costs.of(work).need), False


def amounts(
    work: Work | Collective | Prefetch | Flag, costs: Costs, groups: dict[str, int]
) -> tuple[float, float, float]:
    """FLOPs, HBM bytes and wire bytes of one rank."""
    if isinstance(work, Flag):
        return 0.0, 0.0, 0.0
    if not isinstance(work, Collective):
        return costs.flops(work), costs.of(work).hbm_bytes, 0.0
    wire_bytes, memory_bytes = exchanged(work, groups[work.group], engine_of(work, costs.machine.collectives))
    return 0.0, memory_bytes, wire_bytes
