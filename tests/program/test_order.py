"""The ranks of a group issue its collectives in one order, or are refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from inspect import currentframe
from pathlib import Path
from typing import Any

import pytest

from simulator.paths import folder
from simulator.program.rank import Rank
from simulator.program.task import Collective, ProgramError
from simulator.program.world import Groups, OfSome, World, record_world
from tests.replay.small import everybody, passes_mb

HERE = Path(__file__)


def world_of(program: Callable[[Rank], None], ranks: int = 2, groups: Groups | None = None) -> World:
    return record_world(program, ranks, groups or everybody(ranks), lambda _: {})


def line() -> int:
    """The line that calls this."""
    frame = currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def gathers(npu: Rank, names: str, group: str = "world") -> None:
    for name in names:
        npu.group(group).all_gather(name, 8, "dma")


def in_order(*names: str) -> Callable[[Rank], None]:
    """Every rank issues the exchanges of its names."""
    return lambda npu: gathers(npu, names[npu.rank])


def test_two_orders_are_refused_with_both_ranks_and_lines() -> None:
    lines = {}

    def program(npu: Rank) -> None:
        npu.launch(passes_mb(1), "attention")
        for number in (0, 1) if npu.rank != 2 else (1, 0):
            with npu.stream(f"batch {number}"), npu.scope(layer=3, micro_batch=number):
                if number:
                    lines[1] = line() + 1
                    npu.group("world").all_to_all("dispatch", 8, "dma")
                else:
                    lines[0] = line() + 1
                    npu.group("world").all_to_all("dispatch", 8, "dma")

    with pytest.raises(ProgramError) as caught:
        world_of(program, 4)
    assert str(caught.value) == "\n".join([
        "ranks 0 and 2 issue the collectives of group 'world' in different orders:",
        f"  rank 0 comes first to task 'dispatch' (#1, layer 3, micro-batch 0) of stream 'batch 0': {HERE}:{lines[0]}",
        f"  rank 2 comes first to task 'dispatch' (#1, layer 3, micro-batch 1) of stream 'batch 1': {HERE}:{lines[1]}",
        "  all members must issue them in the same order, whatever their streams",
    ])


def test_a_workload_of_the_library_has_lines_too() -> None:
    file = folder("workloads") / "in_two_orders.py"
    names: dict[str, Any] = {"__name__": "workloads.in_two_orders"}
    text = "def program(npu):\n    for name in ('ab', 'ba')[npu.rank]:\n        npu.group('world').barrier(name, 'dma')"
    exec(compile(text, str(file), "exec"), names)
    with pytest.raises(ProgramError) as caught:
        world_of(names["program"])
    assert str(caught.value).count(f": {file}:3\n") == 2


@pytest.mark.parametrize("orders", [
    ("ab", "ba"), ("abc", "acb"), ("aab", "aba"), ("xaby", "zba"), ("xy", "ab", "ba"), ("ab", "ab", "xy", "ba")])
def test_what_two_ranks_swap_is_refused(orders: tuple[str, ...]) -> None:
    with pytest.raises(ProgramError, match="in different orders"):
        world_of(in_order(*orders), len(orders))


@pytest.mark.parametrize("orders", [("ab", "ab"), ("aa", "aa"), ("ab", "xy"), ("abc", "ac"), ("axb", "ayb"),
                                    ("", "ab")])
def test_other_names_and_exchanges_of_one_rank_alone_are_no_other_order(orders: tuple[str, ...]) -> None:
    world_of(in_order(*orders))


def test_streams_may_differ() -> None:
    def program(npu: Rank) -> None:
        for name in "ab":
            with npu.stream(f"{name} of rank {npu.rank}"):
                gathers(npu, name)

    world_of(program)


def test_every_group_has_an_order_of_its_own() -> None:
    apart: Groups = {"pair": [(0, 1), (2, 3)], "all": [(0, 1, 2, 3)]}
    world_of(lambda npu: gathers(npu, ("ab", "ba")[npu.rank // 2], "pair"), 4, apart)
    with pytest.raises(ProgramError, match="ranks 0 and 2 issue the collectives of group 'all'"):
        world_of(lambda npu: gathers(npu, ("ab", "ba")[npu.rank // 2], "all"), 4, apart)

    def crosswise(npu: Rank) -> None:
        for group in ("pair", "all")[:: 1 - 2 * (npu.rank % 2)]:
            gathers(npu, "a", group)

    world_of(crosswise, 4, apart)


def one_sided(puts: str, collects: str, first: str) -> Callable[[Rank], None]:
    """Rank 0 puts and collects a, then b; rank 1 in these orders."""
    def program(npu: Rank) -> None:
        own = {"put": "ab", "collect": "ab"} if npu.rank == 0 else {"put": puts, "collect": collects}
        for kind in sorted(own, reverse=first == "put" or npu.rank == 0):
            for name in own[kind]:
                if kind == "put":
                    npu.group("world").put(name, 8, 8, "dma")
                else:
                    npu.group("world").collect(name, "dma")

    return program


def test_puts_and_collects_are_counted_each_by_themselves() -> None:
    world_of(one_sided("ab", "ab", "collect"))
    for puts, collects in (("ba", "ab"), ("ab", "ba")):
        with pytest.raises(ProgramError, match="in different orders"):
            world_of(one_sided(puts, collects, "put"))


def test_messages_meet_by_rank() -> None:
    def program(npu: Rank) -> None:
        world, other = npu.group("world"), 1 - npu.rank
        if npu.rank == 0:
            world.send("there", other, 8, "dma")
            world.recv("back", other, 8, "dma")
        else:
            with npu.stream("back"):
                world.send("back", other, 8, "dma")
            world.recv("there", other, 8, "dma")

    world_of(program)


def test_ranks_of_one_recording_agree_whatever_their_numbers() -> None:
    def program(npu: Rank) -> None:
        for name in "ab":
            npu.launch_by_rank(lambda rank: Collective("put", "world", "dma", sent_bytes=rank, received_bytes=1), name)

    assert len({id(program) for program in world_of(program, 3).programs}) == 3


# --- groups of some ranks --------------------------------------------------------------------------------------------


def some(*instances: tuple[int, ...]) -> Groups:
    return {**everybody(4), "some": OfSome(instances)}


def test_groups_of_some_ranks_are_theirs_alone() -> None:
    def program(npu: Rank) -> None:
        if npu.rank in (1, 3):
            gathers(npu, "a", "some")

    world = world_of(program, 4, some((1, 3)))
    assert world.instance("some", 1) == (1, 3)
    assert world.instance("some", 0) == ()


def test_a_rank_outside_such_a_group_is_refused_with_its_line() -> None:
    lines = {}

    def program(npu: Rank) -> None:
        lines[0] = line() + 1
        npu.group("some").all_gather("weights", 8, "dma")

    with pytest.raises(ProgramError) as caught:
        world_of(program, 4, some((1, 3)))
    assert str(caught.value).startswith("rank 0 launches 'weights' in group 'some', of which it is no member: ")
    assert str(caught.value).endswith(f"{HERE.name}:{lines[0]}")


@pytest.mark.parametrize("instances", [((1, 3), (3, 2)), ((1, 4),)])
def test_some_ranks_are_each_there_once(instances: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ProgramError, match="groups 'some' must hold some of 4 ranks once: wrong for"):
        world_of(lambda npu: None, 4, some(*instances))
