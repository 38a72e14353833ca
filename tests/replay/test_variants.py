"""Ranks that share a recording and differ in numbers run as if each had been recorded for itself."""

from __future__ import annotations

from simulator.program.rank import Rank
from simulator.program.task import Collective
from simulator.program.world import record_world
from simulator.replay.tape import Compiler
from tests.replay.small import TINY, everybody, passes_mb, replay


def put(rank: int) -> Collective:
    return Collective("put", "world", "aiv", sent_bytes=(rank + 1) * 300000, received_bytes=900000)


def shared(npu: Rank) -> None:
    npu.launch(passes_mb(1), "same")
    npu.launch_by_rank(lambda rank: passes_mb(1 + rank), "own")
    npu.launch_by_rank(put, "out")
    npu.group("world").collect("in", "aiv")


def separate(npu: Rank) -> None:
    npu.launch(passes_mb(1), "same")
    npu.launch(passes_mb(1 + npu.rank), "own")
    npu.launch(put(npu.rank), "out")
    npu.group("world").collect("in", "aiv")


def test_it_runs_as_if_every_rank_had_been_recorded() -> None:
    worlds = [record_world(program, 4, everybody(4), lambda _: {}) for program in (shared, separate)]
    assert [str(program) for program in worlds[0].programs] == [str(program) for program in worlds[1].programs]
    one, other = replay(worlds[0]), replay(worlds[1])
    assert one.times() == other.times()
    for column in ("flops", "hbm_bytes", "wire_bytes"):
        assert (one.columns[column] == other.columns[column]).all()


def test_its_exchanges_and_launches_are_those_that_every_rank_would_record() -> None:
    one, other = (record_world(program, 4, everybody(4), lambda _: {}).programs for program in (shared, separate))
    for ours, theirs in zip(one, other, strict=True):
        assert [work for _, work in ours.collectives()] == [work for _, work in theirs.collectives()]
        assert (ours.launches, ours.families()) == (theirs.launches, theirs.families())


def test_folding_keeps_ranks_apart_that_have_numbers_of_their_own() -> None:
    world = record_world(shared, 4, everybody(4), lambda _: {})
    assert len(replay(world, fold=True).roles.leaders) == 4


def test_what_is_the_same_is_compiled_once() -> None:
    world = record_world(shared, 4, everybody(4), lambda _: {})
    compiler = Compiler(TINY, next(iter(TINY.kernels)), {"world": 4})
    tapes = [compiler.tape(program) for program in world.programs]
    assert all(tape.steps is tapes[0].steps for tape in tapes)
    assert all(tape.costs[0] is tapes[0].costs[0] for tape in tapes)
    assert len({id(tape.costs[1]) for tape in tapes}) == 4
    assert len({id(compiler.column(program, "name")) for program in world.programs}) == 1


def test_a_program_that_never_varies_is_shared() -> None:
    def program(npu: Rank) -> None:
        npu.launch(passes_mb(1), "a")

    world = record_world(program, 4, everybody(4), lambda _: {})
    assert len({id(program) for program in world.programs}) == 1


def test_flags_move_and_compute_nothing() -> None:
    def program(npu: Rank) -> None:
        npu.set_flag("set", "a")
        npu.wait_flag("wait", "b", cores=(("vector", 2),))

    recorded = record_world(program, 1, everybody(1), lambda _: {}).programs[0]
    compiler = Compiler(TINY, next(iter(TINY.kernels)), {"world": 1})
    for name in ("flops", "l2_bytes", "hbm_bytes", "wire_bytes"):
        assert compiler.column(recorded, name) == [0.0, 0.0], name
    assert compiler.column(recorded, "engine") == ["flag", "vector"]
    assert compiler.column(recorded, "communication") == [True, True]
    assert compiler.column(recorded, "unit_cores") == [(), (2,)]
