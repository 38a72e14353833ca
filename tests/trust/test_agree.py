"""The simulator and the plain second implementation agree to the picosecond; `agree` does the same for thousands."""

from __future__ import annotations

import pytest

from simulator.program.rank import Rank
from simulator.program.world import record_world
from simulator.spec.faults import fault_of
from tests.law.replay.clusters import TWO_LEVELS
from tests.replay.small import TINY, everybody, passes_mb
from tests.trust.agree import STUCK, agreement, referred
from tests.trust.random_runs import RandomRun, random_run

US = 10**6


@pytest.mark.parametrize("seed", range(30))
def test_the_simulator_and_the_reference_agree(seed: int) -> None:
    found = agreement(random_run(seed))
    assert (found.off_ps, found.differing) == (0, 0), found.worst


def test_random_programs_have_all_that_is_compared() -> None:
    """Deadlocks, faults, draws and every kind of exchange are among the first hundred."""
    runs = [random_run(seed) for seed in range(100)]
    kinds = {(work.kind, work.algorithm) for run in runs for program in run.world.programs
             for _, work in program.collectives()}
    assert {kind for kind, _ in kinds} == {"all_to_all", "all_gather", "reduce_scatter", "all_reduce", "barrier",
                                           "send", "recv", "put", "collect"}
    assert {way for _, way in kinds} == {"direct", "pairwise", "ring", "hierarchical", "one_shot", "nvls"}
    assert {run.exchange for run in runs} == {"auto", "pairwise"}
    assert {(fault.what, fault.effect) for run in runs for fault in run.faults} >= {
        ("link", "rate"), ("link", "cut"), ("link", "flaps"), ("rank", "clock"), ("rank", "hbm"), ("rank", "lost"),
        ("node", "clock"), ("host", "paused")}  # fmt: skip
    assert {(run.jitter.launches > 0, run.jitter.kernels > 0) for run in runs} == {
        (False, False), (False, True), (True, False), (True, True)}  # fmt: skip


def two(npu: Rank) -> None:
    """A kernel of 1 us + 10 us; then 300 kB to each of three others: 13 us, 1 us across, 900 us."""
    npu.launch(passes_mb(1), "kernel")
    npu.group("world").all_to_all("exchange", 300_000, "dma")


@pytest.mark.parametrize("exchange", ["auto", "pairwise"])
def test_the_reference_knows_closed_forms(exchange: str) -> None:
    world = record_world(two, 4, everybody(4), lambda _: {})
    length_ps, times = referred(RandomRun(0, world, TINY, (), exchange))
    assert times[2, 0] == (0, 0, 0, 11 * US)
    assert times[2, 1] == (0, 11 * US, 11 * US, (11 + 13 + 1 + 900) * US)
    assert length_ps == 925 * US
    halved = fault_of("0 s: rank 0 hbm 0.5"), fault_of("6 us: rank 0 hbm 0.25")  # 250 kB in 5 us, then 25 GB/s
    _, times = referred(RandomRun(0, world, TINY, halved, exchange))
    assert times[0, 0][3] == (1 + 5 + 30) * US


def test_the_reference_finds_deadlocks() -> None:
    def program(npu: Rank) -> None:
        if npu.rank:
            npu.group("world").barrier("alone", "dma")

    world = record_world(program, 2, everybody(2), lambda _: {})
    assert referred(RandomRun(0, world, TWO_LEVELS, (), "auto")) == (STUCK, {})
