"""What is asked of a device: run these kernels on these streams, and say when each began and ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from simulator.probe.kernel import Kernel

Program = Sequence[Sequence[Kernel]]
"""The kernels of each stream, in order. Streams start together, the first one a little ahead."""
Timeline = list[list[tuple[float, float]]]
"""(start, end) in seconds of every kernel of every stream, from one common instant on. A kernel starts when the one
before it in its stream has ended, so waiting for cores is a part of it."""


class About(BaseModel):
    """A device and the software that measured it. hbm_bytes_per_s, clock_hz: as the driver has them (0: it does not
    say). dtypes: of the products that it can be asked for. gpus: how many of them this host has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sms: int = Field(gt=0)
    memory_bytes: float = Field(gt=0)
    l2_bytes: float = Field(gt=0)
    hbm_bytes_per_s: float = 0.0
    clock_hz: float = 0.0
    dtypes: tuple[str, ...] = ("bf16",)
    gpus: int = Field(1, gt=0)
    versions: dict[str, str] = {}


class Exchange(NamedTuple):
    """A collective of NCCL between so many GPUs. size_bytes: of the whole buffer of an AllReduce, of what a rank has
    after an AllGather or before a ReduceScatter, of what it sends in an All2All, its own part included."""

    kind: str
    ranks: int
    size_bytes: int


class Unmeasurable(Exception):  # noqa: N818
    """The device cannot run this; the text says why. The measurement is left out."""


LAUNCHES = {
    "eager":            "host time of one operator in a row of them",
    "eager_rate":       "one such operator, until all have ended",
    "graph":            "one kernel of a captured graph of kernels one after the other",
    "graph_launch":     "host time of launching a captured graph",
    "device_read":      "reading one value back that is ready",
    "dependent_graph":  "one kernel of a captured graph that goes from stream to stream after every kernel",
    "dependent_eager":  "the same with events between two streams, launched ahead",
}  # fmt: skip
"""What `launch_s` measures, with the smallest kernel that there is."""


class Device(Protocol):
    """A GPU, or what stands for one in tests. All times are in seconds, one for each of the repeats."""

    def about(self) -> About: ...
    def kernel_s(self, kernel: Kernel, repeats: int) -> list[float]: ...
    def timelines(self, programs: Sequence[Program], repeats: int) -> list[list[Timeline]]: ...
    def launch_s(self, what: str, repeats: int) -> list[float]: ...
    def exchanges_s(self, exchanges: Sequence[Exchange], repeats: int) -> list[list[float]]: ...
    def peer_copy_s(self, source: int, target: int, size_bytes: int, repeats: int) -> list[float]: ...
