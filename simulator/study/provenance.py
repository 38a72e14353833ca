"""Which numbers of the machine mattered: from what bounded the critical path to parameters with their sources."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

from simulator.collective.one_sided import ONE_SIDED
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
    """Parameters that bounded more than 1% of the critical path, the most important first: name (dotted key in the
    machine's file), value, unit, kind, source, share of the critical path, and `saves`: what of the run's length the
    path promises if this number alone were twice as good (`promises`)."""
    known = dict(quantities(machine))
    bounded: defaultdict[str, list[Segment]] = defaultdict(list)
    tasks = cache(lambda rank: world.programs[rank].tasks)
    recordings = {id(program.items): program for program in world.programs}.values()
    families = sorted({family for program in recordings for family in program.families()})
    generation = base_of(generation, machine.generations)
    for segment in critical.segments:
        for name in _names(segment, machine, generation, families, _engine(segment, tasks(segment.rank))):
            if name in known:
                bounded[name].append(segment)
    shares = {name: sum(one.to_ps - one.from_ps for one in some) / critical.makespan_ps
              for name, some in bounded.items()}  # fmt: skip
    rows, alone = [], Alone(machine, generation, world)
    for name in sorted(shares, key=lambda name: -shares[name]):
        if shares[name] > LEAST_SHARE:
            quantity = known[name].model_dump(include={"value", "unit", "kind", "source"})
            saves = saved_ps(alone, generation, name, bounded[name]) / critical.makespan_ps
            rows.append({"name": name, **quantity, "share": shares[name], "saves": saves})
    return rows


def _engine(segment: Segment, tasks: Sequence[Task]) -> str:
    """What drives the collective of a segment; "" if it is none, or what a live host does."""
    work = tasks[segment.task].work if segment.task < len(tasks) else None
    return work.via if isinstance(work, Collective) else ""


def _names(segment: Segment, machine: MachineSpec, generation: str, families: list[str], engine: str) -> list[str]:
    """The parameters behind what bounded a segment."""
    by, _, which = segment.bound_by.partition(" ")
    if segment.what == "host":
        return ["host.launch_eager"]
    if engine and segment.kind in ONE_SIDED and machine.collectives[engine].rows and by in ("engine", "latency"):
        parts = ("send", "core_rate", "in_flight") if by == "engine" else ("receive",)
        return [f"collectives.{engine}.rows.{part}" for part in parts]
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
             "latency": [f"kernels.{generation}.{which}.{part}" for part in _LATENCIES]}
    if by == "latency" and not which:
        spec = machine.collectives[engine]
        startup = "startup_eager" if spec.startup is spec.startup_eager else "startup"
        return [f"collectives.{engine}.{startup}", f"collectives.{engine}.startup_per_peer"]
    return names.get(by, [segment.bound_by])
