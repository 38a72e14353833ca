"""What a lowered collective consists of: transfers, and the phases in which they run side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from simulator import np
from simulator.np import Array
from simulator.spec.machine import CollectiveSpec

CapacityKey = tuple  # of a capacity: ("hbm", rank), ("l2", rank), ("link", u, v), ("out" or "in", rank, engine's rate)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One flow of a lowered collective. ranks: the members that wait for it.

    keys, moved_bytes: the capacities that it loads, and the bytes on each of them in all.
    """

    size_bytes: int
    keys: tuple[CapacityKey, ...]
    moved_bytes: tuple[int, ...]
    ranks: tuple[int, ...]
    weight: float = 1.0

    @staticmethod
    def of(size_bytes: int, loads: Iterable[tuple[CapacityKey, int]], ranks: tuple[int, ...],
           weight: float = 1.0) -> Transfer:
        """Of pairs of a capacity and the bytes there."""
        keys, moved_bytes = tuple(zip(*loads, strict=True)) or ((), ())
        return Transfer(size_bytes, keys, moved_bytes, ranks, weight)

    @property
    def loads(self) -> tuple[tuple[CapacityKey, int], ...]:
        """Each capacity with the bytes there."""
        return tuple(zip(self.keys, self.moved_bytes, strict=True))

    def __hash__(self) -> int:
        """Cheap, whatever the number of loads; they decide when two are compared."""
        return hash((self.size_bytes, self.weight, self.keys[:1], self.moved_bytes[:2], self.ranks[:2]))


@dataclass(frozen=True, slots=True)
class Phase:
    """Transfers that run side by side after a latency; the next phase starts when all have ended."""

    latency_s: float
    transfers: tuple[Transfer, ...]


def columns_of(transfers: Sequence[Transfer]) -> tuple[list[CapacityKey], Array, Array, Array]:
    """The capacities that transfers load, in the order in which they come; of each load, transfer by transfer, the
    number of its capacity there and its bytes; where the loads of each transfer begin, and where the last one's end.

    Keys of a fabric are mostly one object where they are equal: they are told apart by identity first, which is quick.
    """
    keys = list(chain.from_iterable([one.keys for one in transfers]))
    ids = np.fromiter(map(id, keys), dtype=np.int64, count=len(keys))
    _, first, place = np.unique(ids, return_index=True, return_inverse=True)
    numbers: dict[CapacityKey, int] = {}
    number = np.zeros(len(first), dtype=np.int64)
    for at in np.argsort(first).tolist():  # in the order in which they come, which addresses have no part in
        number[at] = numbers.setdefault(keys[first[at]], len(numbers))
    moved = np.fromiter(chain.from_iterable([one.moved_bytes for one in transfers]), dtype=float, count=len(keys))
    ends = np.cumsum([0, *(len(one.keys) for one in transfers)])
    return list(numbers), number[place], moved, ends


def memory_per_byte(engine: CollectiveSpec) -> float:
    """Bytes through memory at each end of a message, per byte on the wire."""
    return engine.transfer_bytes.si / 2.0 + engine.staging_bytes
