"""A die at run time, on durations worked out by hand: 1 MB takes 10 us of HBM, 2.5 us of L2; a vector kernel + 1 us.

`TICK` takes 2 us of one cube core and no bytes, so it runs beside vector kernels.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.model import ops
from simulator.program.rank import Rank
from simulator.spec.load import load_machine
from simulator.units import Quantity
from tests.law.timeline_laws import check_serial
from tests.replay.small import TINY, passes_mb, run, tiny

NO_HBM_LIMIT = {"chip.hbm.peak": "inf B/s"}
NO_MEMORY_LIMIT = {**NO_HBM_LIMIT, "chip.l2.rate": "inf B/s"}
TICK = ops.gemm(0, 0, 0, dtype="bf16")


# streams and events ---------------------------------------------------------------------------------------------------


def test_one_stream_runs_in_launch_order_and_adds_up() -> None:
    def program(npu: Rank) -> None:
        for name in "abc":
            npu.launch(passes_mb(1), name)

    done = run(program)
    assert [done.us(name) for name in "abc"] == [(0, 11), (11, 22), (22, 33)]
    check_serial(done.columns)


def test_a_wait_orders_streams_and_holds_back_nothing_else() -> None:
    def program(npu: Rank) -> None:
        first = npu.launch(passes_mb(1), "a")
        with npu.stream("side"):
            npu.launch(TICK, "free")
            npu.wait(first)
            npu.launch(TICK, "bound")

    done = run(program)
    assert done.us("free") == (0, 2)
    assert done.us("bound") == (11, 13)
    assert done.row("bound")["ready_ps"] == done.row("a")["end_ps"]


def test_an_event_is_the_end_of_a_stream_when_it_is_recorded() -> None:
    def program(npu: Rank) -> None:
        npu.launch(passes_mb(1), "a")
        event = npu.record()
        npu.launch(passes_mb(1), "b")
        with npu.stream("side"):
            npu.wait(event)
            npu.launch(TICK, "c")

    assert run(program).us("c")[0] == 11


def test_an_event_of_a_stream_that_only_waits_is_what_it_waits_for() -> None:
    def program(npu: Rank) -> None:
        first = npu.launch(passes_mb(1), "a")
        with npu.stream("relay"):
            npu.wait(first)
            relayed = npu.record()
        with npu.stream("side"):
            npu.wait(relayed)
            npu.launch(TICK, "after a")

    assert run(program).us("after a")[0] == 11


# host -----------------------------------------------------------------------------------------------------------------


def three_kernels(npu: Rank) -> None:
    for name in "abc":
        npu.launch(TICK, name)


def test_an_eager_host_pays_for_every_launch() -> None:
    done = run(three_kernels, machine=tiny({"host.launch_eager": "4 us"}))
    assert [done.row(name)["issued_ps"] / 1e6 for name in "abc"] == [4, 8, 12]
    assert [done.us(name) for name in "abc"] == [(4, 6), (8, 10), (12, 14)]  # 2 us of work, 2 us of gap


@pytest.mark.parametrize(("operators", "captured", "issued"), [
    (0, False, [4, 8, 12]), (1, False, [14, 28, 42]), (1.5, False, [19, 38, 57]), (1.5, True, [5, 5, 5])])
def test_operator_calls_go_with_every_eager_launch(operators: float, captured: bool, issued: list[float]) -> None:
    def program(npu: Rank) -> None:
        npu.program.operators, npu.program.captured = operators, captured
        three_kernels(npu)

    machine = tiny({"host.launch_eager": "4 us"})
    operator = Quantity(value=10, unit="us", kind="assumed", source="made for a test")
    framework = machine.model_copy(update={"host": machine.host.model_copy(update={"operator": operator})})
    assert [run(program, machine=framework).row(name)["issued_ps"] / 1e6 for name in "abc"] == issued
    without = run(program, machine=machine)  # its launches are all that is known of this host
    assert [without.row(name)["issued_ps"] / 1e6 for name in "abc"] == ([5, 5, 5] if captured else [4, 8, 12])


@pytest.mark.parametrize(("calls", "captured", "issued"), [
    ((1, 1, 1), False, [14, 28, 42]), ((3, 1, 1), False, [42, 56, 70]), ((2, 0, 0), False, [28, 32, 36]),
    ((3, 0, 1), True, [5, 5, 5])])
def test_a_work_of_many_calls_is_launched_by_as_many(calls: tuple[int, ...], captured: bool,
                                                     issued: list[float]) -> None:
    """One of none goes with the call before it, but is a kernel more."""
    def program(npu: Rank) -> None:
        npu.program.operators, npu.program.captured = 1.0, captured
        for name, count in zip("abc", calls, strict=True):
            npu.launch(replace(TICK, calls=count), name)

    machine = tiny({"host.launch_eager": "4 us"})
    operator = Quantity(value=10, unit="us", kind="assumed", source="made for a test")
    framework = machine.model_copy(update={"host": machine.host.model_copy(update={"operator": operator})})
    assert [run(program, machine=framework).row(name)["issued_ps"] / 1e6 for name in "abc"] == issued


def test_the_same_host_takes_as_long_for_a_launch_on_every_gpu() -> None:
    """Hosts with Xeon processors of one generation: what a launch takes is the stack's affair."""
    hosts = [load_machine(name).host for name in ("dgx_h100", "dgx_h200", "dgx_b200", "h20_node", "h800_cluster")]
    assert len({(host.launch_eager.si, host.operator and host.operator.si) for host in hosts}) == 1


def test_a_captured_graph_is_launched_once() -> None:
    def program(npu: Rank) -> None:
        npu.program.captured = True
        three_kernels(npu)

    done = run(program, machine=tiny({"host.launch_eager": "4 us"}))
    assert [done.us(name) for name in "abc"] == [(5, 7), (7, 9), (9, 11)]


def test_every_graph_is_launched_and_ends_where_the_host_blocks() -> None:
    def program(npu: Rank) -> None:
        npu.program.captured = True
        three_kernels(npu)
        npu.host_wait(npu.record(), reads=1)
        three_kernels(npu)

    done = run(program, machine=tiny({"host.launch_eager": "4 us"}))
    starts = sorted(done.columns["start_ps"].tolist())
    assert starts[3] - starts[2] == 2_000_000 + 2_000_000 + 5_000_000  # c, its read (2 us), launch of a graph (5 us)


def test_a_graph_without_tasks_is_not_launched() -> None:
    """Between two waits of the host, and between the two tasks that one event stands for."""
    def program(npu: Rank) -> None:
        npu.program.captured = True
        first = npu.launch(TICK, "a")
        with npu.stream("other"):
            npu.launch(TICK, "b")
            npu.wait(first)
            npu.host_wait(npu.record(), reads=0)
        npu.host_wait(first, reads=0)
        npu.launch(TICK, "c")

    assert run(program).us("c")[0] == 5 + 2 + 5  # a graph, a and b side by side (2 us), a graph


@pytest.mark.parametrize(("reads", "issued"), [(0, 12), (1, 12 + 3), (2, 12 + 6)])
def test_a_host_wait_blocks_and_costs_a_launch_and_a_read_per_value(reads: int, issued: int) -> None:
    def program(npu: Rank) -> None:
        npu.host_wait(npu.launch(passes_mb(1), "a"), reads)
        npu.launch(TICK, "b")

    done = run(program, machine=tiny({"host.launch_eager": "1 us"}))  # a: 1 to 12 us; read: 1 + 2 us
    assert done.us("b")[0] == issued + 1
    assert done.row("b")["host_after"] == 0


def test_a_host_wait_for_what_has_ended_blocks_no_longer_than_the_read() -> None:
    def program(npu: Rank) -> None:
        first = npu.launch(TICK, "a")  # issued at 4, ends at 5
        npu.launch(TICK, "b")
        npu.launch(TICK, "c")  # issued at 12
        npu.host_wait(first)
        npu.host_wait(first)
        npu.launch(TICK, "d")

    done = run(program, machine=tiny({"host.launch_eager": "4 us"}))
    assert done.us("d")[0] == 12 + 2 * (4 + 2) + 4


def test_the_host_goes_on_while_streams_wait() -> None:
    def program(npu: Rank) -> None:
        first = npu.launch(passes_mb(1), "a")
        with npu.stream("side"):
            npu.wait(first)
            npu.launch(TICK, "b")
        npu.launch(TICK, "c")

    done = run(program, machine=tiny({"host.launch_eager": "1 us"}))
    assert done.row("b")["issued_ps"] == 2e6
    assert done.row("c")["issued_ps"] == 3e6


# cores ----------------------------------------------------------------------------------------------------------------


def small_gemm(tiles: int = 4) -> ops.Work:
    """2.5 us of latency (2 us + 1 ns for each of K) and 20 us of compute for each wave of tiles, one per cube core."""
    return ops.gemm(100 * tiles, 200, 500, dtype="bf16")


def test_kernels_hold_their_cores_alone() -> None:
    def program(npu: Rank) -> None:
        npu.launch(small_gemm(4), "all")
        with npu.stream("side"):
            npu.launch(small_gemm(4), "next")

    done = run(program)
    assert done.us("next")[0] == done.us("all")[1]
    assert done.row("next")["ready_ps"] == 0  # it waits for cores, and that is waiting, not work


def test_kernels_of_few_tiles_share_the_chip() -> None:
    def program(npu: Rank) -> None:
        for stream in ("one", "two"):
            with npu.stream(stream):
                npu.launch(small_gemm(2), stream)

    done = run(program)
    assert done.us("one") == done.us("two")


def test_a_kernel_starts_on_the_cores_that_are_free_and_keeps_them() -> None:
    def program(npu: Rank) -> None:
        with npu.stream("one"):
            npu.launch(small_gemm(3), "three cores")
        with npu.stream("two"):
            npu.launch(small_gemm(4), "one core")  # four waves instead of one

    done = run(program, machine=tiny(NO_MEMORY_LIMIT))
    assert done.lasts_us("three cores") == 2.5 + 20
    assert done.lasts_us("one core") == 2.5 + 4 * 20


@pytest.mark.parametrize(("priority", "first"), [({"b": 1, "c": 0}, "c"), ({"b": 0, "c": 1}, "b"), ({}, "b")])
def test_waiting_cores_go_to_the_lower_number(priority: dict[str, int], first: str) -> None:
    def program(npu: Rank) -> None:
        for stream, number in priority.items():
            npu.prioritise(stream, number)
        for stream in "abc":
            with npu.stream(stream):
                npu.launch(small_gemm(4), stream)

    done = run(program)
    assert done.us(first)[0] == done.us("a")[1]


def test_partitions_confine() -> None:
    def program(npu: Rank) -> None:
        npu.confine("one", {"cube": 1})
        with npu.stream("one"):
            npu.launch(small_gemm(4), "confined")
        npu.launch(small_gemm(4), "rest")

    done = run(program, machine=tiny(NO_MEMORY_LIMIT))
    assert done.lasts_us("confined") == 2.5 + 4 * 20
    assert done.lasts_us("rest") == 2.5 + 2 * 20  # four tiles on three cores
    assert done.us("rest")[0] == 0


# memory ---------------------------------------------------------------------------------------------------------------



def side_by_side(npu: Rank) -> None:
    """Two kernels on half of the vector cores each, 1 MB of HBM and L2."""
    for stream in ("one", "two"):
        npu.confine(stream, {"vector": 4})
        with npu.stream(stream):
            npu.launch(passes_mb(1), stream)


def test_two_kernels_bound_by_hbm_slow_each_other() -> None:
    done = run(side_by_side)
    assert done.lasts_us("one") == done.lasts_us("two") == 1 + 20
    assert done.row("one")["solo_ps"] == 11e6
    assert done.row("one")["bound_by"] == "HBM"


@pytest.mark.parametrize(("changes", "lasts", "bound"), [
    (NO_HBM_LIMIT, 1 + 1 / 0.2, "L2"),
    (NO_MEMORY_LIMIT, 1 + 1 / 0.4, "L2 ports vector"),  # 4 cores' ports, 100 GB/s each
    ({"chip.hbm.peak": "400 GB/s"}, 1 + 1 / 0.1, "HBM"),
])
def test_without_the_limit_they_do_not(changes: dict[str, str], lasts: float, bound: str) -> None:
    done = run(side_by_side, machine=tiny(changes))
    assert done.lasts_us("one") == lasts
    assert done.row("one")["bound_by"] == bound


def weights_mb(megabytes: float, name: str) -> ops.Work:
    return replace(passes_mb(0), weight_bytes=megabytes * 1e6, weights=name)


def test_the_second_reader_finds_weights_in_l2() -> None:
    def program(npu: Rank) -> None:
        npu.launch(weights_mb(1, "w"), "cold")
        npu.launch(weights_mb(1, "w"), "warm")

    done = run(program)
    assert (done.lasts_us("cold"), done.lasts_us("warm")) == (11, 1 + 2.5)
    assert done.moved["hbm", 0] == pytest.approx(1e6)
    assert done.moved["l2", 0] == pytest.approx(2e6)


@pytest.mark.parametrize(("rate", "lasts"), [(0.0, 10), (50e9, 20), (1e9, 1000)])
def test_a_prefetch_is_limited_by_its_rate(rate: float, lasts: float) -> None:
    def program(npu: Rank) -> None:
        fetched = npu.prefetch("w", 1e6, rate)
        npu.wait(fetched)
        npu.launch(weights_mb(1, "w"), "warm")

    done = run(program)
    assert done.lasts_us("prefetch w") == lasts
    assert done.lasts_us("warm") == 1 + 2.5
    assert done.moved["hbm", 0] == pytest.approx(1e6)


def test_a_prefetch_holds_a_queue_and_no_compute_cores() -> None:
    def program(npu: Rank) -> None:
        for number in range(3):
            with npu.stream(f"prefetch {number}"):
                npu.prefetch(f"w{number}", 1e6, 10e9)
        npu.launch(TICK, "kernel")

    done = run(program)
    assert done.us("kernel") == (0, 2)
    assert [done.us(f"prefetch w{number}") for number in range(3)] == [(0, 100), (0, 100), (100, 200)]  # 2 queues


def test_a_prefetch_into_a_memory_without_limits_takes_no_time() -> None:
    assert run(lambda npu: npu.prefetch("w", 1e6), machine=tiny(NO_MEMORY_LIMIT)).makespan_ps == 0


def test_a_kernel_that_starts_before_the_prefetch_has_ended_reads_hbm() -> None:
    def program(npu: Rank) -> None:
        with npu.stream("prefetch"):
            npu.prefetch("w", 1e6)
        npu.launch(weights_mb(1, "w"), "too early")

    assert run(program).moved["hbm", 0] == pytest.approx(2e6)


@pytest.mark.parametrize(("activations_mb", "hbm_mb"), [(8, 1 + 8), (9.5, 1 + 9.5 + 0.5), (11, 1 + 11 + 1)])
def test_activations_push_weights_out_of_l2(activations_mb: float, hbm_mb: float) -> None:
    def program(npu: Rank) -> None:
        npu.launch(weights_mb(1, "w"), "cold")
        npu.launch(passes_mb(activations_mb), "activations")
        npu.launch(weights_mb(1, "w"), "again")

    assert TINY.chip.l2.capacity.si == 10e6
    assert run(program).moved["hbm", 0] == pytest.approx(hbm_mb * 1e6)


