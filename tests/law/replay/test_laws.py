"""Laws of whole runs: bytes, cores, scale and repetition. `run` checks capacities and timelines on every run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.collective.transfer import CapacityKey
from simulator.program.rank import Rank
from simulator.program.world import record_world
from simulator.replay import tape
from simulator.spec.load import override
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import quantities
from tests.law.replay.clusters import SLOW_MEMORY, TWO_LEVELS, Cluster, clusters
from tests.law.timeline_laws import check_serial
from tests.replay.small import TINY, Run, passes_mb, replay, run, tiny

KB = 1000


def wire_and_memory(done: Run) -> Counter[CapacityKey]:
    """What all programs ask of links and of HBM, from kernels' sizes and lowered exchanges."""
    asked: Counter[CapacityKey] = Counter()
    lowering = done.replay.meetings.lowering
    for rank, program in enumerate(done.world.programs):
        communication = {task.index for task, _ in program.collectives()}
        for npu_task, cost in zip(program.tasks, done.replay.npus[rank].tape.costs, strict=True):
            if npu_task.index not in communication and cost:
                asked["hbm", rank] += cost.hbm_bytes
                asked["l2", rank] += cost.onchip_bytes
    for name, instances in done.world.groups.items():
        for members in instances:
            for _, collective in done.world.programs[members[0]].collectives():
                if collective.group == name:
                    for phase in lowering.lower(collective, members):
                        for transfer in phase.transfers:
                            asked.update(dict(transfer.loads))
    return asked


@settings(deadline=None, max_examples=60)
@given(clusters)
def test_bytes_moved_are_bytes_asked(cluster: Cluster) -> None:
    done = replay(cluster.world(), cluster.machine)
    asked = {key: load for key, load in wire_and_memory(done).items() if load}
    moved = {key: load for key, load in done.moved.items() if load}
    assert moved == pytest.approx(asked, rel=1e-6, abs=1e-2)  # the last picosecond of a flow is rounded up


@settings(deadline=None, max_examples=40)
@given(clusters)
def test_the_table_says_what_a_rank_moves_through_hbm(cluster: Cluster) -> None:
    done = replay(cluster.world(), cluster.machine)
    whole_bytes = 4 * cluster.ranks * len(cluster.script)  # both ends of each message are rounded, by half a byte each
    for rank in range(cluster.ranks):
        assert done.hbm_asked(rank) == pytest.approx(done.moved.get(("hbm", rank), 0.0), rel=1e-6, abs=whole_bytes)


def test_the_table_leaves_out_what_a_kernel_found_in_l2() -> None:
    def program(npu: Rank) -> None:
        for name in ("cold", "warm"):
            npu.launch(replace(passes_mb(5), weight_bytes=3e6, weights="layer"), name)

    done = run(program)
    assert (done.row("cold")["hbm_bytes"], done.row("warm")["hbm_bytes"]) == (8e6, 5e6)
    assert done.hbm_asked() == pytest.approx(done.moved["hbm", 0], rel=1e-6)


@pytest.mark.parametrize("mode", ["auto", "classes", "pairwise"])
def test_the_table_leaves_out_what_an_uneven_exchange_keeps_at_home(mode: str) -> None:
    sizes = ((900, 100, 100), (100, 900, 100), (100, 100, 900))

    def program(npu: Rank) -> None:
        npu.group("world").all_to_all_uneven("dispatch", tuple(tuple(KB * s for s in row) for row in sizes), "dma")

    done = run(program, 3, exchange=mode)
    assert done.row("dispatch")["wire_bytes"] == 200 * KB
    assert done.row("dispatch")["hbm_bytes"] == pytest.approx(done.moved["hbm", 0]) == 6 * 200 * KB


@settings(deadline=None, max_examples=40)
@given(clusters)
def test_the_same_world_runs_the_same_way_again(cluster: Cluster) -> None:
    first, second = (replay(cluster.world(), cluster.machine) for _ in range(2))
    assert first.times() == second.times()
    assert first.columns["bound_by"].tolist() == second.columns["bound_by"].tolist()


@settings(deadline=None, max_examples=40)
@given(clusters, st.booleans())
def test_a_stream_alone_on_its_cores_finds_what_it_would_be_granted(cluster: Cluster, confined: bool) -> None:
    def program(npu: Rank) -> None:
        if confined:
            npu.confine("one", {"cube": 2, "vector": 4})
            npu.confine("two", {"cube": 2, "vector": 4})
        cluster.program(npu)

    def times() -> object:
        world = record_world(program, cluster.ranks, cluster.groups, lambda rank: {"odd": rank == cluster.odd})
        return replay(world, cluster.machine).times()

    found = times()
    with patch.object(tape, "_find_exclusive"):
        assert times() == found


def faster(machine: MachineSpec, factor: int) -> MachineSpec:
    """All rates times `factor`, all times divided by it."""
    changes = {}
    for key, number in quantities(machine):
        if number.dimension in ("B/s", "FLOP/s"):
            changes[key] = f"{number.value * factor!r} {number.unit}"
        elif number.dimension == "s":
            changes[key] = f"{number.value / factor!r} {number.unit}"
    return override(machine, changes)


@settings(deadline=None, max_examples=40)
@given(clusters)
def test_a_machine_twice_as_fast_halves_every_time(cluster: Cluster) -> None:
    world = cluster.world()
    slow, fast = replay(world, cluster.machine), replay(world, faster(cluster.machine, 2))
    assert slow.times().keys() == fast.times().keys()
    for task, times in slow.times().items():
        slack = 2 * (len(slow.times()) + 1)  # every duration is rounded up to a picosecond once
        assert fast.times()[task] == pytest.approx([time / 2 for time in times], rel=0, abs=slack)


@pytest.mark.parametrize("factor", [2, 4, 64])
@pytest.mark.parametrize("machine", [TINY, TWO_LEVELS, tiny(SLOW_MEMORY)], ids=["one level", "two levels", "slow HBM"])
def test_times_scale_to_the_picosecond(factor: int, machine: MachineSpec) -> None:
    def program(npu: Rank) -> None:
        world = npu.group("world")
        with npu.stream("comm"):
            gathered = world.all_gather("gather", 1_200_000, "dma")
        npu.launch(passes_mb(1.6), "beside")
        npu.host_wait(gathered, reads=2)
        npu.wait(gathered)
        world.all_to_all("dispatch", 1_200_000, "aiv")

    slow, fast = run(program, 4, machine=machine), run(program, 4, machine=faster(machine, factor))
    for task, times in slow.times().items():
        assert fast.times()[task] == pytest.approx([time / factor for time in times], rel=0, abs=2)  # of 10**9


@settings(deadline=None, max_examples=30)
@given(clusters)
def test_one_stream_alone_is_the_serial_sum(cluster: Cluster) -> None:
    kernels = tuple(each for each in cluster.script if each[0] == "kernel")
    one_stream = tuple((what, "one", *how) for what, _, *how in kernels)
    if one_stream:
        check_serial(replay(Cluster(cluster.ranks, cluster.machine, one_stream).world(), cluster.machine).columns)
