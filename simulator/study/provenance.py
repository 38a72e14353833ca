"""Which numbers of the machine mattered: from what bounded the critical path to parameters with their sources."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from simulator.collective.one_sided import ONE_SIDED
from simulator.spec.generation import base_of
from simulator.spec.typed_toml import quantities
from simulator.units import Quantity

if TYPE_CHECKING:
    from simulator.observe.critical import CriticalPath, Segment
    from simulator.spec.machine import MachineSpec
    from simulator.study.scenario import Scenario

LEAST_SHARE = 0.01
_LATENCIES = "floor", "serial_per_k", "per_row", "per_group", "per_slot"  # of a kernel that is bound by latency


def parameters_of(
    critical: CriticalPath, machine: MachineSpec, scenario: Scenario, families: frozenset[str]
) -> list[dict[str, Any]]:
    """Parameters that bounded more than 1% of the critical path, the most important first; families: those launched.

    Each has name (dotted key in the machine's file), value, unit, kind, source and share of the critical path.
    """
    known = dict(quantities(machine))
    shares: Counter[str] = Counter()
    for segment in critical.segments:
        for name in _names(segment, machine, scenario, families):
            if name in known:
                shares[name] += segment.to_ps - segment.from_ps
    rows = []
    for name, length in shares.most_common():
        share = length / critical.makespan_ps
        if share > LEAST_SHARE:
            rows.append({"name": name, **_plain(known[name]), "share": share})
    return rows


def _plain(quantity: Quantity) -> dict[str, Any]:
    return {"value": quantity.value, "unit": quantity.unit, "kind": quantity.kind, "source": quantity.source}


def _names(segment: Segment, machine: MachineSpec, scenario: Scenario, families: frozenset[str]) -> list[str]:
    """The parameters behind what bounded a segment."""
    by, _, which = segment.bound_by.partition(" ")
    if segment.what == "host":
        return ["host.launch_eager"]
    generation = base_of(scenario.kernels, machine.generations)
    engine = getattr(scenario.knobs, "engine", "")
    if by == "wire" and engine in machine.collectives:
        kind = getattr(machine.collectives[engine].ladder, segment.kind, None)
        ladder = segment.kind if kind else "default"
        return [f"collectives.{engine}.ladder.{ladder}.0.rate"]
    if segment.kind == "attention" and by == "L2":
        return ["chip.l2.rate", *(f"kernels.{generation}.{family}.score_bytes" for family in sorted(families))]
    names = {
        "HBM": ["chip.hbm.peak", "chip.hbm.efficiency"],
        "L2": ["chip.l2.rate"],
        "link": [f"fabric.{which}.link_rate"],
        "compute": [f"chip.peak.{which}"],
        "latency": [f"kernels.{generation}.{which}.{part}" for part in _LATENCIES],
    }
    if by == "latency" and not which:
        own = segment.kind in ONE_SIDED  # they have an engine of their own, which no column names
        return [] if own else [f"collectives.{engine}.startup", f"collectives.{engine}.startup_per_peer"]
    return names.get(by, [segment.bound_by])
