"""The typed file of a machine: chip, host, fabric, collectives and kernel generations, every number with its source.

Levels of the fabric are listed inside out. Sizes multiply: 2 dies x 8 packages x 48 nodes are 768 ranks. A file that
begins with `extends` only has what differs from another machine, or what its parts lack (`parts`).
"""

from __future__ import annotations

from functools import cached_property
from math import log, prod

from pydantic import Field

from simulator.errors import NoSuchName
from simulator.paths import did_you_mean
from simulator.spec.kernels import DerivedGeneration, KernelSpec, engines_of, families_of
from simulator.spec.levels import LevelSpec
from simulator.spec.nic import NicSpec, ProxySpec
from simulator.spec.protocols import ProtocolSpec, StartUp
from simulator.spec.typed_toml import TomlTable
from simulator.units import (
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    Hertz,
    PositiveCount,
    Ratio,
    Seconds,
    Share,
    Watts,
    to_ps,
)


class HbmSpec(TomlTable):
    """High-bandwidth memory of one die; `efficiency` of `peak` is what kernels achieve together, `usable` is the
    share of the capacity that the driver and the runtime leave."""

    capacity: Bytes
    peak: BytesPerSecond
    efficiency: Share
    usable: Share


class L2Spec(TomlTable):
    """The shared on-chip cache: `rate` is the effective rate all cores together get, `port_rate` that of one core of
    each pool."""

    capacity: Bytes
    rate: BytesPerSecond
    port_rate: dict[str, BytesPerSecond]


class ChipSpec(TomlTable):
    """One die. `cores` and `peak` are by pool ("cube", "vector", "sdma"; a GPU: "sm"); peaks by data type. tile_bytes:
    pieces of element-wise work, for kernels that have none of their own (left out: they all have).
    """

    name: str
    clock: Hertz
    cores: dict[str, PositiveCount]
    peak: dict[str, dict[str, FlopsPerSecond]]
    tile_bytes: Bytes | None = None
    hbm: HbmSpec
    l2: L2Spec

    @property
    def dtypes(self) -> frozenset[str]:
        """Data types that its cores multiply."""
        return frozenset(dtype for peaks in self.peak.values() for dtype in peaks)


class HostMemorySpec(TomlTable):
    """Memory of a host, where blocks of KV cache can lie. dies: that share a host. link: rate between a die and its
    host's memory, one way, as copies of pages get it; rate: of the memory for all dies, in and out together."""

    dies: PositiveCount
    link: BytesPerSecond
    rate: BytesPerSecond


class HostSpec(TomlTable):
    """The host thread of one rank: time per eager launch, per launch of a captured graph, and latency of reading a
    value back from the device.

    operator: what one operator call of a framework takes beside the launches that it makes. A software stack says how
    many calls go with each launch (left out: they are in `launch_eager`). memory: of the host (left out: nothing is
    kept there).
    """

    launch_eager: Seconds
    operator: Seconds | None = None
    launch_graph: Seconds
    device_read: Seconds
    memory: HostMemorySpec | None = None


NEVER = 2**63  # ps: no run gets there


class BandwidthPoint(TomlTable):
    """One point of a bandwidth curve: the rate achieved on the wire, one way per rank, at this many bytes per peer (of
    the only point it may be left out: the rate holds for every size)."""

    bytes_per_peer: Bytes | None = None
    rate: BytesPerSecond


class BandwidthCurves(TomlTable):
    """Points by kind of collective, rising in size; kinds without a curve of their own use `default`.

    all_reduce: of both its parts (left out: those of reduce_scatter and all_gather).
    """

    default: list[BandwidthPoint] = Field(min_length=1)
    all_to_all: list[BandwidthPoint] | None = Field(default=None, min_length=1)
    all_gather: list[BandwidthPoint] | None = Field(default=None, min_length=1)
    reduce_scatter: list[BandwidthPoint] | None = Field(default=None, min_length=1)
    all_reduce: list[BandwidthPoint] | None = Field(default=None, min_length=1)
    send: list[BandwidthPoint] | None = Field(default=None, min_length=1)


class RowsSpec(TomlTable):
    """Rows that an engine's cores handle one by one, each core its share of them, as token copies are.

    send: of a core for a row before it is on the wire (load, quantise, address). core_rate: what a core writes.
    latencies: how many one-way latencies of the wire a row takes. in_flight: rows that a core has under way at once.
    receive: of a core for a row that has come (copied out of its window, or added up).
    """

    send: Seconds
    core_rate: BytesPerSecond
    latencies: Ratio
    in_flight: PositiveCount
    receive: Seconds


class CollectiveSpec(StartUp):
    """Collectives by one driving engine and software.

    cores: what the engine holds meanwhile (empty: what the exchange itself says). startup_eager: the start-up where the
    program is no captured graph, and the host puts together what the engine does (left out: the same). transfer_bytes:
    bytes through L2 and HBM per byte on the wire, both ends together; copy_bytes: per byte of a staging copy (left out:
    zero copy, peers read and write each other's buffers). weight: its share of contended capacities against kernels, in
    bytes of its own (left out: as kernels have, max-min fairness).
    rate_per_core: what one of its cores drives on the wire (left out: the curve alone decides). within: the level of
    the fabric that it does not leave (left out: it goes everywhere).
    step_latencies: how many one-way latencies a step begins with: over nodes, of a pairwise All2All and of what is
    pipelined over nodes (left out: 1), and around a ring (left out: none beside the start-up).
    protocols: by name, the ways of its own that collectives of algorithm "auto" take the fastest of.
    rows: what a row costs in one-sided exchanges of rows (left out: nothing beside its bytes).
    timeout: how long a rank waits for the others before its software ends the run (left out: for ever).
    """

    cores: dict[str, PositiveCount]
    startup_eager: Seconds | None = None
    transfer_bytes: Ratio
    copy_bytes: Ratio | None = None
    weight: Ratio | None = None
    ladder: BandwidthCurves
    rate_per_core: BytesPerSecond | None = None
    within: str | None = None
    step_latencies: PositiveCount | None = None
    protocols: dict[str, ProtocolSpec] = Field(default_factory=dict)
    rows: RowsSpec | None = None
    timeout: Seconds | None = None

    @property
    def share(self) -> float:
        """Its weight among all flows."""
        return self.weight.si if self.weight else 1.0

    @property
    def staging_bytes(self) -> float:
        """Bytes through L2 and HBM per byte of a staging copy; 0: zero copy."""
        return self.copy_bytes.si if self.copy_bytes else 0.0

    @property
    def messages_per_step(self) -> int:
        """One-way latencies that a step over nodes begins with."""
        return self.step_latencies.count if self.step_latencies else 1

    @property
    def timeout_ps(self) -> int:
        """How long a rank waits for the others at most, in ps; NEVER where it is left out."""
        return to_ps(self.timeout.si) if self.timeout else NEVER

    def launched_eagerly(self) -> CollectiveSpec:
        """The same engine in a program that is no captured graph."""
        return self if self.startup_eager is None else self.model_copy(update={"startup": self.startup_eager})

    def rate_bytes_per_s(self, kind: str, bytes_per_peer: float) -> float:
        """Rate on the wire, one way per rank, of a kind in `ladder`: as its curve says, and its cores can drive."""
        rate = self._curve_rate(kind, bytes_per_peer)
        if self.rate_per_core is None:
            return rate
        return min(rate, self.rate_per_core.si * max(count.count for count in self.cores.values()))

    def _curve_rate(self, kind: str, bytes_per_peer: float) -> float:
        """Linear in the logarithm of the size between points, flat beyond them."""
        points = getattr(self.ladder, kind) or self.ladder.default
        sizes = [one.bytes_per_peer.si for one in points if one.bytes_per_peer]
        place = sum(size < bytes_per_peer for size in sizes)
        if place in (0, len(sizes)):
            return points[max(place - 1, 0)].rate.si
        below, point = points[place - 1 : place + 1]
        low, high = sizes[place - 1 : place + 1]
        share = log(bytes_per_peer / low) / log(high / low)
        return below.rate.si + share * (point.rate.si - below.rate.si)


class MachineSpec(TomlTable):
    """One machine; see the module's text. kernels: by software generation; without any it runs collectives alone.
    exchange_kernels: of libraries that exchange tokens, the same beside every generation.

    card_power: what a card and its share of the server take at most (left out: not known); it slows nothing.
    cut, slow: links that are missing or slower, as `levels` has them.
    """

    name: str
    title: str
    doc: str
    dies_per_card: PositiveCount
    card_power: Watts | None = None
    chip: ChipSpec
    host: HostSpec
    fabric: list[LevelSpec] = Field(min_length=1)
    collectives: dict[str, CollectiveSpec]
    kernels: dict[str, dict[str, KernelSpec]] = Field(default_factory=dict)
    generations: dict[str, DerivedGeneration] = Field(default_factory=dict)
    exchange_kernels: dict[str, KernelSpec] = Field(default_factory=dict)
    nic: NicSpec | None = None
    proxy: ProxySpec | None = None
    cut: str = ""
    slow: str = ""

    @cached_property
    def _families(self) -> dict[str, dict[str, KernelSpec]]:
        return {name: {**self.exchange_kernels, **families_of(name, self.kernels, self.generations)}
                for name in (*self.kernels, *self.generations)}

    def kernels_of(self, generation: str) -> dict[str, KernelSpec]:
        """Kernel families of a software generation, the machine's own or derived; NoSuchName says which there are."""
        if generation not in self._families:
            known, hint = ", ".join(sorted(self._families)) or "none", did_you_mean(generation, self._families)
            raise NoSuchName(generation, f"{self.name} has no kernel generation '{generation}'{hint}: it has {known}")
        return self._families[generation]

    def of_generation(self, generation: str) -> MachineSpec:
        """The same machine with that generation's collectives."""
        older = self.generations.get(generation)
        if older is None or not older.collectives:
            return self
        return self.model_copy(update={"collectives": engines_of(self.collectives, older)})

    def reach(self, engine: str) -> int:
        """How many neighbouring dies an engine of collectives goes between: those of its level, or all."""
        within = self.collectives[engine].within
        names = [level.name for level in self.fabric]
        inside = self.fabric[: names.index(within) + 1] if within in names else self.fabric
        return prod(level.size.count for level in inside)

    @property
    def dies(self) -> int:
        """How many dies the whole machine has."""
        return prod(level.size.count for level in self.fabric)

    @property
    def node_dies(self) -> int:
        """How many of them reach each other below the outermost level; all, where there is one level alone."""
        return prod(level.size.count for level in self.fabric[:-1] or self.fabric)

    @property
    def port_dies(self) -> int:
        """How many of them reach each other through one port each, but for the other die of a package."""
        inside, ports = 1, 0
        for level in self.fabric:
            shared = level.kind == "switch" and (level.ports == "switch" or (level.ports is None and ports > 0))
            ports += not shared and not (level.kind == "mesh" and level.size.count <= 2)
            if ports > 1 or level.kind == "torus" or (level.kind == "mesh" and ports):
                break
            inside *= level.size.count
        return inside
