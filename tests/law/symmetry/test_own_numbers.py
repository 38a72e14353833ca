"""Ranks with numbers of their own, slower and dead links: exactly those classes split that differ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.die.kernels import Work
from simulator.fabric.graph import Fabric
from simulator.model import ops
from simulator.model.layout import blocks, strides
from simulator.program.rank import Event, Rank
from simulator.program.task import Collective
from simulator.program.world import Groups, World, record_world
from simulator.spec.load import override
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import validate
from tests.die.machines import level
from tests.law.replay.clusters import KB, SLOW_MEMORY, STREAMS
from tests.law.symmetry.test_roles import assert_plain, assert_same
from tests.replay.small import TINY, passes_mb, replay, run

MESH = validate(MachineSpec, {
    **TINY.model_dump(), "name": "mesh",
    "fabric": [level("node", "mesh", 4, 2, 1), level("top", "switch", 2, 1.5, 3, ports="die")],
}, "mesh")  # fmt: skip
WIDE = validate(MachineSpec, {
    **TINY.model_dump(), "name": "wide",
    "fabric": [level("node", "switch", 2, 2, 1), level("top", "switch", 4, 4, 3)],  # one-sided exchanges can cross it
}, "wide")  # fmt: skip


@dataclass(frozen=True)
class Differing:
    """kinds: of every rank; what depends on it differs from kind to kind. slower, dead: links, by number."""

    machine: MachineSpec
    kinds: tuple[int, ...]
    script: tuple[tuple[Any, ...], ...]
    slower: tuple[tuple[int, float], ...] = ()
    dead: int = -1

    @property
    def groups(self) -> Groups:
        ranks = len(self.kinds)
        size = 2 if ranks % 2 == 0 else 1
        return {"world": blocks(ranks, ranks), "near": blocks(ranks, size), "far": strides(ranks, size)}

    def fabric(self) -> Fabric:
        """With the links that are slower or missing."""
        fabric = Fabric(self.machine, len(self.kinds))
        puts = any(what == "put" for what, *_ in self.script)
        for number, factor in self.slower:
            # a put is refused where links further in are slower than ports, and dies have the ports
            edges = [edge for edge in fabric.graph.edges if not puts or any("die" in end for end in edge)]
            fabric.graph.edges[edges[number % len(edges)]]["rate_bytes_per_s"] *= factor
        inside = [edge for edge in fabric.graph.edges if edge[0] < edge[1] and all("die" in end for end in edge)]
        if self.dead >= 0 and inside and len(self.kinds) > 2:  # there is a way around it
            one, other = inside[self.dead % len(inside)]
            fabric.graph.remove_edges_from([(one, other), (other, one)])
        return fabric

    def world(self) -> World:
        place = {rank: members.index(rank) for members in self.groups["near"] for rank in members}
        return record_world(self.program, len(self.kinds), self.groups, lambda rank: {"place": place[rank]})

    def program(self, npu: Rank) -> None:
        events: list[Event] = []
        for number, (what, stream, *how) in enumerate(self.script):
            with npu.stream(stream):
                if what == "wait":
                    if events:
                        npu.wait(events[how[0] % len(events)])
                elif what == "kernel":
                    work = partial(self.kernel, *how)
                    events.append(npu.launch_by_rank(work, f"kernel {number}"))
                elif what in ("put", "uneven"):
                    group, size, engine = how
                    exchange = self.put if what == "put" else self.uneven
                    events.append(npu.launch_by_rank(partial(exchange, group, size, engine), f"{what} {number}"))
                    if what == "put":
                        events.append(npu.group(group).collect(f"collect {number}", engine))
                elif what == "message":
                    pair, (size, engine) = npu.group("near"), how
                    if pair.size == 2:
                        post, peer = (pair.send, 1) if npu.coordinate("place") == 0 else (pair.recv, 0)
                        events.append(post(f"message {number}", peer, size * KB, engine))
                else:
                    group, size, engine = how
                    events.append(getattr(npu.group(group), what)(f"{what} {number}", size * KB, engine))

    def kernel(self, family: str, size: int, rank: int) -> Work:
        size *= 1 + self.kinds[rank]
        return ops.passes(size * 10 * KB, 0) if family == "vector" else ops.gemm(size * 50, 200, 500, dtype=family)

    def put(self, group: str, size: int, engine: str, rank: int) -> Collective:
        sent, received = size * KB * (1 + self.kinds[rank]), size * KB * (8 - self.kinds[rank])
        return Collective("put", group, engine, sent_bytes=sent, received_bytes=received)

    def uneven(self, group: str, size: int, engine: str, rank: int) -> Collective:
        members = next(each for each in self.groups[group] if rank in each)
        kinds = [self.kinds[member] for member in members]
        sizes = tuple(tuple(size * KB * (1 + here + 2 * there) for there in kinds) for here in kinds)
        return Collective("all_to_all", group, engine, sizes=sizes)


stream, engine = st.sampled_from(STREAMS), st.sampled_from(["dma", "aiv"])
group = st.sampled_from(["world", "near", "far"])
size = st.sampled_from([1, 12, 60])
kernel = st.tuples(st.just("kernel"), stream, st.sampled_from(["vector", "bf16", "int8"]), st.integers(1, 6))
exchange = st.tuples(st.sampled_from(["put", "uneven", "all_to_all", "all_gather"]), stream, group, size, engine)
two_sided = exchange.filter(lambda one: one[0] != "put")
message = st.tuples(st.just("message"), stream, size, engine)
wait = st.tuples(st.just("wait"), stream, st.integers(0, 20))
kinds = st.sampled_from([2, 3, 4, 8]).flatmap(
    lambda ranks: st.lists(st.sampled_from([0, 0, 1, 2]), min_size=ranks, max_size=ranks).map(tuple))
machines = st.builds(override, st.sampled_from([TINY, WIDE, MESH]), st.sampled_from([{}, SLOW_MEMORY]))
slower = st.lists(st.tuples(st.integers(0, 99), st.sampled_from([0.5, 0.125])), max_size=2).map(tuple)
scripts = st.lists(st.one_of(kernel, exchange, exchange, message, wait), min_size=1, max_size=8).map(tuple)
without_puts = st.lists(st.one_of(kernel, two_sided, two_sided, message, wait), min_size=1, max_size=8).map(tuple)
differing = st.builds(Differing, machines, kinds, scripts, slower) | st.builds(
    Differing, machines, kinds, without_puts, slower, st.integers(0, 99))


@pytest.mark.parametrize("mode", ["auto", "classes", "pairwise"])
@settings(deadline=None, max_examples=60)
@given(one=differing)
def test_folded_equals_unfolded(mode: str, one: Differing) -> None:
    world = one.world()
    folded = replay(world, one.machine, fabric=one.fabric(), fold=True, exchange=mode)
    assert_same(folded, replay(world, one.machine, fabric=one.fabric(), exchange=mode))


@pytest.mark.parametrize("mode", ["auto", "pairwise"])
@settings(deadline=None, max_examples=60)
@given(one=differing)
def test_the_classes_are_those_of_a_plain_refinement(mode: str, one: Differing) -> None:
    assert_plain(one.world(), one.machine, mode, one.fabric())


def leaders(kinds: tuple[int, ...], script: tuple[tuple[Any, ...], ...], machine: MachineSpec = TINY) -> list[int]:
    one = Differing(machine, kinds, script)
    done = replay(one.world(), machine, fold=True)
    assert_same(done, replay(one.world(), machine))
    return list(done.roles.leader)


EXPERTS = (("kernel", "one", "bf16", 2), ("put", "one", "world", 12, "aiv"), ("kernel", "one", "vector", 3))


def test_two_kinds_of_ranks_are_two_classes() -> None:
    assert leaders((0, 1, 0, 1, 0, 0, 1, 0), EXPERTS) == [0, 1, 0, 1, 0, 0, 1, 0]


def test_equal_numbers_are_one_class_and_different_ones_a_class_each() -> None:
    assert leaders((1,) * 8, EXPERTS) == [0] * 8
    assert leaders(tuple(range(8)), EXPERTS) == list(range(8))


def test_only_the_group_of_a_rank_that_differs_splits_where_groups_do_not_meet() -> None:
    alone = (("kernel", "one", "bf16", 2), ("put", "one", "near", 12, "aiv"))
    assert leaders((0, 0, 1, 0, 0, 0, 0, 0), alone) == [0, 0, 2, 3, 0, 0, 0, 0]


def test_a_straggler_splits_off_alone() -> None:
    """A rank whose kernels are slower, on two levels: the others of its node wait for it as those of other nodes do."""
    assert leaders((0, 0, 0, 1, 0, 0, 0, 0), EXPERTS, WIDE) == [0, 0, 0, 3, 0, 0, 0, 0]


def test_a_slower_port_splits_off_who_puts_through_it() -> None:
    def program(npu: Rank) -> None:
        npu.launch_by_rank(lambda _: passes_mb(1), "before")
        npu.group("world").put("out", 10**6, 10**6, "aiv")
        npu.group("world").collect("in", "aiv")

    fabrics = [Fabric(TINY, 4) for _ in range(2)]
    for fabric in fabrics:
        fabric.graph.edges["die 2", "box 0"]["rate_bytes_per_s"] /= 8
    done = run(program, 4, fabric=fabrics[0], fold=True)
    assert list(done.roles.leader) == [0, 0, 2, 0]
    assert_same(done, run(program, 4, fabric=fabrics[1]))
