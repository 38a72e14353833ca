"""Rates that change during a run: piecewise closed forms, links that are cut and restored, and who feels it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError, RunError
from simulator.fabric.graph import Fabric
from simulator.model import ops
from simulator.program.rank import Rank
from simulator.replay.rates import RateChange, schedules
from tests.law.symmetry.test_own_numbers import Differing, kinds, scripts
from tests.law.symmetry.test_roles import assert_same
from tests.replay.small import TINY, passes_mb, replay, run, tiny

US, MB = 1e-6, 10**6


def two_mb(npu: Rank) -> None:
    """1 us of latency, then 2 MB through HBM: 20 us alone."""
    npu.launch(passes_mb(2), "pass")


@pytest.mark.parametrize(("changes", "ends_us"), [
    ([(6, 0.5)], 6 + 15 * 2),
    ([(6, 0.5), (16, 1.0)], 16 + 10),
    ([(6, 0.0), (100, 1.0)], 100 + 15),
    ([(0, 0.5)], 1 + 40),
    ([(0.5, 0.25), (0.75, 1.0)], 21),
    ([(50, 0.5)], 21),
    ([(6, 1.0), (6, 0.5)], 6 + 15 * 2),
    ([(6, 0.5), (6, 1.0)], 21),
])  # fmt: skip
def test_memory_that_is_throttled(changes: list[tuple[float, float]], ends_us: float) -> None:
    """HBM, with an L2 that does not bind."""
    machine = tiny({"chip.l2.rate": "100 TB/s"})
    done = run(two_mb, machine=machine, changes=[RateChange(at * US, "hbm 0", share) for at, share in changes])
    assert done.us("pass") == (0.0, pytest.approx(ends_us, abs=2e-6))


def compute(npu: Rank) -> None:
    npu.launch(ops.gemm(400, 400, 1000, "bf16"), "gemm")
    npu.launch(ops.gemm(400, 400, 1000, "bf16"), "again")


def test_a_slow_clock_stretches_compute_of_what_runs_and_of_what_comes() -> None:
    """Both kernels are bound by compute; the clock falls to 0.8 in the middle of the first one's bytes."""
    before = run(compute)
    start_us, end_us = before.us("gemm")
    latency_us = before.lasts_us("gemm") - _moving_us(before)
    middle_us = (start_us + latency_us + end_us) / 2
    slow = run(compute, changes=[RateChange(middle_us * US, "clock 0", 0.8)])
    left_us = end_us - middle_us
    assert slow.us("gemm")[1] == pytest.approx(middle_us + left_us / 0.8, abs=1e-5)
    assert slow.lasts_us("again") == pytest.approx(latency_us + (before.lasts_us("again") - latency_us) / 0.8, abs=1e-5)
    assert before.row("gemm")["bound_by"] not in ("HBM", "L2")


def _moving_us(done) -> float:  # type: ignore[no-untyped-def]
    """How long the bytes of the first kernel move."""
    (timing,) = {id(timing): timing for timing in done.replay._timings.values()}.values()
    (stage,) = timing.stages
    return float(stage.like.solo_s()) * 1e6


def gather(npu: Rank) -> None:
    npu.group("world").all_gather("gather", MB, "dma")


def test_a_cut_link_stalls_and_resumes_and_nothing_is_lost() -> None:
    whole = run(gather, 4)
    start_us, end_us = whole.us("gather")
    at_us = (start_us + end_us) / 2
    link = "die 1 - box 0"
    cut = run(gather, 4, changes=[RateChange(at_us * US, link, 0.0), RateChange((at_us + 500) * US, link, 1.0)])
    assert cut.us("gather", 1)[1] == pytest.approx(end_us + 500, abs=1e-5)
    assert {key: round(moved) for key, moved in cut.moved.items()} == {
        key: round(moved) for key, moved in whole.moved.items()}  # fmt: skip


def test_a_link_that_stays_cut_is_named() -> None:
    with pytest.raises(RunError, match=r"stand still.*die 1"):
        run(gather, 4, changes=[RateChange(0.0, "die 1 - box 0", 0.0)])


def test_changes_that_change_nothing_move_nothing() -> None:
    machine, changes = TINY, [RateChange(7 * US, what, 1.0) for what in ("hbm 0", "l2 1", "clock 0", "die 2 - box 0")]
    assert run(gather, 4, machine=machine, changes=changes).times() == run(gather, 4, machine=machine).times()


PAIRS = {"pair": [(0, 1), (2, 3), (4, 5), (6, 7)]}


def in_pairs(npu: Rank) -> None:
    npu.launch(passes_mb(2), "pass")
    npu.group("pair").all_to_all("pair", MB, "dma")


@pytest.mark.parametrize(("changes", "leaders"), [
    ((), [0] * 8),
    ((RateChange(5 * US, "hbm 3", 0.5),), [0, 0, 2, 3, 0, 0, 0, 0]),
    ((RateChange(5 * US, "clock 6", 0.5),), [0, 0, 0, 0, 0, 0, 6, 7]),
    ((RateChange(5 * US, "die 2 - box 0", 0.5), RateChange(5 * US, "die 3 - box 0", 0.5)), [0, 0, 2, 2, 0, 0, 0, 0]),
])
def test_roles_split_those_who_feel_it_and_no_others(changes: tuple[RateChange, ...], leaders: list[int]) -> None:
    done = run(in_pairs, 8, groups=PAIRS, fold=True, changes=changes)
    assert list(done.roles.leader) == leaders
    assert_same(done, run(in_pairs, 8, groups=PAIRS, changes=changes))


changing = st.lists(
    st.builds(
        RateChange,
        st.floats(0, 3e-3),
        st.sampled_from(["hbm 1", "l2 6", "clock 2", "die 5 - box 0", "die 0 to box 0"]),
        st.sampled_from([0.25, 0.5, 1.0]),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(st.builds(Differing, st.just(TINY), kinds.filter(lambda one: len(one) == 8), scripts), changing)
def test_roles_equal_all_ranks_whatever_changes(one: Differing, changes: list[RateChange]) -> None:
    world = one.world()
    assert_same(replay(world, one.machine, fold=True, changes=changes), replay(world, one.machine, changes=changes))


@pytest.mark.parametrize(("change", "says"), [
    (RateChange(0.0, "hbm 9", 0.5), "ranks are 0 to 3"),
    (RateChange(0.0, "hbm ²", 0.5), "ranks are 0 to 3"),
    (RateChange(0.0, "memory 1", 0.5), "neither a link"),
    (RateChange(0.0, "die 0 - box 7", 0.5), "no link from 'die 0' to 'box 7'; die 0 has links to"),
    (RateChange(-1.0, "hbm 0", 0.5), "0 or more seconds"),
    (RateChange(0.0, "hbm 0", float("nan")), "share from 0 to 1"),
    (RateChange(0.0, "clock 0", 0.0), "more than 0"),
])
def test_what_cannot_change_is_refused(change: RateChange, says: str) -> None:
    with pytest.raises(InputError, match=says):
        schedules([change], Fabric(TINY, 4))


