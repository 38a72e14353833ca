"""Two streams as Braid simulates them on the machine that was measured, beside what was measured.

How long each kernel takes alone is given: its family's law says what it needs (latency, cores, bytes through L2 and
HBM), and its rate is such that alone it lasts as long as measured. What is predicted is what it costs it to run beside
another kernel: exclusive cores, and max-min shares of L2 and HBM.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

from simulator.die.kernels import Work, cost_of
from simulator.probe.kernel import Kernel
from simulator.probe.part import number
from simulator.probe.record import Record, Row
from simulator.program.rank import Rank
from simulator.spec.kernels import KernelSpec
from simulator.spec.machine import ChipSpec
from simulator.study.scenario import Case, Part, Scenario, Workload
from simulator.study.simulate import simulate
from simulator.units import PS_PER_S

GIVEN, LEAD = "given", "lead"
STREAMS = ("ahead", "beside")
COUNTED_FLOPS = 1e12  # what the compute of given kernels is counted in, per second and chip
LATENCY_SHARE = 0.5  # of a kernel's time alone that is latency, at most
PLENTY = 1e3  # times the rates of HBM and L2 that two streams cannot exhaust
ENGINES = {"device_copy": "copy_engine"}  # what a family runs on, unless on SMs


class Given(NamedTuple):
    """A kernel whose time alone is given: what it needs beside. pool: the cores that it runs on. tiles: that its
    compute is cut in, of tile_s each on one core, so that it wants no more of them. hbm_rate_bytes_per_s: that it reads
    HBM with at most (inf: any)."""

    kind: str
    latency_s: float
    pool: str
    tiles: int
    tile_s: float
    onchip_bytes: float
    hbm_bytes: float
    hbm_rate_bytes_per_s: float = inf


@dataclass(frozen=True)
class StreamTimes:
    """One of two streams. start_s: of its first kernel. alone_s, measured_s, simulated_s: ends of its kernels, from the
    instant that both streams start from: alone and together as measured (medians), together as simulated.
    uncontended_s: of the last one, simulated with HBM and L2 for all, so that streams share nothing but cores. spread:
    of its measured time together, the half of what the middle 80% of repeats span, as a share of the median."""

    kernel: Kernel
    start_s: float
    alone_s: tuple[float, ...]
    measured_s: tuple[float, ...]
    simulated_s: tuple[float, ...]
    uncontended_s: float
    spread: float

    @property
    def stretch(self) -> float:
        """Measured time together over time alone."""
        return (self.measured_s[-1] - self.start_s) / self.alone_s[-1]

    @property
    def simulated_stretch(self) -> float:
        """The same as simulated."""
        return (self.simulated_s[-1] - self.start_s) / self.alone_s[-1]

    @property
    def error(self) -> float:
        """Simulated over measured time, less 1."""
        return self.simulated_stretch / self.stretch - 1.0


@dataclass(frozen=True)
class PairTimes:
    """Two streams side by side."""

    title: str
    streams: tuple[StreamTimes, StreamTimes]

    @property
    def measured_s(self) -> float:
        """Until both have ended, from the first start on."""
        return self._until([one.measured_s[-1] for one in self.streams])

    @property
    def simulated_s(self) -> float:
        """The same as simulated."""
        return self._until([one.simulated_s[-1] for one in self.streams])

    @property
    def free_s(self) -> float:
        """The same if neither slowed the other."""
        return self._until([one.start_s + one.alone_s[-1] for one in self.streams])

    @property
    def serial_s(self) -> float:
        """The same if they ran one after the other."""
        return sum(one.alone_s[-1] for one in self.streams)

    def _until(self, ends: Sequence[float]) -> float:
        return max(ends) - min(one.start_s for one in self.streams)


def given(kernel: Kernel, alone_s: float, chip: ChipSpec, families: dict[str, KernelSpec]) -> Given:
    """What a kernel needs that takes so long alone. It moves no more bytes than the chip can in that time, and its
    latency leaves time to move them."""
    kind, sms = kernel.family.partition("_")[0], chip.cores["sm"].count
    hbm_rate, l2_rate = chip.hbm.peak.si * chip.hbm.efficiency.si, chip.l2.rate.si
    hbm_bytes = min(kernel.hbm_bytes(chip.l2.capacity.si), hbm_rate * alone_s)
    family = "vector" if kernel.family == "elementwise" else kernel.family
    if family not in families:  # no law: as many cores as it has thread blocks, or all
        pool = ENGINES.get(kernel.family, "sm")
        tiles = kernel["blocks"] if kernel.family == "copy_loop" else 1 if pool != "sm" else sms
        return Given(kind, 0.0, pool, tiles, alone_s, min(kernel.moved_bytes, l2_rate * alone_s), hbm_bytes)
    cost = cost_of(kernel.work(), chip, families)
    onchip_bytes = min(max(cost.onchip_bytes, hbm_bytes), l2_rate * alone_s)
    moving_s = max(onchip_bytes / l2_rate, hbm_bytes / hbm_rate)
    latency_s = max(min(cost.latency_s, LATENCY_SHARE * alone_s, alone_s - moving_s), 0.0)
    left_s, waves = alone_s - latency_s, ceil(cost.tiles / cost.want)
    hbm_s, compute_s = hbm_bytes / min(cost.hbm_rate_bytes_per_s, hbm_rate), cost.compute_s(cost.want)
    if hbm_s <= max(compute_s, onchip_bytes / l2_rate):
        return Given(kind, latency_s, "sm", cost.tiles, left_s / waves, onchip_bytes, hbm_bytes)
    return Given(kind, latency_s, "sm", cost.tiles, cost.tile_s * left_s / hbm_s, onchip_bytes, hbm_bytes,
                 hbm_bytes / left_s)  # fmt: skip


def compare(record: Record, chip: ChipSpec, families: dict[str, KernelSpec]) -> Iterator[PairTimes]:
    """Every pair of streams that was measured, as simulated on this chip."""
    for row in record.measured("streams"):
        yield _compared(row, chip, families)


def _compared(row: Row, chip: ChipSpec, families: dict[str, KernelSpec]) -> PairTimes:
    kernels = [[Kernel.of(one) for one in stream] for stream in row["streams"]]
    starts = [median(timeline[number][0][0] for timeline in row["together"]) for number in range(2)]
    ends = [_ends([timeline[number] for timeline in row["together"]]) for number in range(2)]
    alone = [_since_start(repeats) for repeats in row["alone"]]
    streams = [[given(kernel, end - before, chip, families) for kernel, before, end
                in zip(own, (0.0, *times), times, strict=False)] for own, times in zip(kernels, alone, strict=True)]
    since = [start - min(starts) for start in starts]
    simulated, uncontended = simulated_ends(streams, since, chip), simulated_ends(streams, since, chip, PLENTY)
    found = []
    for each in range(2):
        whole = [timeline[each][-1][1] - timeline[each][0][0] for timeline in row["together"]]
        found.append(StreamTimes(kernels[each][0], starts[each], alone[each], ends[each],
                                 tuple(min(starts) + end for end in simulated[each]),
                                 min(starts) + uncontended[each][-1], _spread(whole)))
    return PairTimes(row["title"], (found[0], found[1]))


def _ends(repeats: Sequence[Sequence[Sequence[float]]]) -> tuple[float, ...]:
    """Medians over repeats of when each kernel of a stream ended."""
    return tuple(median(timeline[number][1] for timeline in repeats) for number in range(len(repeats[0])))


def _since_start(repeats: Sequence[Sequence[Sequence[float]]]) -> tuple[float, ...]:
    """The same, from the start of the first kernel on."""
    return tuple(median(timeline[number][1] - timeline[0][0] for timeline in repeats)
                 for number in range(len(repeats[0])))  # fmt: skip


def _spread(times: Sequence[float]) -> float:
    ordered, cut = sorted(times), len(times) // 10
    return (ordered[len(times) - 1 - cut] - ordered[cut]) / 2.0 / median(times)


def simulated_ends(streams: Sequence[Sequence[Given]], starts: Sequence[float], chip: ChipSpec,
                   memory: float = 1.0) -> list[list[float]]:  # fmt: skip
    """When the kernels of each stream end, in seconds from 0 on, if streams start at these times.

    memory: HBM and L2 are so many times as fast as the chip's, and kernels alone as fast as they were.
    """
    with tempfile.TemporaryDirectory(prefix="braid-probe-") as folder:
        path = Path(folder) / "two_streams.toml"
        path.write_text(_machine(streams, starts, chip, memory), encoding="utf-8")
        result = simulate(_scenario(path, streams, starts, chip))
    columns = result.columns
    ends: dict[str, list[float]] = {name: [] for name in STREAMS}
    for stream, name, end_ps in zip(columns["stream"], columns["name"], columns["end_ps"].tolist(), strict=True):
        if name != LEAD:
            ends[stream].append(end_ps / PS_PER_S)
    return [sorted(ends[name]) for name in STREAMS[: len(streams)]]


def _scenario(path: Path, streams: Sequence[Sequence[Given]], starts: Sequence[float], chip: ChipSpec) -> Scenario:
    """All kernels launched at once, stream by stream; each is a family of its own."""

    def program(npu: Rank, case: Case) -> None:
        for own, (kernels, start_s) in enumerate(zip(streams, starts, strict=True)):
            with npu.stream(STREAMS[own]):
                if start_s > 0:
                    npu.launch(Work(f"lead_{own}", kind="delay", dtype="fp32"), LEAD)
                for place, one in enumerate(kernels):
                    npu.launch(_work(f"{GIVEN}_{own}_{place}", one, chip), f"{one.kind} {place}")

    return Scenario(name="two streams", title="two streams", machine=str(path), model="llama_3_1_8b", kernels=GIVEN,
                    cards=1, batch=Part(), knobs=Part(), workload=Workload(program))  # fmt: skip


def _work(family: str, one: Given, chip: ChipSpec) -> Work:
    """A given kernel in the words of programs."""
    flops = one.tile_s * one.tiles * COUNTED_FLOPS / chip.cores[one.pool].count
    return Work(family, kind=one.kind, dtype="fp32", streamed_bytes=one.hbm_bytes, vector_flops=flops,
                cached_bytes=max(one.onchip_bytes - one.hbm_bytes, 0.0))  # fmt: skip


def _machine(streams: Sequence[Sequence[Given]], starts: Sequence[float], chip: ChipSpec, memory: float) -> str:
    """A machine file: the chip, a host that launches at once, and a kernel family for each given kernel."""

    def said(value: float, unit: str) -> str:
        return number(value, unit, "derived", "the chip that was measured, kernels as given", expression="as it is",
                      digits=15)

    hbm_peak = chip.hbm.peak.si * memory
    pools = {**{name: count.count for name, count in chip.cores.items()}, LEAD: len(streams)}
    lines = ['name = "two_streams"', 'title = "the chip that was measured"', 'doc = ""',
             f"dies_per_card = {said(1, '1')}", "[host]",
             *(f"{name} = {said(0, 'us')}" for name in ("launch_eager", "launch_graph", "device_read")),
             "[[fabric]]", 'name = "node"', 'kind = "switch"', 'ports = "die"', f"size = {said(1, '1')}",
             f"link_rate = {said(1, 'GB/s')}", f"latency = {said(0, 'us')}", "[collectives]",
             "[chip]", f'name = "{chip.name}"', f"clock = {said(chip.clock.si, 'Hz')}",
             f"hbm.capacity = {said(chip.hbm.capacity.si, 'B')}", f"hbm.peak = {said(hbm_peak, 'B/s')}",
             f"hbm.efficiency = {said(chip.hbm.efficiency.si, '1')}", f"hbm.usable = {said(1, '1')}",
             f"l2.capacity = {said(chip.l2.capacity.si, 'B')}", f"l2.rate = {said(chip.l2.rate.si * memory, 'B/s')}"]
    for pool, count in pools.items():
        lines += [f"cores.{pool} = {said(count, '1')}", f"l2.port_rate.{pool} = {said(inf, 'B/s')}",
                  f"peak.{pool}.fp32 = {said(COUNTED_FLOPS, 'FLOPS')}"]  # fmt: skip
    for own, (kernels, start_s) in enumerate(zip(streams, starts, strict=True)):
        lines += _family(f"lead_{own}", LEAD, said(start_s, "s"), said(1, "B"), "", said)
        for place, one in enumerate(kernels):
            share = one.hbm_rate_bytes_per_s / hbm_peak
            hbm_share = f"hbm_share = {said(min(share, 1.0), '1')}" if share < inf else ""
            lines += _family(f"{GIVEN}_{own}_{place}", one.pool, said(one.latency_s, "s"),
                             said(max(one.onchip_bytes, one.hbm_bytes) / (one.tiles - 0.5), "B"), hbm_share, said)
    return "\n".join(lines) + "\n"


def _family(name: str, pool: str, floor: str, tile_bytes: str, hbm_share: str,
            said: Callable[[float, str], str]) -> list[str]:
    return [f"[kernels.{GIVEN}.{name}]", 'law = "vector"', f"cores.{pool} = {said(1, '1')}", f"floor = {floor}",
            f"tile_bytes = {tile_bytes}", *([hbm_share] if hbm_share else [])]
