"""Which numbers of the machine mattered: from what bounded the critical path to parameters with their sources."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

from simulator.collective.one_sided import ONE_SIDED
from simulator.die.kernels import FREE
from simulator.observe.critical import CriticalPath, Segment
from simulator.program.task import Collective, Task
from simulator.program.world import World
from simulator.spec.kernels import base_of
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import quantities
from simulator.study.promises import Alone, saved_ps

LEAST_SHARE = 0.01
_LATENCIES = "floor", "serial_per_k", "per_row", "per_group", "per_slot"  # of a kernel that is bound by latency


def parameters_of(critical: CriticalPath, machine: MachineSpec, generation: str, world: World) -> list[dict[str, Any]]:
    """Parameters that bounded more than 1% of the critical path, those that promise most first: name (dotted key in the
    machine's file), value, unit, kind, source, share of the critical path, and `saves`: what of the run's length the
    path promises if this number alone were twice as good (`promises`)."""
    known = dict(quantities(machine))
    bounded = bounded_by(critical, machine, generation, world)
    generation = base_of(generation, machine.generations)
    shares = {name: sum(one.to_ps - one.from_ps for one in some) / critical.makespan_ps
              for name, some in bounded.items()}  # fmt: skip
    rows, alone = [], Alone(machine, generation, world)
    for name, share in shares.items():
        if share > LEAST_SHARE:
            quantity = known[name].model_dump(include={"value", "unit", "kind", "source"})
            saves = saved_ps(alone, generation, name, bounded[name]) / critical.makespan_ps
            rows.append({"name": name, **quantity, "share": share, "saves": saves})
    return sorted(rows, key=lambda row: (-row["saves"], -row["share"], row["name"]))


def bounded_by(critical: CriticalPath, machine: MachineSpec, generation: str, world: World) -> dict[str, list[Segment]]:
    """By parameter (dotted key), the segments of the critical path that it bounds: each may have several."""
    known = dict(quantities(machine))
    bounded: defaultdict[str, list[Segment]] = defaultdict(list)
    tasks = cache(lambda rank: world.programs[rank].tasks)
    recordings = {id(program.items): program for program in world.programs}.values()
    families = sorted({family for program in recordings for family in program.families()})
    generation, eager = base_of(generation, machine.generations), world.eager
    for segment in critical.segments:
        live = segment.task >= len(tasks(segment.rank))
        names = _host_names(segment, world, live) if segment.what == "host" else None
        engine = _engine(segment, tasks(segment.rank), world, eager)
        for name in _names(segment, machine, generation, families, engine) if names is None else names:
            if name in known and known[name].value:
                bounded[name].append(segment)
    return bounded


def _engine(segment: Segment, tasks: Sequence[Task], world: World, eager: frozenset[int]) -> tuple[str, bool]:
    """What drives the collective of a segment ("": it is none, or what a live host does), and whether a member is among
    these ranks."""
    work = tasks[segment.task].work if segment.task < len(tasks) else None
    if not isinstance(work, Collective) or work.via == FREE:
        return "", False
    members = (segment.rank,) if work.kind in ONE_SIDED else world.instance(work.group, segment.rank)
    return work.via, not eager.isdisjoint(members)


def _host_names(segment: Segment, world: World, live: bool) -> list[str]:
    """What a host takes for a launch; a thread of a live host says itself what bounds it."""
    program = world.programs[segment.rank]
    if live:
        return []
    if program.captured:
        return ["host.launch_graph"]
    return ["host.launch_eager", "host.operator"] if program.operators else ["host.launch_eager"]


def _names(segment: Segment, machine: MachineSpec, generation: str, families: list[str],
           driver: tuple[str, bool]) -> list[str]:
    """The parameters behind what bounded a segment; driver: see `_engine`."""
    engine, eager = driver
    by, _, which = segment.bound_by.partition(" ")
    if by == "nic.standing_queue":
        return [by, "nic.goodput"]
    if by == "turns":
        return [f"exchange_kernels.{which}.{part}" for part in ("turn", "rate", "serial_per_k")]
    rows = segment.kind in ONE_SIDED and engine and machine.collectives[engine].rows is not None
    if rows and by in ("rows", "latency"):
        parts = ("send", "core_rate", "in_flight", "latencies") if by == "rows" else ("receive",)
        levels = (f"fabric.{level.name}.latency" for level in machine.fabric)
        return [*(f"collectives.{engine}.rows.{part}" for part in parts), *levels]
    if by in ("wire", "engine") and engine:
        kind = getattr(machine.collectives[engine].ladder, segment.kind, None)
        curve = segment.kind if kind else "default"
        return [f"collectives.{engine}.ladder.{curve}.0.rate"]
    resource, _, family = which.partition(" ")
    if resource == "share":
        return ["chip.hbm.peak", f"kernels.{generation}.{family}.hbm_share"]
    if resource == "ports":
        pools = machine.kernels[generation][family].cores
        return [*(f"chip.l2.port_rate.{pool}" for pool in pools), f"kernels.{generation}.{family}.port_share"]
    if segment.kind == "attention" and by == "L2":
        return ["chip.l2.rate", *(f"kernels.{generation}.{family}.score_bytes" for family in families)]
    names = {"HBM": ["chip.hbm.peak", "chip.hbm.efficiency"],
             "L2": ["chip.l2.rate"],
             "link": [f"fabric.{which}.link_rate"],
             "compute": [f"chip.peak.{which}"],
             "latency": [f"{_place(machine, generation, which)}.{part}" for part in _LATENCIES]}
    if by == "latency" and not which:
        startup = "startup_eager" if eager and machine.collectives[engine].startup_eager is not None else "startup"
        own = (f"collectives.{engine}.{part}" for part in (startup, "startup_per_peer", "step_latencies"))
        return [*own, *(f"fabric.{level.name}.latency" for level in machine.fabric)]
    return names.get(by, [segment.bound_by])


def _place(machine: MachineSpec, generation: str, family: str) -> str:
    """Where a machine's file has a family of kernels: beside all generations, or in this one."""
    return f"exchange_kernels.{family}" if family in machine.exchange_kernels else f"kernels.{generation}.{family}"
