"""What a lowered collective consists of: transfers, and the phases in which they run side by side."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.spec.machine import CollectiveSpec

CapacityKey = tuple  # of a capacity: ("hbm", rank), ("l2", rank), ("link", u, v), ("out" or "in", rank, engine's rate)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One flow of a lowered collective. loads: bytes on each capacity in all. ranks: the members that wait for it."""

    size_bytes: int
    loads: tuple[tuple[CapacityKey, int], ...]
    ranks: tuple[int, ...]
    weight: float = 1.0

    def __hash__(self) -> int:
        """Cheap, whatever the number of loads; they decide when two are compared."""
        return hash((self.size_bytes, self.weight, len(self.loads), self.loads[:1], self.ranks[:2]))


@dataclass(frozen=True, slots=True)
class Phase:
    """Transfers that run side by side after a latency; the next phase starts when all have ended."""

    latency_s: float
    transfers: tuple[Transfer, ...]


def memory_per_byte(engine: CollectiveSpec) -> float:
    """Bytes through memory at each end of a message, per byte on the wire."""
    return engine.transfer_bytes.si / 2.0 + engine.copy_bytes.si
