"""The ways in which a library of collectives goes about a kind of them; it takes the fastest for each size."""

from __future__ import annotations

from typing import Literal

from simulator.spec.typed_toml import TomlTable
from simulator.units import Bytes, BytesPerSecond, Seconds

ALGORITHMS_OF = {"all_reduce": ("one_shot", "direct", "ring", "nvls"), "all_gather": ("direct", "ring"),
                 "reduce_scatter": ("direct", "ring"), "all_to_all": ("direct", "pairwise")}
"""Which algorithms a protocol can have, by kind."""


class StartUp(TomlTable):
    """startup + startup_per_peer x peers is latency (left out: none)."""

    startup: Seconds | None = None
    startup_per_peer: Seconds | None = None

    def startup_s(self, members: int) -> float:
        """Of so many members, in seconds, without the way to the furthest."""
        each_s = self.startup_per_peer.si if self.startup_per_peer else 0.0
        return (self.startup.si if self.startup else 0.0) + each_s * (members - 1)


class ProtocolSpec(StartUp):
    """An algorithm with latencies and a rate of its own: NCCL's LL or Simple, a kernel that sums in one shot or two.

    kind, algorithm: as those of a collective. The start-up is that of each of its parts (an AllReduce of shards has
    two). rate: on the wire, one way per rank. up_to, above: the largest buffer that the
    library sends this way, and the largest that it does not (left out: any), in bytes of a whole AllReduce, of what a
    rank has after an AllGather or before a ReduceScatter, or of what it sends in an All2All, its own part included.
    """

    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    algorithm: Literal["one_shot", "direct", "ring", "nvls", "pairwise"]
    rate: BytesPerSecond
    up_to: Bytes | None = None
    above: Bytes | None = None

    def takes(self, buffer_bytes: float) -> bool:
        """Whether the library may send a buffer of this size this way."""
        low, high = self.above.si if self.above else -1.0, self.up_to.si if self.up_to else float("inf")
        return low < buffer_bytes <= high
