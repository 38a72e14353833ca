"""Small machines for tests: Atlas A3's chip and host with another fabric."""

from typing import Any

from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import validate


def number(value: float, unit: str = "1") -> dict[str, Any]:
    return {"value": value, "unit": unit, "kind": "assumed", "source": "made for a test"}


def level(name: str, kind: str, size: int, rate_gb_s: float, latency_us: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "size": number(size), "link_rate": number(rate_gb_s, "GB/s"),
            "latency": number(latency_us, "us"), **more}


def machine(name: str, *levels: dict[str, Any]) -> MachineSpec:
    """A machine with these levels, inside out."""
    return validate(MachineSpec, {**load_machine("atlas_a3").model_dump(), "name": name, "fabric": list(levels)}, name)


def atlas_a2() -> MachineSpec:
    """Full mesh of 8 in a node; a star between nodes, one network port per die."""
    return machine("a2", level("node", "mesh", 8, 28, 0.5), level("cluster", "switch", 4, 25, 1.5))


def gpu_nodes() -> MachineSpec:
    """NVLink switch in a node; NICs between nodes, whose latency is lower than NVLink's."""
    return machine("gpu", level("node", "switch", 8, 450, 3.3), level("network", "switch", 16, 50, 2.8, ports="die"))


def three_tiers() -> MachineSpec:
    """NVLink in a node, NICs to a leaf switch, leaves under a spine."""
    return machine("tiers", level("node", "switch", 2, 450, 1.0), level("leaf", "switch", 2, 50, 3.0, ports="die"),
                   level("spine", "switch", 3, 100, 5.0))
