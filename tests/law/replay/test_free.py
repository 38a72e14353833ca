"""A block that was made free: it takes nothing, moves nothing, holds nothing, and everything else stays in order."""

from __future__ import annotations

import pytest

from simulator.observe.critical import critical_path
from simulator.program.free import without_cost
from simulator.program.rank import Rank
from simulator.program.task import ProgramError
from simulator.program.world import record_world
from tests.replay.small import TINY, everybody, passes_mb, replay, run, tiny

KB = 1000


def chain(npu: Rank) -> None:
    """Three kernels and a collective, one after the other."""
    npu.launch(passes_mb(1), "a.first")
    npu.launch(passes_mb(2), "b")
    npu.group("world").all_to_all("move", 100 * KB, "dma")
    npu.launch(passes_mb(1), "a.second")


@pytest.mark.parametrize(("block", "us"), [("a", 22), ("b", 21), ("move", 114)])
def test_of_one_stream_it_saves_its_share_to_the_picosecond(block: str, us: int) -> None:
    world = record_world(chain, 2, everybody(2), lambda _: {})
    before, after = replay(world), replay(without_cost(world, [block]))
    path = critical_path(before.columns)
    share = sum(one.to_ps - one.from_ps for one in path.segments if one.name.partition(".")[0] == block)
    assert before.makespan_ps - after.makespan_ps == share
    assert share == pytest.approx(us * 10**6, rel=0.05)


def two_streams(npu: Rank) -> None:
    """A kernel beside a longer chain; their bytes meet in HBM."""
    npu.launch(passes_mb(1), "long.first")
    with npu.stream("other"):
        npu.launch(passes_mb(0.5), "short")
    npu.launch(passes_mb(1), "long.second")


@pytest.mark.parametrize("block", ["long", "short"])
def test_of_two_streams_it_saves_no_more_than_its_share_and_the_slowing_of_others(block: str) -> None:
    world = record_world(two_streams, 1, everybody(1), lambda _: {})
    before, after = replay(world), replay(without_cost(world, [block]))
    saved = before.makespan_ps - after.makespan_ps
    path = critical_path(before.columns)
    share = sum(one.to_ps - one.from_ps for one in path.segments if one.name.partition(".")[0] == block)
    slowed = int((before.columns["end_ps"] - before.columns["start_ps"] - before.columns["solo_ps"]).sum())
    assert 0 <= saved <= share + slowed + 2


def test_it_moves_and_holds_nothing_and_keeps_streams_and_waits() -> None:
    world = record_world(chain, 2, everybody(2), lambda _: {})
    before, after = replay(world), replay(without_cost(world, ["a", "move"]))
    for column in ("rank", "task", "stream", "name", "kind", "layer", "after", "communication"):
        assert before.columns[column].tolist() == after.columns[column].tolist(), column
    free = [name != "b" for name in after.columns["name"]]
    for column in ("flops", "hbm_bytes", "wire_bytes", "solo_ps"):
        assert not after.columns[column][free].any(), column
    assert sum(after.moved.values()) == pytest.approx(2 * sum(run(_only_b).moved.values()))


def _only_b(npu: Rank) -> None:
    npu.launch(passes_mb(2), "b")


def test_members_of_a_free_collective_still_meet() -> None:
    def program(npu: Rank) -> None:
        npu.launch(passes_mb(1 + npu.rank), "own")
        npu.group("world").all_gather("gather", 100 * KB, "dma")
        npu.launch(passes_mb(1), "after")

    world = record_world(program, 3, everybody(3), lambda _: {})
    done = replay(without_cost(world, ["gather"]))
    assert {done.us("gather", rank) for rank in range(3)} == {(31.0, 31.0)}
    assert {done.us("after", rank)[0] for rank in range(3)} == {31.0}


def one_sided(npu: Rank) -> None:
    """Rank 1 puts later than rank 0."""
    npu.launch(passes_mb(1 + npu.rank), "own")
    npu.group("world").put("give", 100 * KB, 100 * KB, "dma")
    npu.group("world").collect("take", "dma")


@pytest.mark.parametrize(("blocks", "us"), [(["give"], 22.0), (["give", "take"], 21.0)])
def test_a_free_put_still_has_to_be_made_before_it_is_collected(blocks: list[str], us: float) -> None:
    """A collect that is not free takes the latency of 1 us."""
    world = record_world(one_sided, 2, everybody(2), lambda _: {})
    done = replay(without_cost(world, blocks))
    assert [done.us("take", rank)[1] for rank in range(2)] == [us, us]


def test_a_free_kernel_waits_for_no_cores() -> None:
    """Two kernels take all vector cores in turn; a free one of another stream passes them both."""
    def program(npu: Rank) -> None:
        npu.launch(passes_mb(3), "full")
        with npu.stream("beside"):
            npu.launch(passes_mb(3), "queued")
        with npu.stream("third"):
            npu.launch(passes_mb(1), "free")

    world = record_world(program, 1, everybody(1), lambda _: {})
    assert replay(world).us("free")[1] > 10.0
    assert replay(without_cost(world, ["free"])).us("free") == (0.0, 0.0)


def test_a_free_prefetch_leaves_its_weights_and_a_free_kernel_none() -> None:
    from dataclasses import replace

    reading = replace(passes_mb(0), weight_bytes=1e6, weights="w")

    def program(npu: Rank) -> None:
        npu.prefetch("w", 1e6)
        npu.launch(reading, "reader")

    world = record_world(program, 1, everybody(1), lambda _: {})
    done = replay(without_cost(world, ["prefetch"]))
    assert done.us("prefetch w") == (0.0, 0.0)
    assert done.lasts_us("reader") == pytest.approx(replay(world).lasts_us("reader"))
    assert done.moved["hbm", 0] == pytest.approx(0.0), "the reader finds its weights in L2"


def test_the_host_still_launches_what_is_free() -> None:
    slow = tiny({"host.launch_eager": "50 us"})
    world = record_world(chain, 2, everybody(2), lambda _: {})
    blocks = ["a", "b", "move"]
    assert replay(without_cost(world, blocks), slow).makespan_ps == 4 * 50 * 10**6
    assert replay(without_cost(world, blocks), TINY).makespan_ps == 0


def test_without_blocks_it_is_the_same_world_and_one_that_is_not_there_is_refused() -> None:
    world = record_world(chain, 2, everybody(2), lambda _: {})
    assert without_cost(world, []) is world
    with pytest.raises(ProgramError, match=r"no block 'mov' .*did you mean 'move'.* there are a, b, move"):
        without_cost(world, ["mov"])


def test_ranks_with_works_of_their_own_have_them_free_too_and_share_what_they_shared() -> None:
    def program(npu: Rank) -> None:
        npu.launch_by_rank(lambda rank: passes_mb(1 + rank % 2), "own")
        npu.group("world").all_gather("gather", 100 * KB, "dma")
        npu.launch(passes_mb(1), "own.too")

    world = record_world(program, 4, everybody(4), lambda _: {})
    free = without_cost(world, ["own"])
    assert replay(free).makespan_ps == pytest.approx(10**6 * (10 + 1 + 4 + 100 * 3), rel=0.01)
    assert len({id(one) for one in free.programs}) == len({id(one) for one in world.programs}) == 2
    assert replay(free, fold=True).makespan_ps == replay(free).makespan_ps
