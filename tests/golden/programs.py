"""One small program per mechanism, on machines with round numbers; `MECHANISMS` maps a name to the run's columns.

On the tiny machine 1 MB takes 10 us of HBM, 2.5 us of L2 and 1 ms of a wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from simulator.live.thread import Label
from simulator.model import ops
from simulator.program.rank import Rank
from simulator.spec.load import load_machine, override
from simulator.study.library import load_scenario
from simulator.study.scenario import Case, Workload
from simulator.study.simulate import simulate
from tests.live.live_hosts import ROUND
from tests.replay.small import passes_mb, run, tiny

if TYPE_CHECKING:
    from simulator.observe.columns import Columns

MB = 10**6
TWO_NODES = override(load_machine("atlas_a2"), {
    "collectives.sdma.startup": "10 us", "collectives.sdma.transfer_bytes": "0", "collectives.sdma.copy_bytes": "0",
    "collectives.sdma.ladder.default.0.rate": "196 GB/s", "collectives.sdma.ladder.default.1.rate": "196 GB/s",
    "collectives.sdma.ladder.send.0.rate": "25 GB/s", "host.launch_eager": "0 us",
})  # fmt: skip


def two_streams() -> Columns:
    """Two micro-batches on a die: HBM is shared, cores are not; the last kernel waits for both."""

    def program(npu: Rank) -> None:
        for layer in range(3):
            for batch in range(2):
                with npu.scope(layer, batch), npu.stream(f"batch {batch}"):
                    npu.launch(ops.gemm(400, 400, 1000, "bf16"), "project")
                    npu.launch(passes_mb(1 + batch), "norm")
        with npu.stream("batch 1"):
            other = npu.record()
        with npu.stream("batch 0"):
            npu.wait(other)
            npu.launch(passes_mb(1), "join")

    return run(program).columns


def prefetch_under_a_collective() -> Columns:
    """Weights come into L2 while a ReduceScatter leaves HBM idle; in the second layer nothing fetches them ahead."""

    def program(npu: Rank) -> None:
        for layer in range(2):
            with npu.scope(layer):
                npu.launch(passes_mb(1), "attend")
                if layer == 0:
                    before = npu.record()
                    with npu.stream("prefetch"):
                        npu.wait(before)
                        npu.prefetch(f"weights {layer}", 4 * MB, pieces=2)
                npu.group("world").reduce_scatter("reduce", MB // 10, "dma")
                npu.launch(ops.gemm(100, 2000, 1000, "bf16", weights=f"weights {layer}"), "project")

    return run(program, 2, machine=tiny({"chip.peak.cube.bf16": "40 TFLOPS"})).columns


def communication_beside_communication() -> Columns:
    """Two gathers side by side want more than the port of 1.2 GB/s has; then the same one after the other."""

    def program(npu: Rank) -> None:
        world = npu.group("world")
        with npu.scope(0):
            with npu.stream("scales"):
                scales = world.all_gather("scales", MB // 10, "aiv")
            world.all_gather("activations", MB, "dma")
            npu.wait(scales)
            npu.launch(passes_mb(1), "both are here")
        with npu.scope(1):
            world.all_gather("scales", MB // 10, "aiv")
            world.all_gather("activations", MB, "dma")

    return run(program, 4, machine=tiny({"fabric.box.link_rate": "1.2 GB/s"})).columns


def _asking(npu: Rank, case: Case) -> None:
    npu.program.captured = True
    npu.launch(ops.copy(1e6), "before")
    npu.set_flag("ask", "asked")
    npu.wait_flag("answer", "answered", (("sm", 100),))
    npu.launch(ops.copy(1e6), "after")


def _writing(host: Any, case: Case) -> Any:
    """Every host writes to the other one when its GPU has asked, and answers once it has been written to."""
    host.engine.count(Label("pages"), "told", 1, gpu_flag="answered")
    seen = yield from host.until_flag("asked")
    yield from host.engine.scatter(host.proxy, Label("pages"), [((host.rank + 1) % case.ranks, 200_000)], "told", seen)


def host_proxy() -> Columns:
    """A GPU asks its host by a flag, the host's proxy posts a write, the NICs carry it, a flag tells the other GPU."""
    nothing: Any = lambda *_: {}  # noqa: E731
    workload = Workload(_asking, nothing, nothing, lambda _: [], lambda _, s: {"latency_ms": s * 1e3}, _writing)
    changes = {f"machine.{key}": text for key, text in ROUND.items()}
    scenario = load_scenario("pplx:efa_ep16").variant(name="proxy", cards=2, expected=(), workload=workload)
    return simulate(scenario.replace(changes)).columns


def put_and_collect() -> Columns:
    """Puts wait for nobody; rank 3 writes late, and who collects waits for it."""

    def program(npu: Rank) -> None:
        if npu.rank == 3:
            npu.launch(passes_mb(20), "work")
        here = npu.record()
        with npu.stream("comm"):
            npu.wait(here)
            npu.group("world").put("write", 3 * MB // 10, 3 * MB // 10, "aiv")
        npu.launch(passes_mb(10), "beside")
        with npu.stream("comm"):
            arrived = npu.group("world").collect("arrive", "aiv")
        npu.wait(arrived)
        npu.launch(passes_mb(1), "after")

    return run(program, 4).columns


def chunked_pipeline_over_nodes() -> Columns:
    """16 dies in two nodes, by roles: chunks cross between nodes while others spread inside; flat ones do not."""

    def program(npu: Rank) -> None:
        world = npu.group("world")
        for layer, algorithm in enumerate(("direct", "hierarchical")):
            with npu.scope(layer):
                with npu.stream("comm"):
                    gathered = world.all_gather("gather", 4 * MB, "sdma", algorithm)
                npu.launch(passes_mb(100), "shared")
                npu.wait(gathered)
                computed = npu.launch(passes_mb(200), "experts")
                with npu.stream("comm"):
                    npu.wait(computed)
                    reduced = world.reduce_scatter("reduce", 4 * MB, "sdma", algorithm)
                npu.wait(reduced)
                npu.launch(passes_mb(10), "norm")

    return run(program, 16, machine=TWO_NODES, fold=True).columns


def uneven_ranks() -> Columns:
    """Every rank has more to do than the one before, and sends more; what they wait for each other is no work."""
    sizes = tuple(tuple(0 if to == rank else (rank + 1) * MB // 10 for to in range(4)) for rank in range(4))

    def program(npu: Rank) -> None:
        npu.launch(passes_mb(10 * (npu.rank + 1)), "attend")
        npu.group("world").all_to_all_uneven("dispatch", sizes, "dma")
        npu.launch(passes_mb(4 - npu.rank), "experts")
        npu.group("world").barrier("meet", "dma")

    return run(program, 4).columns


def a_changing_rate() -> Columns:
    """HBM of rank 0 is throttled to half from 15 us to 60 us, the link of rank 1 is cut for 500 us in the gather."""

    def program(npu: Rank) -> None:
        for layer in range(2):
            with npu.scope(layer):
                npu.launch(passes_mb(2), "attend")
                npu.group("world").all_gather("gather", MB // 10, "dma")
                npu.launch(passes_mb(1), "norm")

    faults = ["15 us: rank 0 hbm 0.5 for 45 us", "100 us: link die 1 - box 0 cut for 500 us"]
    return run(program, 2, faults=faults).columns


MECHANISMS: Mapping[str, Callable[[], Columns]] = {
    one.__name__: one
    for one in (two_streams, prefetch_under_a_collective, communication_beside_communication, host_proxy,
                put_and_collect, chunked_pipeline_over_nodes, uneven_ranks,
                a_changing_rate)
}  # fmt: skip
