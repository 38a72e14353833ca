"""One class per exchange against the reference, one flow per pair: the same when symmetric, close when it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.model.routing import Drawn
from simulator.program.rank import Rank
from simulator.program.world import OfSome, record_world
from simulator.spec.load import override
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import validate
from tests.die.machines import level
from tests.law.replay.clusters import SLOW_MEMORY, TWO_LEVELS, Cluster, symmetric
from tests.replay.small import TINY, Run, everybody, passes_mb, replay, run, tiny

KB = 1000


def joined(*levels: dict[str, Any]) -> MachineSpec:
    """The tiny machine's dies on another fabric."""
    return validate(MachineSpec, {**TINY.model_dump(), "name": "joined", "fabric": list(levels)}, "joined")


MESHES = joined(level("node", "mesh", 4, 0.4, 1), level("top", "switch", 2, 1.5, 3, ports="die"))
THREE_BY_THREE = joined(level("node", "switch", 3, 2, 1), level("top", "switch", 3, 1.5, 3))
TIERS = joined(level("node", "switch", 2, 2, 1), level("net", "switch", 2, 0.7, 3, ports="die"),
               level("spine", "switch", 2, 1, 5))  # fmt: skip
BUSY_MEMORY = {"chip.hbm.peak": "14 GB/s"}  # 7 GB/s: an exchange alone fits (6 GB/s), a kernel beside it does not


def clock(done: Run) -> dict[tuple[int, int], tuple[int, ...]]:
    """When every task was issued, ready, started and ended; solo times of single messages know less of shared links."""
    return {task: times[:4] for task, times in done.times().items()}


def on_one_switch(machine: MachineSpec) -> MachineSpec:
    """The same memory and host, without levels."""
    memory, host = str(machine.chip.hbm.peak), str(machine.host.launch_eager)
    return override(TINY, {"chip.hbm.peak": memory, "host.launch_eager": host})


@settings(deadline=None, max_examples=80)
@given(symmetric.map(lambda cluster: replace(cluster, machine=on_one_switch(cluster.machine))))
def test_classes_equal_pairs_where_all_pairs_are_alike(cluster: Cluster) -> None:
    world = cluster.world()
    pairs = clock(replay(world, cluster.machine, exchange="pairwise"))
    for mode in ("auto", "classes"):
        assert clock(replay(world, cluster.machine, exchange=mode)) == pairs


@settings(deadline=None, max_examples=80)
@given(symmetric, st.sampled_from([TWO_LEVELS, MESHES]))
def test_classes_equal_pairs_where_routes_differ(cluster: Cluster, machine: MachineSpec) -> None:
    """Pairs in a node end earlier than those across nodes and leave room to another exchange: a class for each way."""
    world = cluster.world()
    pairs = clock(replay(world, machine, exchange="pairwise"))
    for mode in ("auto", "classes"):
        assert clock(replay(world, machine, exchange=mode)) == pairs


@pytest.mark.parametrize("some", [[(0, 1), (2, 3)], [(0, 2, 3)]])
def test_groups_of_some_ranks_share_links_of_a_mesh_with_those_of_all(some: list[tuple[int, ...]]) -> None:
    """Links that the group of some loads too end later than the others: a class of their own, by role as without."""
    machine = joined(level("node", "mesh", 4, 0.1, 1))

    def program(npu: Rank) -> None:
        with npu.stream("comm"):
            npu.group("world").all_to_all("all", 100 * KB, "dma")
        if any(npu.rank in members for members in some):
            npu.group("some").all_gather("some", 400 * KB, "aiv")

    world = record_world(program, 4, {**everybody(4), "some": OfSome(some)}, lambda _: {})
    pairs = clock(replay(world, machine, exchange="pairwise"))
    assert clock(replay(world, machine)) == pairs
    assert clock(replay(world, machine, fold=True)).items() <= pairs.items()


@settings(deadline=None, max_examples=40)
@given(symmetric, st.integers(2, 9), st.sampled_from([THREE_BY_THREE, TIERS]))
def test_classes_are_within_5_percent_of_pairs_where_nodes_are_not_full(
    cluster: Cluster, ranks: int, machine: MachineSpec
) -> None:
    world = replace(cluster, ranks=min(ranks, machine.dies)).world()
    pairs = replay(world, machine, exchange="pairwise").makespan_ps
    assert replay(world, machine).makespan_ps == pytest.approx(pairs, rel=0.05)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0, 0.25), st.sampled_from(["dma", "aiv"]),
       st.sampled_from([{}, BUSY_MEMORY]))
def test_skewed_exchanges_by_sender_are_within_5_percent_of_pairs(
    seed: int, ranks: int, skew: float, engine: str, memory: dict[str, str]
) -> None:
    sizes = Drawn((128,) * ranks, 8 * ranks, 4, skew, (seed,)).sizes(KB)

    def program(npu: Rank) -> None:
        npu.launch(passes_mb(0.1), "before")
        npu.group("world").all_to_all_uneven("dispatch", sizes, engine)
        npu.launch(passes_mb(0.1), "after")

    pairs = run(program, ranks, machine=tiny(memory), exchange="pairwise")
    classes = run(program, ranks, machine=tiny(memory), exchange="classes")
    assert classes.makespan_ps == pytest.approx(pairs.makespan_ps, rel=0.05)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 6), st.sampled_from(["dma", "aiv"]), st.integers(1, 60), st.sampled_from(["auto", "classes"]),
       st.sampled_from(["all_to_all", "all_gather", "uneven"]), st.sampled_from([{}, SLOW_MEMORY, BUSY_MEMORY]))
def test_a_busy_rank_beside_an_exchange_is_within_5_percent_of_pairs(
    ranks: int, engine: str, kernels: int, mode: str, kind: str, memory: dict[str, str]
) -> None:
    memory = BUSY_MEMORY if memory and kind == "uneven" else memory

    def program(npu: Rank) -> None:
        world = npu.group("world")
        with npu.stream("comm"):
            if kind == "uneven":
                row = tuple((90 + 5 * target) * KB for target in range(ranks))
                world.all_to_all_uneven("exchange", (row,) * ranks, engine)
            else:
                getattr(world, kind)("exchange", 100 * KB, engine)
        if npu.coordinate("busy"):
            for number in range(kernels):
                npu.launch(passes_mb(0.05), f"kernel {number}")

    def busy(rank: int) -> dict[str, object]:
        return {"busy": rank == 0}

    pairs = run(program, ranks, machine=tiny(memory), place=busy, exchange="pairwise")
    classes = run(program, ranks, machine=tiny(memory), place=busy, exchange=mode)
    assert classes.makespan_ps == pytest.approx(pairs.makespan_ps, rel=0.05)


@pytest.mark.parametrize("mode", ["auto", "classes", "pairwise"])
def test_an_exchange_and_a_kernel_share_hbm_alike_in_every_mode(mode: str) -> None:
    """A rank's share of an exchange counts as one flow against its kernels, however many messages it is made of."""
    def program(npu: Rank) -> None:
        with npu.stream("comm"):
            npu.group("world").all_to_all("exchange", 100 * KB, "dma")
        npu.launch(passes_mb(1), "kernel")

    done = run(program, 4, machine=tiny({"chip.hbm.peak": "4 GB/s"}), exchange=mode)
    kernel_gb_s = 2 / 7  # equal bytes of their own, and the exchange moves six in HBM for each of these
    assert done.lasts_us("exchange") == pytest.approx(300 / kernel_gb_s, rel=0.02)
    assert TINY.chip.hbm.efficiency.si == 0.5
