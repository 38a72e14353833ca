"""Ranks folded by role behave like the ranks that they stand for, to the picosecond."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.collective.lowering import Lowering
from simulator.fabric.graph import Fabric
from simulator.model.layout import blocks, strides
from simulator.program.rank import Rank
from simulator.program.world import Groups, World, record_world
from simulator.replay.replay import rate_of
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import validate
from simulator.symmetry.roles import find_roles
from tests.die.machines import atlas_a2, gpu_nodes, level, three_tiers
from tests.law.replay.clusters import TWO_LEVELS, Cluster, clusters
from tests.law.symmetry.plain_roles import plain_leaders
from tests.replay.small import TINY, Run, everybody, passes_mb, replay, run

MB = 10**6


def leaders(done: Run) -> list[int]:
    return list(done.roles.leader)


def assert_same(folded: Run, unfolded: Run) -> None:
    """Every rank of the unfolded run has the times of its leader in the folded one."""
    short, full = folded.times(), unfolded.times()
    assert {(rank, task): short[folded.roles.leader[rank], task] for rank, task in full} == full
    assert folded.makespan_ps == unfolded.makespan_ps
    assert int(folded.columns["multiplicity"].sum()) == len(full)


def assert_plain(world: World, machine: MachineSpec, mode: str, fabric: Fabric | None = None) -> None:
    """The classes are those that refinement with whole bags finds."""
    fabric = fabric or Fabric(machine, world.ranks)
    lowering = Lowering(fabric, machine.collectives, mode, world.groups)
    rate = partial(rate_of, machine=machine, fabric=fabric)
    assert find_roles(world, lowering, rate).leader == plain_leaders(world, lowering, rate)


@settings(deadline=None, max_examples=80)
@given(clusters)
def test_folded_equals_unfolded(cluster: Cluster) -> None:
    world = cluster.world()
    assert_same(replay(world, cluster.machine, fold=True), replay(world, cluster.machine))


@settings(deadline=None, max_examples=40)
@given(clusters)
def test_folded_equals_unfolded_pair_by_pair(cluster: Cluster) -> None:
    world = cluster.world()
    assert_same(replay(world, cluster.machine, fold=True, exchange="pairwise"),
                replay(world, cluster.machine, exchange="pairwise"))


@pytest.mark.parametrize("mode", ["auto", "pairwise"])
@settings(deadline=None, max_examples=60)
@given(cluster=clusters)
def test_the_classes_are_those_of_a_plain_refinement(mode: str, cluster: Cluster) -> None:
    assert_plain(cluster.world(), cluster.machine, mode)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([load_machine("atlas_a3"), load_machine("atlas_a2"), atlas_a2(), gpu_nodes(), three_tiers()]),
       st.sampled_from([8, 12]), st.sampled_from([2, 3, 4, 6]), st.booleans(), st.integers(0, 3),
       st.sampled_from(["direct", "hierarchical"]))
def test_groups_that_are_moved_copies_have_the_ties_that_they_have_one_by_one(
    machine: MachineSpec, ranks: int, size: int, together: bool, odd: int, algorithm: str
) -> None:
    ranks = min(ranks * 4, machine.dies)
    size = size if ranks % size == 0 else 2
    algorithm = algorithm if size in (4, 8) and together else "direct"

    def program(npu: Rank) -> None:
        npu.launch_by_rank(lambda rank: passes_mb(1 + (rank == odd)), "before")
        group, engine = npu.group("group"), next(iter(machine.collectives))
        group.all_to_all("turn", 10_000, engine)
        group.all_gather("gather", 10_000, engine, algorithm)

    instances = blocks(ranks, size) if together else strides(ranks, size)
    world = record_world(program, ranks, {"group": instances}, lambda _: {})
    moved, one_by_one = Fabric(machine, ranks), Fabric(machine, ranks)
    assert one_by_one.graph.number_of_nodes() >= ranks  # now somebody could have changed a link
    leaders = [find_roles(world, Lowering(fabric, machine.collectives, groups=world.groups), partial(
        rate_of, machine=machine, fabric=fabric)).leader for fabric in (moved, one_by_one)]
    assert leaders[0] == leaders[1]


# what makes ranks differ ----------------------------------------------------------------------------------------------


def exchange(npu: Rank) -> None:
    npu.launch(passes_mb(1), "before")
    npu.group("world").all_to_all("exchange", MB, "dma")


def test_ranks_that_do_the_same_on_a_symmetric_machine_are_one() -> None:
    done = run(exchange, 8, fold=True)
    assert leaders(done) == [0] * 8
    assert set(done.columns["multiplicity"]) == {8}


def test_a_rank_with_another_program_is_its_own_class_and_no_other() -> None:
    def program(npu: Rank) -> None:
        npu.launch(passes_mb(2 if npu.coordinate("hot") else 1), "before")
        npu.group("world").all_to_all("exchange", MB, "dma")

    def hot(rank: int) -> dict[str, object]:
        return {"hot": rank == 2}

    done = run(program, 4, place=hot, fold=True)
    assert leaders(done) == [0, 0, 2, 0]
    assert_same(done, run(program, 4, place=hot))


@pytest.mark.parametrize("mode", ["auto", "pairwise"])
@pytest.mark.parametrize("edge", [("die 2", "box 0"), ("box 0", "die 2")])
def test_a_slower_port_splits_its_rank_alone(edge: tuple[str, str], mode: str) -> None:
    fabric = Fabric(TINY, 4)
    fabric.graph.edges[edge]["rate_bytes_per_s"] /= 8
    done = run(exchange, 4, fabric=fabric, fold=True, exchange=mode)
    alone = leaders(run(exchange, 4, fold=True, exchange=mode))
    assert alone == [0, 0, 0, 0]
    assert leaders(done) == ([0, 0, 2, 0] if mode == "pairwise" else [0, 0, 0, 0])  # one class ends for all at once
    assert_same(done, run(exchange, 4, fabric=fabric, exchange=mode))
    assert done.lasts_us("exchange") == 14 + 12_000


def two_nodes(npu: Rank) -> None:
    """Exchanges across nodes, then pairs inside them."""
    npu.group("world").all_gather("all", MB, "dma")
    npu.group("pair").all_to_all("pair", MB, "dma")


PAIRS: Groups = {"world": [(0, 1, 2, 3)], "pair": [(0, 1), (2, 3)]}


@pytest.mark.parametrize(("edge", "expected"), [
    (("node 1", "top 0"), [0, 0, 0, 0]),  # only the exchange of all crosses it, and that ends for all at once
    (("die 3", "node 1"), [0, 0, 2, 2]),  # its pair is slower than the other one
])
def test_a_slower_link_splits_the_groups_that_cross_it(edge: tuple[str, str], expected: list[int]) -> None:
    fabric = Fabric(TWO_LEVELS, 4)
    fabric.graph.edges[edge]["rate_bytes_per_s"] /= 8
    done = run(two_nodes, 4, machine=TWO_LEVELS, groups=PAIRS, fabric=fabric, fold=True)
    assert_same(done, run(two_nodes, 4, machine=TWO_LEVELS, groups=PAIRS, fabric=fabric))
    same = [done.times()[leader, 1] for leader in leaders(done)]
    assert [same.index(times) for times in same] == [expected.index(each) for each in expected]


def test_a_dead_link_splits_those_who_go_around_it() -> None:
    mesh = validate(MachineSpec, {
        **TINY.model_dump(), "name": "mesh",
        "fabric": [level("node", "mesh", 4, 2, 1), level("top", "switch", 2, 1.5, 3, ports="die")],
    }, "mesh")  # fmt: skip
    whole, broken = Fabric(mesh, 8), Fabric(mesh, 8)
    broken.graph.remove_edges_from([("die 0", "die 1"), ("die 1", "die 0")])
    how = {"machine": mesh, "exchange": "pairwise"}
    assert leaders(run(exchange, 8, fabric=whole, fold=True, **how)) == [0] * 8
    done = run(exchange, 8, fabric=broken, fold=True, **how)
    assert leaders(done) == [0, 0, 2, 3, 4, 4, 4, 4]  # they go around through die 2
    assert_same(done, run(exchange, 8, fabric=broken, **how))


def test_uneven_exchanges_that_turn_with_the_rank_are_one_class() -> None:
    sizes = tuple(tuple((target - source) % 4 * MB for target in range(4)) for source in range(4))

    def program(npu: Rank) -> None:
        npu.group("world").all_to_all_uneven("exchange", sizes, "dma")

    done = run(program, 4, fold=True)
    assert leaders(done) == [0, 0, 0, 0]
    assert_same(done, run(program, 4))


# messages -------------------------------------------------------------------------------------------------------------


def test_senders_that_a_receiver_takes_one_by_one_are_not_alike() -> None:
    def program(npu: Rank) -> None:
        world = npu.group("world")
        if npu.coordinate("sender"):
            world.send("send", 0, MB, "dma")
        else:
            for peer in (1, 2, 3):
                world.recv(f"recv {peer}", peer, MB, "dma")

    def place(rank: int) -> dict[str, object]:
        return {"sender": rank > 0}

    done = run(program, 4, place=place, fold=True)
    assert leaders(done) == [0, 1, 2, 3]
    assert_same(done, run(program, 4, place=place))


def test_pairs_that_exchange_messages_fold_into_one() -> None:
    def program(npu: Rank) -> None:
        group = npu.group("pair")
        for _ in range(2):
            if npu.coordinate("side") == 0:
                npu.launch(passes_mb(1), "prefill")
                group.send("kv", 1, MB, "dma")
            else:
                group.recv("kv", 0, MB, "dma")

    def place(rank: int) -> dict[str, object]:
        return {"side": rank // 4}

    groups: Groups = {"pair": [(rank, rank + 4) for rank in range(4)]}
    done = run(program, 8, groups=groups, place=place, fold=True)
    assert leaders(done) == [0] * 4 + [4] * 4
    assert_same(done, run(program, 8, groups=groups, place=place))


def test_equal_messages_of_two_groups_are_two_messages() -> None:
    def program(npu: Rank) -> None:
        for name in ("a", "b"):
            group = npu.group(name)
            _ = group.send(name, 1, MB, "dma") if npu.coordinate("sender") else group.recv(name, 0, MB, "dma")

    def place(rank: int) -> dict[str, object]:
        return {"sender": rank < 2}

    groups: Groups = {"a": [(0, 2), (1, 3)], "b": [(0, 3), (1, 2)]}
    done = run(program, 4, groups=groups, place=place, fold=True)
    assert leaders(done) == [0, 0, 2, 2]
    assert_same(done, run(program, 4, groups=groups, place=place))


def test_groups_that_change_places_between_exchanges_are_told_apart() -> None:
    """Rank 0's first exchange stays in its node and its second leaves it; rank 4's are the other way round."""
    def program(npu: Rank) -> None:
        for name in ("a", "b"):
            npu.group(name).all_gather(name, MB, "dma")

    groups: Groups = {"a": [(0, 1), (2, 3), (4, 6), (5, 7)], "b": [(0, 2), (1, 3), (4, 5), (6, 7)]}
    fold, full = (run(program, 8, machine=TWO_LEVELS, groups=groups, fold=fold) for fold in (True, False))
    assert_same(fold, full)
    assert full.us("a", 0) != full.us("a", 4)


def test_ranks_that_do_different_work_are_simulated_one_by_one() -> None:
    def program(npu: Rank) -> None:
        npu.launch(passes_mb(1 + npu.rank), "before")
        npu.group("world").barrier("barrier", "dma")

    assert leaders(run(program, 3, groups=everybody(3), fold=True)) == [0, 1, 2]


def test_equal_programs_are_one_whatever_they_asked() -> None:
    def program(npu: Rank) -> None:
        npu.launch(passes_mb(1 + (npu.rank == 2)), "before")
        npu.group("world").all_to_all("exchange", MB, "dma")

    assert leaders(run(program, 4, fold=True)) == [0, 0, 2, 0]
