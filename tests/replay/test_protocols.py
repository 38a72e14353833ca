"""Collectives of algorithm "auto" in a replay, on a machine of parts: alone, over nodes, beside each other."""

from __future__ import annotations

import pytest

from simulator.calibrate.collectives import simulated
from simulator.calibrate.protocol_fit import Row
from simulator.program.rank import Rank
from simulator.spec.load import load_machine
from tests.replay.small import run

B200 = load_machine("dgx_b200")
ENGINES = ("nccl", "custom_all_reduce_vllm", "custom_all_reduce_sglang", "custom_all_reduce_trtllm")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [2**13, 2**18, 2**22, 2**26])
def test_a_replay_takes_what_the_calibration_compares(engine: str, size: int) -> None:
    ran = run(lambda npu: npu.group("world").all_reduce("sum", size, engine, "auto"), 8, machine=B200)
    compared_s = simulated(B200, engine, "all_reduce")(Row(8, size, 0.0))
    assert ran.lasts_us("sum") == pytest.approx(compared_s * 1e6, rel=1e-4)


def test_over_nodes_it_is_a_ring_and_slower_than_in_one() -> None:
    def program(npu: Rank) -> None:
        npu.group("world").all_reduce("sum", 2**26, "nccl", "auto")

    one, two = (run(program, ranks, machine=B200) for ranks in (8, 16))
    assert two.lasts_us("sum") > one.lasts_us("sum")
    assert two.moved["link", "die 0", "cluster 0"] > 0


def test_sums_of_two_libraries_share_the_ports() -> None:
    def program(npu: Rank, engines: tuple[str, ...]) -> None:
        for engine in engines:
            with npu.stream(engine):
                npu.group("world").all_reduce(engine, 2**28, engine, "auto")

    engines = "nccl", "custom_all_reduce_sglang"
    both = run(lambda npu: program(npu, engines), 8, machine=B200)
    assert both.most["link", "die 0", "node 0"] == pytest.approx(B200.fabric[0].link_rate.si)
    for engine in engines:
        alone = run(lambda npu, engine=engine: program(npu, (engine,)), 8, machine=B200)
        assert both.lasts_us(engine) > 1.1 * alone.lasts_us(engine)
