"""Collectives at run time: how long they take, who waits for whom, and what is said when somebody waits for ever.

All2All of 1 MB per pair over n ranks by dma: 11 us + n - 1 us of latency, n - 1 ms on the wire.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from simulator.collective.transfer import Phase
from simulator.errors import InputError, RunError
from simulator.model import ops
from simulator.program.rank import Rank
from simulator.program.task import ProgramError
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import validate
from tests.die.machines import number as quantity
from tests.replay.small import TINY, passes_mb, run, tiny

MB = 10**6


def exchange(npu: Rank, name: str = "exchange", via: str = "dma") -> None:
    npu.group("world").all_to_all(name, MB, via)


# durations ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "classes", "pairwise"])
@pytest.mark.parametrize(("kind", "us"), [
    ("all_to_all", 14 + 3000), ("all_gather", 14 + 3000), ("reduce_scatter", 14 + 3000), ("all_reduce", 28 + 2 * 750)])
def test_a_collective_alone(kind: str, us: int, mode: str) -> None:
    done = run(lambda npu: getattr(npu.group("world"), kind)("it", MB, "dma"), 4, exchange=mode)
    assert [done.lasts_us("it", rank) for rank in range(4)] == [us] * 4
    assert done.row("it")["bound_by"] == "wire"
    assert done.row("it")["engine"] == "sdma"
    assert done.row("it")["solo_ps"] == us * 10**6


@pytest.mark.parametrize(("changes", "us", "bound"), [
    ({"fabric.box.link_rate": "0.5 GB/s"}, 14 + 6000, "link box"),
    ({"chip.hbm.peak": "4 GB/s"}, 14 + 9000, "HBM"),
    ({"chip.l2.rate": "1 GB/s"}, 14 + 18_000, "L2"),
    ({"collectives.dma.startup": "20 ms"}, 20_004 + 3000, "latency"),
])
def test_what_a_collective_is_bound_by(changes: dict[str, str], us: int, bound: str) -> None:
    done = run(exchange, 4, machine=tiny(changes))
    assert done.lasts_us("exchange") == us
    assert done.row("exchange")["bound_by"] == bound


def test_a_barrier_and_a_group_of_one() -> None:
    def program(npu: Rank) -> None:
        npu.group("world").barrier("barrier", "dma")
        npu.group("alone").all_gather("nobody", MB, "dma")

    done = run(program, 3, groups={"world": [(0, 1, 2)], "alone": [(0,), (1,), (2,)]})
    assert (done.us("barrier"), done.us("nobody")) == ((0, 13), (13, 13))
    assert done.row("barrier")["bound_by"] == "latency"


def test_an_uneven_all_to_all_ends_for_each_rank_with_its_last_message() -> None:
    sizes = ((0, MB, 0, 0), (0, 0, 0, 0), (0, 0, 0, 4 * MB), (0, 0, 0, 0))
    done = run(lambda npu: npu.group("world").all_to_all_uneven("it", sizes, "dma"), 4)
    assert [done.lasts_us("it", rank) for rank in range(4)] == [14 + 1000, 14 + 1000, 14 + 4000, 14 + 4000]


def test_who_neither_sends_nor_receives_leaves_after_the_latency() -> None:
    sizes = ((0, MB, 0), (0, 0, 0), (0, 0, 0))
    done = run(lambda npu: npu.group("world").all_to_all_uneven("it", sizes, "dma"), 3)
    assert [done.lasts_us("it", rank) for rank in range(3)] == [13 + 1000, 13 + 1000, 13]


def ends(npu: Rank) -> None:
    world = npu.group("world")
    if npu.coordinate("side") == "left":
        world.send("message", 1, MB, "dma")
    else:
        world.recv("message", 0, MB, "dma")


def test_a_message_and_an_exchange_of_a_group_of_two_are_told_apart() -> None:
    def program(npu: Rank) -> None:
        ends(npu)
        exchange(npu)

    done = run(program, 2, place=lambda rank: {"side": "left" if rank == 0 else "right"})
    assert done.us("exchange", 0) == done.us("exchange", 1)
    assert done.us("exchange")[0] == done.us("message")[1]


def test_the_bytes_of_a_message_are_counted_where_they_are_sent_and_in_both_memories() -> None:
    done = run(ends, 2, place=lambda rank: {"side": "left" if rank == 0 else "right"})
    assert [done.row("message", rank)["wire_bytes"] for rank in range(2)] == [MB, 0]
    for rank in range(2):
        assert done.hbm_asked(rank) == pytest.approx(done.moved["hbm", rank]) == 3 * MB


def test_an_all_reduce_has_the_rates_of_its_own_ladder_where_there_is_one() -> None:
    tables = TINY.model_dump()
    rung = {"bytes_per_peer": quantity(1, "MB"), "rate": quantity(0.5, "GB/s")}
    tables["collectives"]["dma"]["ladder"]["all_reduce"] = [rung]
    machine = validate(MachineSpec, tables, "ladder")
    done = run(lambda npu: npu.group("world").all_reduce("it", MB, "dma"), 4, machine=machine)
    assert done.lasts_us("it") == 28 + 2 * 1500
    done = run(lambda npu: npu.group("world").all_gather("it", MB, "dma"), 4, machine=machine)
    assert done.lasts_us("it") == 14 + 3000


@pytest.mark.parametrize(("instances", "message"), [
    ([(0, 1), (2,)], "groups 'pair' have 1 and 2 members: give those of another size a name of their own"),
    ([(0, 1), (1, 2)], "groups 'pair' must hold each of 3 ranks once: wrong for [1]"),
    ([(0,), (1,)], "groups 'pair' must hold each of 3 ranks once: wrong for [2]"),
    ([(0,), (1,), (2,), (3,)], "groups 'pair' must hold each of 3 ranks once: wrong for [3]"),
    ([], "groups 'pair' have no members: give those of another size a name of their own"),
])  # fmt: skip
def test_groups_that_cannot_be_are_refused(instances: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ProgramError, match=re.escape(message)):
        run(lambda npu: npu.launch(passes_mb(1), "it"), 3, groups={"pair": instances})  # type: ignore[arg-type,return-value]


def test_a_message_lasts_as_long_at_both_ends() -> None:
    done = run(ends, 2, place=lambda rank: {"side": "left" if rank == 0 else "right"})
    assert done.us("message", 0) == done.us("message", 1) == (0, 12 + 1000)


def test_a_link_that_is_slow_one_way_slows_that_way_alone() -> None:
    """1 MB at 1 GB/s of the engine, or at a quarter of the link's 2 GB/s."""
    machine = tiny({"fabric.slow": "die 0 to box 0: 0.25"})

    def program(npu: Rank, source: int) -> None:
        own = npu.group("world")
        if npu.rank == source:
            own.send("message", 1 - source, MB, "dma")
        else:
            own.recv("message", source, MB, "dma")

    there, back = (run(lambda npu, source=source: program(npu, source), 2, machine=machine) for source in (0, 1))
    assert there.lasts_us("message") - back.lasts_us("message") == pytest.approx(2000 - 1000, abs=1e-5)


def test_a_message_to_oneself_needs_two_streams() -> None:
    def program(npu: Rank) -> None:
        world = npu.group("world")
        with npu.stream("out"):
            world.send("send", 0, MB, "dma")
        world.recv("recv", 0, MB, "dma")

    assert run(program, 1).lasts_us("recv") == run(program, 1).lasts_us("send")


def test_messages_of_different_groups_do_not_mix() -> None:
    def program(npu: Rank) -> None:
        send = npu.coordinate("side") == "left"
        for name, size in (("a", MB), ("b", 2 * MB)) if send else (("b", 2 * MB), ("a", MB)):
            with npu.stream(name):
                group = npu.group(name)
                _ = group.send(name, 1, size, "dma") if send else group.recv(name, 0, size, "dma")

    done = run(program, 2, groups={"a": [(0, 1)], "b": [(0, 1)]},
               place=lambda rank: {"side": "left" if rank == 0 else "right"})
    assert done.us("a", 0) == done.us("a", 1)
    assert done.us("b", 0) == done.us("b", 1)


# company --------------------------------------------------------------------------------------------------------------


def test_a_late_rank_makes_its_peers_wait() -> None:
    def program(npu: Rank) -> None:
        if npu.rank == 2:
            npu.launch(passes_mb(10), "late")
        exchange(npu)

    done = run(program, 4)
    for rank in range(4):
        row = done.row("exchange", rank)
        assert row["ready_ps"] == (101e6 if rank == 2 else 0)
        assert row["start_ps"] == 101e6  # what the others spend until then is waiting, not work
        assert row["end_ps"] - row["start_ps"] == row["solo_ps"]


@pytest.mark.parametrize(("cores", "units"), [({}, 4), ({"cube": 4, "vector": 7}, 3), ({"cube": 2, "vector": 8}, 2)])
def test_a_kernel_alone_runs_on_as_many_units_as_the_scarcer_pool_has(cores: dict[str, int], units: int) -> None:
    """A unit of it is one of 4 cube cores and 2 of 8 vector cores; 8 tiles."""

    def program(npu: Rank) -> None:
        npu.confine("own", cores)
        with npu.stream("own"):
            npu.launch(ops.gemm(400, 400, 1000, "int8"), "gemm")

    assert run(program).row("gemm")["cores"] == (units, 2 * units)


def test_two_exchanges_on_one_wire_share_it_and_the_queues_hold_them_back() -> None:
    def program(npu: Rank) -> None:
        for number in range(3):
            with npu.stream(f"comm {number}"):
                exchange(npu, f"exchange {number}")

    done = run(program, 2)
    assert [done.us(f"exchange {number}") for number in range(2)] == [(0, 12 + 2000)] * 2
    assert done.us("exchange 2") == (2012, 2012 + 12 + 1000)  # two DMA queues


def test_an_engine_of_vector_cores_takes_them_from_kernels() -> None:
    def program(npu: Rank) -> None:
        with npu.stream("comm"):
            exchange(npu, via="aiv")
        npu.launch(ops.passes(MB, 0), "kernel")

    held, free = run(program, 2), run(lambda npu: (exchange(npu), npu.launch(ops.passes(MB, 0), "kernel")), 2)
    assert held.row("kernel")["start_ps"] == 0  # half of the vector cores are left
    assert held.lasts_us("kernel") > free.lasts_us("kernel")


def test_who_waits_in_an_exchange_knows_for_whom() -> None:
    """Rank 2 comes last; rank 0 comes before it, after a kernel too."""

    def program(npu: Rank) -> None:
        if npu.rank in (0, 2):
            npu.launch(passes_mb(1 + npu.rank), "work")
        npu.group("world").barrier("meet", "dma")

    ran = run(program, 4)
    late = [(ran.row("meet", rank)["late_rank"], ran.row("meet", rank)["late_task"]) for rank in range(4)]
    assert late == [(2, 1), (2, 1), (-1, -1), (2, 1)]


def test_a_read_of_an_eager_host_is_launched_with_its_operators() -> None:
    """Launches of 3 us, 2 of them for an operator; a kernel of 11 us; a read: 3 us of launch and 5 us."""
    machine = tiny({"host.launch_eager": "1 us", "host.device_read": "5 us", "host.operator": "2 us"})

    def program(npu: Rank) -> None:
        npu.program.operators = 1.0
        npu.host_wait(npu.launch(passes_mb(1), "first"), 1)
        npu.launch(passes_mb(1), "second")

    assert run(program, machine=machine).us("second")[0] == 3 + 11 + 3 + 5 + 3


def test_a_late_rank_holds_its_peers_engines_meanwhile() -> None:
    def program(npu: Rank) -> None:
        if npu.rank == 1:
            npu.launch(passes_mb(10), "late")
        with npu.stream("comm"):
            if npu.rank == 1:
                npu.wait(npu.record())
            exchange(npu, via="aiv")
        if npu.rank == 0:
            npu.launch(ops.passes(MB, 0), "beside")

    assert run(program, 2).row("beside", 0)["start_ps"] == 0


def test_phases_follow_each_other_for_all_together() -> None:
    done = run(lambda npu: npu.group("world").all_reduce("it", 3 * MB, "dma"), 3)
    assert all(isinstance(phase, Phase) for phase in done.replay.meetings.lowering.lower.__wrapped__(
        next(done.world.programs[0].collectives())[1], (0, 1, 2)))
    assert done.lasts_us("it") == 2 * (13 + 2000)


# errors ---------------------------------------------------------------------------------------------------------------


def error(program: Callable[[Rank], None], ranks: int = 2) -> str:
    with pytest.raises(RunError) as caught:
        run(program, ranks)
    return str(caught.value)


def crosswise(npu: Rank) -> None:
    first, second = ("a", "b") if npu.rank == 0 else ("b", "a")
    for name in (first, second):
        npu.group(name).all_gather(f"gather {name}", MB, "dma")


def test_two_collectives_in_opposite_order_are_a_deadlock() -> None:
    with pytest.raises(RunError) as caught:
        run(crosswise, 2, groups={"a": [(0, 1)], "b": [(0, 1)]})
    assert str(caught.value) == "\n".join([
        "deadlock: 2 of 2 simulated ranks can never go on",
        "  rank 0 stream 'compute': task 'gather a' (#0) waits for ranks [1] of group 'a'",
        "  rank 1 stream 'compute': task 'gather b' (#0) waits for ranks [0] of group 'b'",
    ])


def test_a_peer_that_never_comes_is_named_and_so_is_who_waits_behind() -> None:
    def program(npu: Rank) -> None:
        with npu.stream("comm"), npu.scope(layer=5):
            if npu.coordinate("rank") != 1:
                exchange(npu, "dispatch")
            done = npu.record()
        npu.wait(done)
        with npu.scope(layer=6):
            npu.launch(passes_mb(1), "experts")

    assert error(program, 3) == "\n".join([
        "deadlock: 2 of 3 simulated ranks can never go on",
        "  rank 0 stream 'comm': task 'dispatch' (#0 of layer 5) waits for ranks [1] of group 'world'",
        "  rank 0 stream 'compute': task 'experts' (#1 of layer 6) waits for task 'dispatch' (#0 of layer 5) of stream"
        " 'comm'",
        "  rank 2 stream 'comm': task 'dispatch' (#0 of layer 5) waits for ranks [1] of group 'world'",
        "  rank 2 stream 'compute': task 'experts' (#1 of layer 6) waits for task 'dispatch' (#0 of layer 5) of stream"
        " 'comm'",
    ])


def test_a_host_that_is_blocked_for_ever() -> None:
    def program(npu: Rank) -> None:
        if npu.rank == 0:
            with npu.stream("comm"):
                event = npu.group("world").recv("counts", 1, 8, "dma")
            npu.host_wait(event)
            npu.launch(passes_mb(1), "experts")

    assert error(program) == "\n".join([
        "deadlock: 1 of 2 simulated ranks can never go on",
        "  rank 0 host: blocked until task 'counts' (#0) has ended",
        "  rank 0 stream 'comm': task 'counts' (#0) waits for ranks [1] of group 'world'",
        "  rank 0 stream 'compute': task 'experts' (#1) was never launched by the host",
    ])


def test_a_message_to_oneself_on_one_stream_waits_for_its_other_end() -> None:
    def program(npu: Rank) -> None:
        npu.group("world").send("send", 0, 8, "dma")
        npu.group("world").recv("recv", 0, 8, "dma")

    assert error(program, 1) == "\n".join([
        "deadlock: 1 of 1 simulated ranks can never go on",
        "  rank 0 stream 'compute': task 'send' (#0) waits for ranks [0] of group 'world'",
    ])


def test_exchanges_that_hold_each_others_queues_wait_for_cores() -> None:
    def program(npu: Rank) -> None:
        for name in ("ab", "ba")[npu.rank]:
            with npu.stream(name):
                npu.group(name).all_gather(f"gather {name}", MB, "dma")

    with pytest.raises(RunError) as caught:
        run(program, 2, groups={"a": [(0, 1)], "b": [(0, 1)]}, machine=tiny({"chip.cores.sdma": "1"}))
    assert str(caught.value).splitlines()[1:] == [
        "  rank 0 stream 'a': task 'gather a' (#0) waits for ranks [1] of group 'a'",
        "  rank 0 stream 'b': task 'gather b' (#1) waits for cores",
        "  rank 1 stream 'b': task 'gather b' (#0) waits for ranks [0] of group 'b'",
        "  rank 1 stream 'a': task 'gather a' (#1) waits for cores",
    ]


def test_a_long_list_of_ranks_is_cut() -> None:
    def program(npu: Rank) -> None:
        if npu.rank:
            exchange(npu)

    assert error(program, 8).splitlines()[-1] == "  ... and 3 more ranks"


@pytest.mark.parametrize(("mine", "other", "ours", "theirs"), [
    (("all_to_all", MB, "dma"), ("all_gather", MB, "dma"),
     f"all_to_all in world, {MB} B per pair, via dma", f"all_gather in world, {MB} B per pair, via dma"),
    (("all_gather", MB, "dma"), ("all_gather", 5, "dma"),
     f"all_gather in world, {MB} B per pair, via dma", "all_gather in world, 5 B per pair, via dma"),
    (("all_gather", MB, "dma"), ("all_gather", MB, "aiv"),
     f"all_gather in world, {MB} B per pair, via dma", f"all_gather in world, {MB} B per pair, via aiv"),
])
def test_ranks_that_disagree(mine: tuple, other: tuple, ours: str, theirs: str) -> None:
    def program(npu: Rank) -> None:
        kind, size, via = mine if npu.rank == 0 else other
        exchange(npu, "agreed")
        with npu.scope(layer=4):
            getattr(npu.group("world"), kind)("gather", size, via)

    assert error(program) == (
        f"ranks 0 and 1 disagree on exchange 1 of group 'world': rank 0 runs {ours}; rank 1 runs {theirs} "
        "(stream 'compute', task 'gather', layer 4)")


def test_a_message_of_another_size_than_expected_is_a_disagreement() -> None:
    def program(npu: Rank) -> None:
        world = npu.group("world")
        _ = world.send("kv", 1, 8, "dma") if npu.rank == 0 else world.recv("kv", 0, 9, "dma")

    assert "disagree on exchange 0 of group 'world'" in error(program)


@pytest.mark.parametrize(("program", "text"), [
    (lambda npu: exchange(npu, via="nic"), "no engine 'nic' for collectives: this machine has aiv, dma"),
    (lambda npu: npu.launch(ops.gemm(1, 1, 1, dtype="fp4"), "a"),
     "tiny, generation 'round': no kernel family 'gemm_fp4': this generation has gemm_bf16, gemm_int8"),
    (lambda npu: npu.confine("side", {"cube": 5}),
     "stream 'side' is confined to 5 'cube' cores: too many, there are 4"),
    (lambda npu: (npu.confine("side", {"vector": 8}), npu.launch(passes_mb(1), "norm")),
     "task 'norm' of stream 'compute' needs 1 'vector' cores, but only 0 are left for it"),
    (lambda npu: (npu.confine("side", {"vector": 5}), exchange(npu, via="aiv")),
     "task 'exchange' of stream 'compute' needs 4 'vector' cores, but only 3 are left for it"),
])
def test_what_the_machine_does_not_have_is_an_error_of_the_input(program: Callable[[Rank], None], text: str) -> None:
    with pytest.raises(InputError) as caught:
        run(program, 2)
    assert str(caught.value) == text


def test_the_tiny_machine_has_two_queues() -> None:
    assert TINY.chip.cores["sdma"].count == 2
