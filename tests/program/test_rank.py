"""Recording: where launches go, what they wait for, and what a program may not do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulator.model import ops
from simulator.program import world
from simulator.program.rank import Rank
from simulator.program.task import Collective, HostWait, Program, ProgramError
from simulator.program.world import record_shared, record_world
from tests.replay.small import everybody, passes_mb

GOLDEN = Path(__file__).parents[1] / "golden"


def recorded(program: Callable[[Rank], None], ranks: int = 4, **place: object) -> Program:
    npu = Rank({"rank": 0, **place}, {"world": ranks})
    program(npu)
    return npu.program


def micro_batches(npu: Rank) -> None:
    """Two micro-batches: attention here, an exchange beside it, experts after; the host reads the sizes of each."""
    world = npu.group("world")
    exchanged = []
    for number in range(2):
        with npu.scope(layer=3, micro_batch=number):
            attention = npu.launch(ops.gemm(100, 200, 400), "attention")
            with npu.stream("comm"):
                npu.wait(attention)
                exchanged.append(world.all_to_all("dispatch", 1_000, "dma"))
    npu.prefetch("experts", 2e6, 1e9)
    for number, event in enumerate(exchanged):
        npu.host_wait(event)
        npu.wait(event)
        with npu.scope(layer=3, micro_batch=number):
            npu.launch(ops.grouped_gemm((10, 0, 30), 200, 400), "experts")
    npu.launch(ops.flash_attention(((64, 64, True),), 8, 192, 128), "last")
    world.all_to_all_uneven("uneven", ((0, 1), (2, 0)) if world.size == 2 else ((0,) * 4,) * 4, "aiv")


# text and equality ----------------------------------------------------------------------------------------------------


def test_a_program_reads_as_its_author_wrote_it() -> None:
    assert str(recorded(micro_batches)) + "\n" == (GOLDEN / "program.txt").read_text(encoding="utf-8")


def test_programs_compare_without_running() -> None:
    def other(npu: Rank) -> None:
        micro_batches(npu)
        npu.launch(passes_mb(1), "one more")

    assert recorded(micro_batches) == recorded(micro_batches)
    assert recorded(micro_batches) != recorded(other)
    assert recorded(micro_batches) != recorded(micro_batches, ranks=2)


# streams and events ---------------------------------------------------------------------------------------------------


def test_streams_and_scopes_end_with_their_block_even_after_an_error() -> None:
    def program(npu: Rank) -> None:
        with pytest.raises(KeyError), npu.stream("side"), npu.scope(layer=1, micro_batch=2):
            npu.launch(passes_mb(1), "inside")
            raise KeyError
        npu.launch(passes_mb(1), "outside")
        with npu.scope(layer=1), npu.scope(micro_batch=0):
            npu.launch(passes_mb(1), "both")

    tasks = recorded(program).tasks
    assert [(task.stream, task.layer, task.micro_batch) for task in tasks] == [
        ("side", 1, 2), ("compute", -1, -1), ("compute", 1, 0)]


def test_a_wait_binds_the_next_launch_of_its_stream_alone() -> None:
    def program(npu: Rank) -> None:
        first = npu.launch(passes_mb(1), "first")
        second = npu.launch(passes_mb(1), "second")
        with npu.stream("side"):
            npu.wait(second)
            npu.wait(first)
            npu.wait(first)
            npu.launch(passes_mb(1), "waits for both")
            npu.launch(passes_mb(1), "follows it")
        npu.wait(second)
        npu.launch(passes_mb(1), "follows second anyway")

    assert [task.after for task in recorded(program).tasks] == [(), (), (0, 1), (), ()]


def test_an_event_on_an_empty_stream_is_reached_at_once() -> None:
    def program(npu: Rank) -> None:
        with npu.stream("empty"):
            event = npu.record()
        npu.wait(event)
        npu.host_wait(event)
        npu.launch(passes_mb(1), "free")

    program_of = recorded(program)
    assert program_of.items == program_of.tasks
    assert program_of.tasks[0].after == ()


def test_a_host_wait_for_an_event_of_two_tasks_reads_once() -> None:
    def program(npu: Rank) -> None:
        first = npu.launch(passes_mb(1), "first")
        with npu.stream("side"):
            npu.launch(passes_mb(1), "second")
            npu.wait(first)
            both = npu.record()
        npu.host_wait(both, reads=3)

    assert [item for item in recorded(program).items if isinstance(item, HostWait)] == [HostWait(1, 0), HostWait(0, 3)]


@pytest.mark.parametrize(("how", "who"), [("wait", "stream 'comm'"), ("host_wait", "the host")])
def test_waiting_for_an_event_that_was_never_recorded_names_everything(how: str, who: str) -> None:
    def program(npu: Rank) -> None:
        late = npu.event("dispatched")
        with npu.scope(layer=7, micro_batch=1), npu.stream("comm"):
            getattr(npu, how)(late)

    with pytest.raises(ProgramError) as caught:
        recorded(program)
    assert str(caught.value) == (
        f"{who} waits for event 'dispatched', which was never recorded (layer 7, micro-batch 1)")


def test_an_event_may_be_made_first_and_recorded_later() -> None:
    def program(npu: Rank) -> None:
        event = npu.event("later")
        npu.launch(passes_mb(1), "a")
        npu.record(event)
        with npu.stream("side"):
            npu.wait(event)
            npu.launch(passes_mb(1), "b")

    assert recorded(program).tasks[1].after == (0,)


@pytest.mark.parametrize(("how", "who"), [
    ("wait", "stream 'comm' waits for"), ("host_wait", "the host waits for"), ("record", "stream 'comm' records")])
def test_an_event_of_another_rank_is_refused(how: str, who: str) -> None:
    kept = []

    def program(npu: Rank) -> None:
        if npu.rank == 0:
            kept.append(npu.launch(passes_mb(1), "attention"))
        npu.launch(passes_mb(1), "a task of that number")
        with npu.scope(layer=7, micro_batch=1), npu.stream("comm"):
            if npu.rank == 1:
                getattr(npu, how)(kept[0])

    with pytest.raises(ProgramError) as caught:
        record_world(program, 2, everybody(2), lambda _: {})
    assert str(caught.value) == (
        f"rank 1: {who} event 'attention' of rank 0 (layer 7, micro-batch 1): events order the work of one rank; "
        "ranks meet in collectives, or in send and recv")


def test_an_event_that_was_not_yet_recorded_is_its_ranks_own_too() -> None:
    late = Rank({"rank": 3}, {}).event("late")
    with pytest.raises(ProgramError, match="event 'late' of rank 3"):
        recorded(lambda npu: npu.wait(late))


def test_an_event_kept_from_an_earlier_recording_is_refused() -> None:
    kept = []

    def program(npu: Rank) -> None:
        kept.append(npu.launch(passes_mb(1), "attention"))
        npu.wait(kept[0])

    recorded(program)
    with pytest.raises(ProgramError, match="event 'attention' of an earlier recording of rank 0"):
        recorded(program)


# groups ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("program", "text"), [
    (lambda npu: npu.group("ep"), "no group 'ep' in this layout: there are world"),
    (lambda npu: npu.coordinate("stage"), "no coordinate 'stage': there are rank, role"),
    (lambda npu: npu.group("world").send("kv", 4, 8, "dma"), "send 'kv': group 'world' has members 0 to 3, not 4"),
    (lambda npu: npu.group("world").recv("kv", -1, 8, "dma"), "recv 'kv': group 'world' has members 0 to 3, not -1"),
    (lambda npu: npu.group("world").all_to_all_uneven("dispatch", ((0, 1), (1, 0)), "dma"),
     "all_to_all 'dispatch' in group 'world' of 4: sizes must be 4 x 4"),
])
def test_what_does_not_exist_is_named_with_what_does(program: Callable[[Rank], None], text: str) -> None:
    with pytest.raises(ProgramError) as caught:
        recorded(program, role="decode")
    assert str(caught.value) == text


def test_sizes_are_whole_bytes() -> None:
    program = recorded(lambda npu: npu.group("world").all_gather("gather", 1e6 / 3, "dma"))  # type: ignore[arg-type]
    (_, collective), = program.collectives()
    assert collective == Collective("all_gather", "world", "dma", 333_333)


# who records what -----------------------------------------------------------------------------------------------------


def test_ranks_that_ask_nothing_share_one_recording() -> None:
    calls = []

    def program(npu: Rank) -> None:
        calls.append(npu)
        npu.launch(passes_mb(1), "a")

    world = record_world(program, 6, everybody(6), lambda rank: {"role": rank % 2})
    assert len(calls) == 1
    assert len({id(each) for each in world.programs}) == 1


def test_ranks_with_the_same_answers_share_one_recording() -> None:
    def program(npu: Rank) -> None:
        if npu.coordinate("role") == "decode":
            npu.launch(passes_mb(1), "decode")
        elif npu.coordinate("batch"):
            npu.launch(passes_mb(1), "prefill")

    place = [{"role": "prefill", "batch": 0}, {"role": "decode", "batch": 0}, {"role": "decode", "batch": 1},
             {"role": "prefill", "batch": 1}, {"role": "prefill", "batch": 0}]
    programs = record_world(program, 5, everybody(5), lambda rank: place[rank]).programs
    assert [[other is one for other in programs].index(True) for one in programs] == [0, 1, 1, 3, 0]


def test_ranks_of_one_kind_share_one_recording() -> None:
    asked = []

    def program(npu: Rank) -> None:
        asked.append(npu.first)
        if npu.kind("rank", lambda rank: rank % 3 == 0) and npu.kind("side", lambda side: side < 2):
            npu.launch(ops.copy(1_000), "copy")
        else:
            npu.launch_by_rank(lambda rank: passes_mb(1 + rank), "own")

    done = record_world(program, 6, everybody(6), lambda rank: {"side": rank // 3})
    assert asked == [0, 1]
    assert [len({id(one) for one in done.programs[some]}) for some in (slice(0, 6, 3), slice(6))] == [1, 5]
    with pytest.raises(ProgramError, match="no coordinate 'team'"):
        record_world(lambda npu: npu.kind("team", bool) and None, 2, everybody(2), lambda rank: {})


def test_equal_recordings_are_one() -> None:
    def program(npu: Rank) -> None:
        npu.launch(passes_mb(1 + npu.rank // 2), "work")

    programs = record_world(program, 4, everybody(4), lambda _: {}).programs
    assert [[other is one for other in programs].index(True) for one in programs] == [0, 0, 2, 2]


def test_ranks_that_ask_who_they_are_record_their_own() -> None:
    def program(npu: Rank) -> None:
        npu.launch(passes_mb(npu.rank), f"rank {npu.rank}")

    programs = record_world(program, 3, everybody(3), lambda _: {}).programs
    assert [str(program.tasks[0].name) for program in programs] == ["rank 0", "rank 1", "rank 2"]


def test_works_by_rank_are_left_as_they_are_for_the_first_rank_until_they_are_wanted() -> None:
    asked = []

    def program(npu: Rank) -> None:
        npu.launch_all_by_rank(lambda rank: asked.append(rank) or [("one", passes_mb(rank)), ("two", passes_mb(9))])  # type: ignore[func-returns-value]

    shared = record_shared(program, 3, everybody(3), lambda _: {})
    assert asked == [0]
    assert len({id(each) for each in shared.programs}) == 1
    assert str(shared.programs[2]) == str(record_world(program, 3, everybody(3), lambda _: {}).programs[0])


def test_works_by_rank_are_as_many_on_every_rank() -> None:
    def program(npu: Rank) -> None:
        npu.launch_all_by_rank(lambda rank: [("part", passes_mb(1))] * (2 if rank == 1 else 1))

    with pytest.raises(ProgramError, match="from 'part' on, ranks launch different numbers of works"):
        record_world(program, 3, everybody(3), lambda _: {})


def test_works_by_rank_are_as_many_on_ranks_that_are_looked_at_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "AT_ONCE", 2)

    def program(npu: Rank) -> None:
        npu.launch_all_by_rank(lambda rank: [("part", passes_mb(1))] * (2 if rank > 1 else 1))
        npu.group("world").barrier("end", "dma")

    with pytest.raises(ProgramError, match="ranks 0 and 2 launch different numbers of works"):
        record_world(program, 4, everybody(4), lambda _: {})


def test_works_by_rank_that_the_first_rank_has_none_of_are_refused() -> None:
    with pytest.raises(ProgramError, match="rank 0 has none of the works that depend on the rank"):
        record_world(lambda npu: npu.launch_all_by_rank(lambda _: []), 2, everybody(2), lambda _: {})


def test_messages_and_tables_may_be_of_numpy_or_lists() -> None:
    def program(npu: Rank) -> None:
        group = npu.group("world")
        group.all_to_all_uneven("exchange", [[0, 1], [1, 0]], "dma")  # type: ignore[arg-type]
        group.send("there", np.int64(0), 4, "dma")  # type: ignore[arg-type]

    _, exchanged = zip(*record_world(program, 2, everybody(2), lambda _: {}).programs[0].collectives(), strict=True)
    assert exchanged[0].sizes == ((0, 1), (1, 0))
    assert type(exchanged[1].peer) is int


def test_an_algorithm_that_a_collective_does_not_know() -> None:
    with pytest.raises(ProgramError, match=r"all_gather 'it' .*no algorithm 'rnig' \(did you mean 'ring'\?\)"):
        recorded(lambda npu: npu.group("world").all_gather("it", 8, "dma", "rnig") and None)
    with pytest.raises(ProgramError, match=r"all_reduce 'it' .*no algorithm 'pairwise'.* there are direct"):
        recorded(lambda npu: npu.group("world").all_reduce("it", 8, "dma", "pairwise") and None)
