"""Random small clusters whose programs cannot deadlock: two streams, every exchange in the same order on every rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from simulator.model import ops
from simulator.model.layout import blocks, strides
from simulator.program.rank import Event, Rank
from simulator.program.world import Groups, World, record_world
from simulator.spec.load import override
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import validate
from tests.die.machines import level
from tests.replay.small import TINY

KB = 1000
STREAMS = ("one", "two")
TWO_LEVELS = validate(MachineSpec, {
    **TINY.model_dump(), "name": "two levels",
    "fabric": [level("node", "switch", 2, 2, 1), level("top", "switch", 4, 1.5, 3)],
}, "two levels")
SLOW_MEMORY = {"chip.hbm.peak": "10 GB/s"}  # so that exchanges and kernels contend for it


@dataclass(frozen=True)
class Cluster:
    """ranks; the machine; what every rank does; odd: the rank that does more (-1: none), and how much more."""

    ranks: int
    machine: MachineSpec
    script: tuple[tuple[Any, ...], ...]
    odd: int = -1
    more: int = 4

    @property
    def groups(self) -> Groups:
        """Everybody, and two ways to form pairs where the ranks allow it."""
        size = 2 if self.ranks % 2 == 0 else 1
        all_ranks = blocks(self.ranks, self.ranks)
        return {"world": all_ranks, "near": blocks(self.ranks, size), "far": strides(self.ranks, size)}

    def world(self) -> World:
        """Every rank's program."""
        return record_world(self.program, self.ranks, self.groups, lambda rank: {"odd": rank == self.odd})

    def program(self, npu: Rank) -> None:
        """The script, in launch order; ("wait", k) and ("block", k) refer to the k-th launch so far."""
        factor = self.more if self.odd >= 0 and npu.coordinate("odd") else 1
        events: list[Event] = []
        for number, (what, stream, *how) in enumerate(self.script):
            with npu.stream(stream):
                if what in ("wait", "block"):
                    if events:
                        event = events[how[0] % len(events)]
                        _ = npu.wait(event) if what == "wait" else npu.host_wait(event)
                elif what == "kernel":
                    family, size = how
                    work = ops.passes(size * factor * 10 * KB, 0) if family == "vector" else ops.gemm(
                        size * factor * 50, 200, 500, dtype=family)
                    events.append(npu.launch(work, f"{family} {number}"))
                elif what == "prefetch":
                    events.append(npu.prefetch(f"w{how[0] % 2}", how[0] * 10 * KB, how[0] % 3 * 40e9))
                elif what == "exchange":
                    size, engine = how[0] * KB * factor, how[1]
                    events.append(npu.group("world").put(f"put {number}", size, how[0] * KB, engine))
                    events.append(npu.group("world").collect(f"collect {number}", engine))
                else:
                    group, size, engine = how
                    sized = () if what == "barrier" else (size * KB,)
                    events.append(getattr(npu.group(group), what)(f"{what} {number}", *sized, engine))


stream = st.sampled_from(STREAMS)
kernel = st.tuples(st.just("kernel"), stream, st.sampled_from(["vector", "bf16", "int8"]), st.integers(1, 12))
collective = st.tuples(
    st.sampled_from(["all_to_all", "all_gather", "reduce_scatter", "all_reduce", "barrier"]),
    stream, st.sampled_from(["world", "near", "far"]), st.sampled_from([0, 12, 60, 240]),
    st.sampled_from(["dma", "aiv"]),
)
wait = st.tuples(st.sampled_from(["wait", "wait", "block"]), stream, st.integers(0, 20))
scripts = st.lists(st.one_of(kernel, collective, collective, wait), min_size=2, max_size=12).map(tuple)
machines = st.builds(
    lambda base, memory, host: override(base, {**memory, "host.launch_eager": host}),
    st.sampled_from([TINY, TWO_LEVELS]), st.sampled_from([{}, SLOW_MEMORY]), st.sampled_from(["0 us", "3 us"]))
symmetric = st.builds(Cluster, st.sampled_from([2, 3, 4, 8]), machines, scripts)
clusters = st.builds(lambda each, odd: replace(each, odd=odd % each.ranks), symmetric, st.integers(0, 7)) | symmetric

# one-sided exchanges and prefetches, for what runs apart from the network
MESH = validate(MachineSpec, {
    **TINY.model_dump(), "name": "mesh",
    "fabric": [level("package", "mesh", 2, 2, 1), level("top", "switch", 4, 3, 3)],
}, "mesh")
MEMORIES = ({}, SLOW_MEMORY, {"chip.hbm.peak": "30 GB/s"})
prefetch = st.tuples(st.just("prefetch"), st.just("prefetch"), st.integers(1, 40))
exchange = st.tuples(st.just("exchange"), stream, st.integers(0, 400), st.sampled_from(["dma", "aiv"]))
mixed = st.lists(st.one_of(kernel, kernel, exchange, prefetch, collective, wait), min_size=2, max_size=16).map(tuple)
UNROUND = {  # times that hardly ever meet in one picosecond, where the order of events decides
    "kernels.round.vector.floor": "1.003717 us", "kernels.round.gemm_bf16.floor": "2.009131 us",
    "kernels.round.gemm_int8.floor": "0.301709 us", "collectives.dma.startup": "10.017713 us",
    "collectives.aiv.startup": "4.005319 us", "fabric.0.latency": "1.000937 us",
}
crowds = st.builds(
    Cluster, st.sampled_from([2, 4]), st.builds(override, st.sampled_from([TINY, MESH]), st.sampled_from(MEMORIES)),
    mixed, st.integers(-1, 3),
)  # fmt: skip
