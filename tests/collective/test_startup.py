"""What a collective takes before its first byte: in a captured graph, launched by the host, and where it is small."""

from __future__ import annotations

import pytest

from simulator import paths
from simulator.collective.lowering import Lowering
from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.physics.flows import Capacity, Flow
from simulator.program.rank import Rank
from simulator.program.task import Collective
from simulator.replay.replay import rate_of
from simulator.spec.load import load_machine, override
from simulator.study.library import load_scenario
from simulator.study.scenario import Case, Workload
from simulator.study.simulate import simulate

A2 = load_machine("atlas_a2")
NODE = tuple(range(8))
FREE = {"host.launch_eager": "0 us", "host.launch_graph": "0 us"}


def seconds(kind: str, size: int, engine: str = "aiv", algorithm: str = "auto") -> float:
    """How long a collective of a node of Atlas A2 takes alone, in a graph."""
    fabric = Fabric(A2, len(NODE))
    collective = Collective(kind, "world", engine, size, algorithm=algorithm)
    total_s = 0.0
    for phase in Lowering(fabric, A2.collectives).lower(collective, NODE):
        flows = [Flow(one.size_bytes, [(Capacity(str(key), rate_of(key, A2, fabric)), moved / one.size_bytes)
                                       for key, moved in one.loads if moved]) for one in phase.transfers]  # fmt: skip
        total_s += phase.latency_s + max((flow.solo_s() for flow in flows), default=0.0)
    return total_s


@pytest.mark.parametrize("name", paths.names("topologies"))
def test_no_engine_starts_sooner_when_the_host_launches_it(name: str) -> None:
    machine = load_machine(name)
    for engine in machine.collectives.values():
        assert engine.launched_eagerly().startup_s(1) >= engine.startup_s(1)


def test_an_eager_start_up_below_that_of_a_graph_is_refused() -> None:
    with pytest.raises(InputError, match="startup_eager: got 5 us: a launch from the host takes at least as long"):
        override(A2, {"collectives.sdma.startup_eager": "5 us"})


def test_a_graph_saves_what_the_host_takes_to_put_a_collective_together() -> None:
    free = {"model.shapes.layers": "2", "machine.host.launch_eager": "0 us", "machine.host.launch_graph": "0 us"}
    graph, eager = (simulate(load_scenario("a2_flashcomm:llama_16").replace({**free, "knobs.graph": how}))
                    for how in ("decode", "never"))  # fmt: skip
    parts = 2 * (1 + 2 * 2) + 1  # AllReduces of the embedding and of each layer have two, the AllGather of the head one
    saved_us = (eager.makespan_ps - graph.makespan_ps) / 1e6
    assert saved_us == pytest.approx(parts * (60 - 10), rel=1e-6)
    assert "collectives.sdma.startup_eager" in {row["name"] for row in eager.parameters}
    assert "collectives.sdma.startup" in {row["name"] for row in graph.parameters}


def started_us(eager: set[int]) -> list[float]:
    """How long a first AllGather of pairs of ranks of one node takes each, of which these launch eagerly."""

    def program(npu: Rank, case: Case) -> None:
        npu.program.captured = npu.coordinate("captured")
        npu.group("pair").all_gather("gather", 1024, "sdma")

    workload = Workload(program, lambda case: {"pair": [(0, 1), (2, 3), (4, 5), (6, 7)]},
                        lambda case, rank: {"captured": rank not in eager}, lambda case: [], lambda case, seconds: {})
    result = simulate(load_scenario("a2_flashcomm:llama_16").variant(
        cards=8, workload=workload, expected=(), machine_changes=FREE), ranks="all")
    columns = result.columns
    return [(columns["end_ps"][rank] - columns["start_ps"][rank]) / 1e6 for rank in range(8)]


@pytest.mark.parametrize("eager", [set(), {0}, {0, 1}, {3, 6}, set(range(8))])
def test_a_host_that_launches_eagerly_delays_its_own_groups_alone(eager: set[int]) -> None:
    graph_us = started_us(set())[0]
    late = {rank ^ one for rank in eager for one in (0, 1)}
    assert started_us(eager) == pytest.approx([graph_us + (60 - 10) * (rank in late) for rank in range(8)], abs=1e-3)


@pytest.mark.parametrize("engine", ["sdma", "aiv"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_larger_buffers_never_take_less_time(kind: str, engine: str) -> None:
    sizes = [2**power + odd for power in range(3, 28) for odd in (0, 2**power // 2)]
    sizes += [190 * 1024, 190 * 1024 + 8, 32 * 10**6, 32 * 10**6 + 8]  # about the ends of protocols
    times = [seconds(kind, size, engine) for size in sorted(sizes)]
    assert times == sorted(times)


def test_small_sums_take_their_start_up_whatever_their_size() -> None:
    assert seconds("all_reduce", 4096) < 1.05 * seconds("all_reduce", 8)


def test_vector_cores_sum_small_buffers_in_one_shot_and_larger_ones_in_two() -> None:
    for size, algorithm in ((8 * 1024, "one_shot"), (512 * 1024, "direct")):
        own = A2.collectives["aiv"].protocols["one_shot" if algorithm == "one_shot" else "two_shot"]
        parts, shard = (1, size) if algorithm == "one_shot" else (2, size // 8)
        alone_s = parts * (own.startup.si + 0.5e-6 + 7 * shard / own.rate.si)
        assert seconds("all_reduce", size) == pytest.approx(alone_s, rel=1e-6)


def test_a_sum_in_one_kernel_starts_up_sooner_than_its_two_halves() -> None:
    size = 256 * 1024
    halves_s = seconds("reduce_scatter", size // 8) + seconds("all_gather", size // 8)
    assert seconds("reduce_scatter", size // 8) < seconds("all_reduce", size) < halves_s
