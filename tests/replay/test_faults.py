"""Faults of a run: piecewise closed forms, links cut and restored, hosts that pause, lost ranks, and who feels it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError, RunError
from simulator.fabric.graph import Fabric
from simulator.model import ops
from simulator.program.rank import Rank
from simulator.replay.faults import drawn, over_time, schedules_of
from simulator.spec.faults import Fault, fault_of
from simulator.spec.load import load_machine
from tests.law.symmetry.test_own_numbers import Differing, kinds, scripts
from tests.law.symmetry.test_roles import assert_same
from tests.replay.small import TINY, passes_mb, replay, run, tiny

US, MB = 1e-6, 10**6


def two_mb(npu: Rank) -> None:
    """1 us of latency, then 2 MB through HBM: 20 us alone."""
    npu.launch(passes_mb(2), "pass")


@pytest.mark.parametrize(("faults", "ends_us"), [
    (["6 us: rank 0 hbm 0.5"], 6 + 15 * 2),
    (["6 us: rank 0 hbm 0.5 for 10 us"], 16 + 10),
    ([Fault("rank", "0", "hbm", 6 * US, 94 * US)], 100 + 15),
    (["0 s: rank 0 hbm 0.5"], 1 + 40),
    (["0.5 us: rank 0 hbm 0.25 for 0.25 us"], 21),
    (["50 us: rank 0 hbm 0.5"], 21),
    (["6 us: rank 0 hbm 0.5 for 0 s"], 21),
    (["6 us: rank 0 hbm 1", "6 us: rank 0 hbm 0.5"], 6 + 15 * 2),
    (["6 us: rank 0 hbm 0.5", "0 s: rank 0 hbm 0.25 for 2 us"], 6 + (20 - 4 - 0.25) * 2),
])  # fmt: skip
def test_memory_that_is_throttled(faults: list[str | Fault], ends_us: float) -> None:
    """HBM, with an L2 that does not bind."""
    machine = tiny({"chip.l2.rate": "100 TB/s"})
    done = run(two_mb, machine=machine, faults=faults)
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
    slow = run(compute, faults=[Fault("rank", "0", "clock", middle_us * US, value=0.8)])
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
    cut = run(gather, 4, faults=[Fault("link", link, "cut", at_us * US, 500 * US)])
    assert cut.us("gather", 1)[1] == pytest.approx(end_us + 500, abs=1e-5)
    assert {key: round(moved) for key, moved in cut.moved.items()} == {
        key: round(moved) for key, moved in whole.moved.items()}  # fmt: skip


def test_a_link_that_stays_cut_is_named() -> None:
    with pytest.raises(RunError, match=r"stands still.*die 1"):
        run(gather, 4, faults=["0 s: link die 1 - box 0 cut"])


def test_faults_that_change_nothing_move_nothing() -> None:
    faults = [f"7 us: {what}" for what in (
        "rank 0 hbm 1", "rank 0 clock 1", "link die 2 - box 0 rate 1", "rank 1 hbm 0.1 for 0 s",
        "rank 1 clock 0.1 for 0 s", "link die 2 - box 0 cut for 0 s", "host 1 paused for 0 s")]  # fmt: skip
    assert run(gather, 4, faults=faults).times() == run(gather, 4).times()


def test_a_fault_after_the_end_is_not_waited_for() -> None:
    late = run(gather, 4, faults=["1 s: rank 0 hbm 0.5", "2 s: link die 2 - box 0 cut", "3 s: rank 0 lost"])
    assert late.makespan_ps == run(gather, 4).makespan_ps


def eager(npu: Rank) -> None:
    """Five launches of 10 us each by the host, of kernels that take less."""
    for number in range(5):
        npu.launch(passes_mb(0.1), f"pass {number}")
    npu.group("world").all_gather("gather", MB // 100, "dma")


def test_what_strikes_after_some_ranks_have_ended_is_felt_by_the_others() -> None:
    def program(npu: Rank) -> None:
        npu.launch(passes_mb(2 * npu.rank), "pass")

    done = run(program, 2, machine=tiny({"chip.l2.rate": "100 TB/s"}), faults=["15 us: rank 1 hbm 0.5"])
    assert done.us("pass", 0)[1] < 15
    assert done.us("pass", 1) == (0.0, pytest.approx(15 + 6 * 2, abs=2e-6))


SLOW_HOST = tiny({"host.launch_eager": "10 us"})


@pytest.mark.parametrize(("at_us", "lasts_us", "late_us"), [
    (0, 7, [7, 7, 7]), (5, 7, [7, 7, 7]), (10, 7, [0, 7, 7]), (15, 100, [0, 100, 100]), (35, 4, [0, 0, 4]),
    (999, 50, [0, 0, 0]),
])  # fmt: skip
def test_a_paused_host_launches_later_and_what_it_launched_goes_on(at_us: int, lasts_us: int,
                                                                  late_us: list[int]) -> None:
    before = run(eager, 2, machine=SLOW_HOST)
    after = run(eager, 2, machine=SLOW_HOST, faults=[f"{at_us} us: host 1 paused for {lasts_us} us"])
    names = ("pass 0", "pass 1", "pass 3")
    assert [round(after.us(name, 1)[1] - before.us(name, 1)[1], 6) for name in names] == late_us
    assert [after.us(name, 0) for name in names] == [before.us(name, 0) for name in names]
    assert after.makespan_ps - before.makespan_ps == late_us[-1] * 10**6


def test_others_wait_for_a_slow_rank_exactly_as_long_as_it_is_late() -> None:
    """The clock of rank 2 falls: the others are as late behind the gather as rank 2 was before it, and not before."""

    def program(npu: Rank) -> None:
        compute(npu)
        gather(npu)
        npu.launch(passes_mb(2), "after")

    before, after = run(program, 4), run(program, 4, faults=["0 s: rank 2 clock 0.5 for 60 us"])
    late_ps = int(after.row("again", 2)["end_ps"]) - int(before.row("again", 2)["end_ps"])
    assert late_ps > 10**7
    for rank in range(4):
        assert after.row("gather", rank)["end_ps"] - before.row("gather", rank)["end_ps"] == late_ps
        assert rank == 2 or after.us("again", rank) == before.us("again", rank)
    assert after.makespan_ps - before.makespan_ps == late_ps


def test_a_lost_rank_is_named_by_those_who_wait_for_it() -> None:
    def program(npu: Rank) -> None:
        compute(npu)
        gather(npu)

    with pytest.raises(RunError) as error:
        run(program, 4, faults=["1 us: rank 2 lost"])
    assert "lost: rank 2" in str(error.value)
    assert "is lost since 0.001 ms" in str(error.value)
    assert "waits for ranks 2 of group 'world'" in str(error.value) or "[2]" in str(error.value)


def late_launch(npu: Rank) -> None:
    npu.launch(passes_mb(0), "nothing moves")


def barrier(npu: Rank) -> None:
    npu.group("world").barrier("barrier", "dma")


def late_cores(npu: Rank) -> None:
    """A kernel that moves nothing holds all vector cores for 1 us; an exchange of the other stream wants them."""
    npu.launch(passes_mb(0), "nothing moves")
    with npu.stream("comm"):
        npu.group("world").barrier("barrier", "aiv")


@pytest.mark.parametrize(("program", "launch_us", "fault"), [
    (late_launch, 10, "5 us: rank 0 lost"),
    (late_cores, 0, "0.5 us: rank 0 lost"),
    (barrier, 0, "0 s: rank 0 lost"),
])  # fmt: skip
def test_a_rank_that_is_lost_starts_nothing_any_more(program: Callable[[Rank], None], launch_us: int,
                                                     fault: str) -> None:
    """Neither what its host launches later, nor what gets its cores later."""
    machine = tiny({"host.launch_eager": f"{launch_us} us", "chip.cores.vector": "4"})
    run(program, 1, machine=machine)
    with pytest.raises(RunError, match="lost: rank 0"):
        run(program, 1, machine=machine, faults=[fault])


def test_a_run_of_nothing_waits_for_no_fault() -> None:
    assert run(lambda _: None, 2, faults=["1 us: rank 0 clock 0.5", "1 s: rank 1 hbm 0.5 for 1 s"]).makespan_ps == 0


def test_what_is_drawn_strikes_ranks_nodes_and_cards_that_there_are_until_the_end_and_no_others() -> None:
    """32 ranks of Atlas A3: 2 nodes of 16; a strike about every 1 ms for 1 s, 1000 in the mean, 3 sigma either way."""
    fabric = Fabric(load_machine("atlas_a3"), 32)
    every = [fault_of(f"about every 1 ms: {what} for 1 us") for what in (
        "rank * clock 0.5", "node * hbm 0.5", "link rank*.nic* cut")]  # fmt: skip
    found = drawn([fault_of("0 s: rank 3 lost"), *every], fabric, 1.0, 7)
    assert found[0] == fault_of("0 s: rank 3 lost")
    by_kind = {what: [one for one in found[1:] if one.what == what] for what in ("rank", "node", "link")}
    assert {int(one.name) for one in by_kind["rank"]} == set(range(32))
    assert {int(one.name) for one in by_kind["node"]} == {0, 1}
    assert fabric.spec.nic is None
    assert {one.name for one in by_kind["link"]} == {f"rank{rank}.nic0" for rank in range(32)}
    for those in by_kind.values():
        assert len(those) == pytest.approx(1000, abs=100)
        assert all(0 < one.at_s < 1.0 and not one.mean_s and one.for_s == 1e-6 for one in those)
        assert [one.at_s for one in those] == sorted(one.at_s for one in those)
    assert found == drawn([fault_of("0 s: rank 3 lost"), *every], fabric, 1.0, 7)
    assert found != drawn([fault_of("0 s: rank 3 lost"), *every], fabric, 1.0, 8)


def test_a_third_star_stands_for_nothing() -> None:
    with pytest.raises(InputError, match="a second one for a card"):
        drawn([fault_of("about every 1 ms: link rank*.nic*.* cut for 1 us")], Fabric(TINY, 4), 1.0, 0)


PAIRS = {"pair": [(0, 1), (2, 3), (4, 5), (6, 7)]}


def in_pairs(npu: Rank) -> None:
    npu.launch(passes_mb(2), "pass")
    npu.group("pair").all_to_all("pair", MB, "dma")


@pytest.mark.parametrize(("faults", "leaders"), [
    ([], [0] * 8),
    (["5 us: rank 3 hbm 0.5"], [0, 0, 2, 3, 0, 0, 0, 0]),
    (["5 us: rank 6 clock 0.5"], [0, 0, 0, 0, 0, 0, 6, 7]),
    (["5 us: host 6 paused for 5 us"], [0, 0, 0, 0, 0, 0, 6, 7]),
    (["5 us: link die 2 - box 0 rate 0.5", "5 us: link rank3.nic0 rate 0.5"], [0, 0, 2, 2, 0, 0, 0, 0]),
])
def test_roles_split_those_who_feel_it_and_no_others(faults: list[str], leaders: list[int]) -> None:
    done = run(in_pairs, 8, groups=PAIRS, fold=True, faults=faults)
    assert list(done.roles.leader) == leaders
    assert_same(done, run(in_pairs, 8, groups=PAIRS, faults=faults))


striking = st.lists(
    st.one_of(
        st.builds(
            "{} us: {} {} for {} us".format,
            st.integers(0, 3000),
            st.sampled_from(["rank 1 hbm", "rank 6 hbm", "rank 2 clock", "link die 5 - box 0 rate",
                             "link die 0 to box 0 rate"]),
            st.sampled_from([0.25, 0.5, 1.0]),
            st.integers(0, 3000),
        ),
        st.builds("{} us: host {} paused for {} us".format, st.integers(0, 300), st.integers(0, 7),
                  st.integers(0, 300)),
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.builds(Differing, st.just(TINY), kinds.filter(lambda one: len(one) == 8), scripts), striking)
def test_roles_equal_all_ranks_whatever_strikes(one: Differing, faults: list[str]) -> None:
    world = one.world()
    assert_same(replay(world, one.machine, fold=True, faults=faults), replay(world, one.machine, faults=faults))


@pytest.mark.parametrize(("fault", "says"), [
    ("0 s: rank 9 hbm 0.5", "strikes nobody: ranks are 0 to 3"),
    ("0 s: rank ² hbm 0.5", "ranks are 0 to 3"),
    (f"0 s: rank {'1' * 5000} hbm 0.5", "ranks are 0 to 3"),
    (f"0 s: link rank0.nic{'1' * 5000} cut", "both directions of a link"),
    ("0 s: link rank٣.nic0 cut", "both directions of a link"),
    ("0 s: node 4 lost", "nodes are 0 to 0"),
    ("0 s: link die 0 - box 7 rate 0.5", "no link from 'die 0' to 'box 7'; die 0 has links to"),
    ("0 s: link die 0 rate 0.5", "both directions of a link"),
    ("0 s: link rank0.nic1 cut", "rank 0 has 1 links to switches"),
    ("0 s: link rank9.nic0 cut", "ranks are 0 to 3"),
    ("0 s: engine 0 lost", "braid serve"),
    ("0 s: rank 0 lost for 1 s", "does not come back in a run"),
    ("about every 1 s: rank 0 lost", "its times are drawn"),
])
def test_what_cannot_be_struck_is_refused(fault: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        schedules_of([fault_of(fault)], Fabric(TINY, 4))


def test_strikes_without_end_are_refused_as_they_are_drawn() -> None:
    with pytest.raises(InputError, match=r"more than 100,000 times in a run of 1 ms"):
        drawn([fault_of("about every 1e-300 s: rank * hbm 0.5")], Fabric(TINY, 4), 0.001, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([0.25, 0.5, 1.0])), max_size=6))
def test_of_many_at_once_the_one_that_leaves_least_counts(given: list[tuple[int, int, float]]) -> None:
    """By trying every second."""
    held = dict(over_time([Fault("rank", "0", "hbm", at, length, left) for at, length, left in given]))
    share = 1.0
    for now in range(20):
        share = held.get(now * 10**12, share)
        assert share == min([left for at, length, left in given if at <= now < at + length], default=1.0)


def test_flaps_take_no_longer_than_they_are_many() -> None:
    """100,000 of them: by trying each at each time they took hours."""
    assert len(over_time([fault_of("0 s: link rank0.nic0 flaps 5 us for 1 s")])) == 200_000


def put(npu: Rank) -> None:
    npu.launch(passes_mb(1), "before")
    npu.group("world").put("put", MB, MB, "dma")
    npu.group("world").collect("collect", "dma")


@pytest.mark.parametrize("what", ["cut", "rate 0.25"])
def test_how_long_a_put_takes_alone_is_what_the_machine_says(what: str) -> None:
    """Also of one that begins while its link is cut or slow."""
    ran = run(put, 2, faults=[f"0 s: link die 0 - box 0 {what} for 1 ms"])
    assert ran.row("put")["solo_ps"] == run(put, 2).row("put")["solo_ps"]
    assert ran.lasts_us("put") > run(put, 2).lasts_us("put")


PATIENT = tiny({"collectives.dma.timeout": "10 ms"})


def met(npu: Rank) -> None:
    npu.launch(passes_mb(1), "before")
    gather(npu)


@pytest.mark.parametrize("program", [met, put])
def test_who_waits_for_longer_than_its_software_lets_it_ends_the_run(program: Callable[[Rank], None]) -> None:
    late, later = ([f"0 s: rank 1 hbm 1e-6 for {lasts}"] for lasts in ("7 ms", "20 ms"))
    assert run(program, 2, machine=PATIENT, faults=late).times() == run(program, 2, faults=late).times()
    assert run(program, 2, faults=later).makespan_ps > 10**10
    with pytest.raises(RunError, match=r"rank 0 gives up on '\w+' \(#\d\) at 1\d\.\d+ ms: .*rank 1 comes last, at 2\d"):
        run(program, 2, machine=PATIENT, faults=later)


def test_what_never_ends_says_when_it_is_given_up() -> None:
    with pytest.raises(RunError, match=r"waits for ranks \[1\] of group 'world'; given up at 10\.\d+ ms .*\.timeout'"):
        run(met, 2, machine=PATIENT, faults=["1 us: rank 1 lost"])
    with pytest.raises(RunError, match=r"'gather' .* is on its way; given up at 10\.\d+ ms"):
        run(met, 4, machine=PATIENT, faults=["1 us: link die 1 - box 0 cut"])
