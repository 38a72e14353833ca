"""Programmatic dependent launch: what of a kernel's latency may run beside the launch before it; one-shot AllReduce."""

from __future__ import annotations

import pytest

from simulator.model import ops
from simulator.program.rank import Rank
from simulator.spec.load import load_machine, override
from tests.replay.small import run

B200 = load_machine("dgx_b200")
B200 = B200.model_copy(update={"kernels": {"trtllm_1_3": B200.kernels["trtllm_1_3"]}})
VECTOR = B200.kernels["trtllm_1_3"]["vector"]
US = 1e6


def three(npu: Rank, programmatic: bool) -> None:
    npu.program.captured = True
    npu.program.programmatic = programmatic
    for name in "abc":
        npu.launch(ops.cached(ops.rms_norm(1, 7168)), name)


def test_every_kernel_but_the_first_of_a_stream_begins_sooner_by_its_prologue() -> None:
    apart, beside = (run(lambda npu, on=on: three(npu, on), machine=B200) for on in (False, True))
    assert apart.makespan_ps - beside.makespan_ps == pytest.approx(2 * VECTOR.prologue.si * 1e12, abs=4)
    assert beside.lasts_us("a") == apart.lasts_us("a")
    assert beside.lasts_us("b") == pytest.approx(apart.lasts_us("b") - VECTOR.prologue.value, abs=1e-5)


def test_a_kernel_that_waits_for_another_stream_begins_after_it() -> None:
    def program(npu: Rank) -> None:
        npu.program.captured = npu.program.programmatic = True
        with npu.stream("other"):
            other = npu.launch(ops.cached(ops.rms_norm(1, 7168)), "other")
        npu.launch(ops.cached(ops.rms_norm(1, 7168)), "before")
        npu.wait(other)
        npu.launch(ops.cached(ops.rms_norm(1, 7168)), "joined")

    ran = run(program, machine=B200)
    assert ran.lasts_us("joined") == ran.lasts_us("before")


def test_kernels_whose_numbers_depend_on_the_rank_begin_sooner_too() -> None:
    def program(npu: Rank, by_rank: bool) -> None:
        npu.program.captured = npu.program.programmatic = True
        tokens = 1 if by_rank else npu.rank + 1
        for name in "abc":
            if by_rank:
                npu.launch_by_rank(lambda rank: ops.cached(ops.rms_norm(rank + 1, 7168)), name)
            else:
                npu.launch(ops.cached(ops.rms_norm(tokens, 7168)), name)

    shared, separate = (run(lambda npu, on=on: program(npu, on), 2, machine=B200) for on in (True, False))
    assert shared.times() == separate.times()


def test_a_prologue_runs_beside_the_start_up_of_an_exchange_whoever_its_peers_are() -> None:
    """A start-up of 0.1 us and 5 us per peer, before a kernel with a prologue of more: it begins 0.1 us sooner."""
    machine = override(B200, {"collectives.nccl.startup": "0.1 us", "collectives.nccl.startup_per_peer": "5 us"})

    def program(npu: Rank, programmatic: bool) -> None:
        npu.program.captured, npu.program.programmatic = True, programmatic
        npu.group("world").barrier("barrier", "nccl")
        npu.launch(ops.cached(ops.rms_norm(1, 7168)), "norm")

    apart, beside = (run(lambda npu, on=on: program(npu, on), 2, machine=machine) for on in (False, True))
    assert VECTOR.prologue.value > 0.1
    assert apart.lasts_us("norm") - beside.lasts_us("norm") == pytest.approx(0.1, abs=1e-5)


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_one_shot_all_reduce_sends_whole_buffers_in_one_phase(ranks: int) -> None:
    def program(npu: Rank, algorithm: str) -> None:
        npu.group("world").all_reduce("sum", 80_000, "one_shot", algorithm)

    one, two = (run(lambda npu, way=way: program(npu, way), ranks, machine=B200) for way in ("one_shot", "direct"))
    start, link = B200.collectives["one_shot"].startup.value, B200.fabric[0].latency.value
    rate = B200.collectives["one_shot"].rate_bytes_per_s("all_gather", 80_000)
    wire_us = 80_000 * (ranks - 1) / rate * US
    assert one.lasts_us("sum") == pytest.approx(start + link + wire_us, rel=1e-4)
    assert two.lasts_us("sum") == pytest.approx(2 * (start + link) + 2 * wire_us / ranks, rel=1e-4)
    assert one.row("sum")["wire_bytes"] == 80_000 * (ranks - 1)
