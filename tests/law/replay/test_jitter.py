"""Launches that are drawn rank by rank: nothing changes without, and a collective waits for the slowest with them."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from statistics import mean, stdev

import pytest

from simulator.model import ops
from simulator.program.rank import Rank
from simulator.replay.jitter import factors_of
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from tests.conftest import Outcome
from tests.replay.small import passes_mb, run, tiny

EAGER = tiny({"host.launch_eager": "200 us"})
SEEDS = range(12)


def program(npu: Rank) -> None:
    """A launch, then everybody meets, three times; kernels are shorter than launches."""
    for number in range(3):
        npu.launch(passes_mb(0.01), f"kernel {number}")
        npu.group("world").all_reduce(f"sum {number}", 8_000, "dma")


def waited_us(ranks: int, sigma: float, seed: int) -> float:
    """What the mean rank waits for its peers."""
    done = run(program, ranks, machine=EAGER, jitter=(sigma, seed))
    columns = done.columns
    meets = columns["communication"]
    waits = (columns["start_ps"] - columns["ready_ps"])[meets]
    return float(waits.sum()) / ranks / 1e6


def test_with_no_sigma_nothing_moves() -> None:
    plain, still = run(program, 4, machine=EAGER), run(program, 4, machine=EAGER, jitter=(0.0, 5))
    for name in ("issued_ps", "ready_ps", "start_ps", "end_ps"):
        assert plain.columns[name].tolist() == still.columns[name].tolist()


def test_the_mean_wait_grows_with_the_number_of_ranks_and_with_sigma() -> None:
    by_ranks = [mean(waited_us(ranks, 0.4, seed) for seed in SEEDS) for ranks in (1, 2, 4, 8)]
    assert by_ranks[0] == 0.0
    assert by_ranks == sorted(by_ranks)
    assert by_ranks[3] > 1.3 * by_ranks[1] > 0.0
    by_sigma = [mean(waited_us(4, sigma, seed) for seed in SEEDS) for sigma in (0.0, 0.1, 0.4, 0.8)]
    assert by_sigma == sorted(by_sigma)


def test_a_host_is_as_fast_as_before_in_the_mean() -> None:
    alone = [run(lambda npu: [npu.launch(passes_mb(0.01), f"{each}") for each in range(200)] and None,
                 machine=EAGER, jitter=(0.5, seed)).makespan_ps for seed in SEEDS]  # fmt: skip
    assert mean(alone) / 1e6 == pytest.approx(200 * 200, rel=0.03)


def test_a_host_reads_when_its_last_launch_is_made_as_without_jitter() -> None:
    """A next to nothing of jitter: three launches of 200 us, a read of the first one's result, another launch."""

    def reads(npu: Rank) -> None:
        first = npu.launch(passes_mb(0.01), "first")
        for name in "bc":
            npu.launch(passes_mb(0.01), name)
        npu.host_wait(first)
        npu.launch(passes_mb(0.01), "last")

    plain, drawn = run(reads, machine=EAGER), run(reads, machine=EAGER, jitter=(1e-6, 3))
    assert drawn.us("last") == pytest.approx(plain.us("last"), rel=1e-5)
    assert drawn.us("last") != plain.us("last")


def test_a_captured_graph_is_one_launch() -> None:
    def captured(npu: Rank) -> None:
        npu.program.captured = True
        program(npu)

    done = run(captured, 4, machine=EAGER, jitter=(0.4, 1))
    issued = {rank: set(done.columns["issued_ps"][done.columns["rank"] == rank].tolist()) for rank in range(4)}
    assert all(len(times) == 1 for times in issued.values())
    assert len(set.union(*issued.values())) == 4


def test_the_same_seed_draws_the_same_and_another_one_not() -> None:
    first, again, other = (run(program, 4, machine=EAGER, jitter=(0.4, seed)).makespan_ps for seed in (3, 3, 4))
    assert first == again != other


def test_the_factors_of_kernels_are_log_normal_and_of_mean_1() -> None:
    factors = factors_of(0.3)
    assert mean(factors) == pytest.approx(1.0, abs=1e-12)
    assert stdev(map(log, factors)) == pytest.approx(0.3, rel=0.02)
    assert list(factors) == sorted(factors)


def busy(npu: Rank) -> None:
    for number in range(20):
        npu.launch(ops.gemm(400, 400, 1000, "bf16"), f"gemm {number}")
    npu.group("world").all_reduce("sum", 8_000, "dma")


def test_kernels_that_are_drawn_make_all_wait_for_the_slowest_rank_and_move_the_same_bytes() -> None:
    plain, drawn = run(busy, 8), run(busy, 8, jitter=(0.0, 3, 0.2))
    ends = [max(int(drawn.row(f"gemm {number}", rank)["end_ps"]) for number in range(20)) for rank in range(8)]
    assert len(set(ends)) == 8
    assert int(drawn.row("sum")["start_ps"]) == max(ends)
    assert mean(ends) == pytest.approx(int(plain.row("gemm 19")["end_ps"]), rel=0.05)
    assert drawn.moved == pytest.approx(plain.moved)
    assert run(busy, 8, jitter=(0.0, 3, 0.0)).times() == plain.times()
    assert run(busy, 8, jitter=(0.0, 4, 0.2)).makespan_ps != drawn.makespan_ps


def test_ranks_that_draw_are_no_role() -> None:
    """By roles or all, the result is that of all ranks; without jitter one rank stands for eight."""
    scenario = load_scenario("transformer:decode").replace(
        {"model.shapes.layers": "2", "knobs.graph": "never", "launch_jitter": "0.3"}
    )
    roles, every = (simulate(scenario, ranks=mode) for mode in ("roles", "all"))
    assert roles.makespan_ps == every.makespan_ps
    assert roles.header["classes"] == every.header["classes"] == 8
    still = simulate(scenario.replace({"launch_jitter": "0"}))
    assert still.header["classes"] == 1
    assert still.metrics["waiting_comm_ms"] == 0.0 < roles.metrics["waiting_comm_ms"]


def test_jitter_of_launches_that_take_no_time_is_said_to_have_no_effect() -> None:
    scenario = load_scenario("transformer:decode").replace({"model.shapes.layers": "2", "launch_jitter": "0.3"})
    for graph, host in (("decode", "launch_graph"), ("never", "launch_eager")):
        drawn = simulate(scenario.replace({"knobs.graph": graph}))
        assert drawn.header["unread"] == []
        free = {"knobs.graph": graph, f"machine.host.{host}": "0 us"}
        still = simulate(scenario.replace(free | ({"machine.host.operator": "0 us"} if graph == "never" else {})))
        assert still.header["unread"] == ["launch_jitter"]


def test_jitter_of_captured_steps_is_said_to_be_that_of_their_one_launch(braid: Callable[..., Outcome]) -> None:
    given = ("run", "transformer:decode", "--set", "model.shapes.layers=2", "--set", "launch_jitter=0.3")
    assert "launch_jitter = 0.3 (of captured graphs, each of which is one launch)\n" in braid(*given).out
    assert "launch_jitter = 0.3\n" in braid(*given, "--set", "knobs.graph=never").out
