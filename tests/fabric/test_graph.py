"""Vertices, edges and routes of the machines that exist, small enough to be counted by hand."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec
from tests.die.machines import atlas_a2, gpu_nodes, level, machine, three_tiers

A3 = load_machine("atlas_a3")
MACHINES = {"a3": A3, "a2": atlas_a2(), "gpu": gpu_nodes(), "tiers": three_tiers()}


def us(seconds: float) -> float:
    return round(seconds * 1e6, 9)


def test_atlas_a3_two_nodes_vertex_by_vertex() -> None:
    fabric = Fabric(A3, ranks=32)
    switches = [name for name in fabric.graph if not name.startswith("die")]
    assert sorted(switches) == ["node 0", "node 1", "supernode 0"]
    assert fabric.graph.number_of_nodes() == 32 + 3
    assert fabric.graph.number_of_edges() == 32 + 2 * 32 + 2 * 2  # pairs in packages, ports, uplinks
    assert fabric.graph.nodes["die 19"] == {"rank": 19, "package": 9, "node": 1, "supernode": 0}
    rates = {(u, v): rate for u, v, rate in fabric.graph.edges(data="rate_bytes_per_s")}
    assert rates["die 0", "die 1"] == rates["die 1", "die 0"] == 224e9
    assert rates["die 0", "node 0"] == rates["node 0", "die 0"] == 196e9
    assert rates["node 1", "supernode 0"] == 16 * 196e9


@pytest.mark.parametrize(("target", "latency_us", "way", "outermost"), [
    (0, 0.0, [], ""),
    (1, 0.2, ["die 0", "die 1"], "package"),
    (2, 0.7, ["die 0", "node 0", "die 2"], "node"),
    (15, 0.7, ["die 0", "node 0", "die 15"], "node"),
    (16, 2.1, ["die 0", "node 0", "supernode 0", "node 1", "die 16"], "supernode"),
])
def test_atlas_a3_routes_have_the_published_latencies(
    target: int, latency_us: float, way: list[str], outermost: str
) -> None:
    route = Fabric(A3, ranks=32).route(0, target)
    assert route.edges == tuple(pairwise(way))
    assert (us(route.latency_s), route.level, route.hops) == (latency_us, outermost, max(len(way) - 1, 0))


@pytest.mark.parametrize(("ranks", "switches", "hops"), [
    (1, 0, 0), (2, 0, 1), (3, 1, 2), (16, 1, 2), (17, 3, 4), (32, 3, 4), (288, 19, 4), (768, 49, 4)])
def test_only_what_the_ranks_need_is_built(ranks: int, switches: int, hops: int) -> None:
    fabric = Fabric(A3, ranks)
    assert fabric.graph.number_of_nodes() == ranks + switches
    assert fabric.route(0, ranks - 1).hops == hops


def test_atlas_a2_mesh_in_the_node_and_ports_of_dies_between_nodes() -> None:
    fabric = Fabric(MACHINES["a2"], ranks=32)
    assert fabric.graph.out_degree("die 3") == 7 + 1
    assert fabric.route(0, 7).edges == (("die 0", "die 7"),)
    assert fabric.route(0, 8).edges == (("die 0", "cluster 0"), ("cluster 0", "die 8"))
    assert (us(fabric.route(0, 7).latency_s), us(fabric.route(0, 8).latency_s)) == (0.5, 1.5)


def test_traffic_in_a_node_stays_there_although_the_nic_is_faster_to_reach() -> None:
    fabric = Fabric(MACHINES["gpu"], ranks=16)
    assert fabric.route(0, 7).edges == (("die 0", "node 0"), ("node 0", "die 7"))
    assert fabric.route(0, 8).edges == (("die 0", "network 0"), ("network 0", "die 8"))
    assert us(fabric.route(0, 8).latency_s) == 2.8


def test_uplinks_belong_to_the_nearest_switches_below() -> None:
    fabric = Fabric(MACHINES["tiers"], ranks=12)
    assert [edge[0] for edge in fabric.route(0, 11).edges] == ["die 0", "leaf 0", "spine 0", "leaf 2"]
    assert us(fabric.route(0, 11).latency_s) == 5.0
    assert fabric.route(0, 2).edges[0] == ("die 0", "leaf 0")


def test_instances_and_their_ranks() -> None:
    fabric = Fabric(A3, ranks=20)
    assert fabric.levels == ("package", "node", "supernode")
    assert (fabric.instance(17, "package"), fabric.instance(17, "node"), fabric.instance(17, "supernode")) == (8, 1, 0)
    assert [rank for rank in range(20) if fabric.instance(rank, "node") == 1] == [16, 17, 18, 19]


@pytest.mark.parametrize("ranks", [0, -1, 769, 10**6])
def test_more_ranks_than_dies_are_refused_with_the_machine_in_words(ranks: int) -> None:
    with pytest.raises(InputError) as caught:
        Fabric(A3, ranks)
    sizes = "2 dies per package, 8 packages per node, 48 nodes per supernode"
    assert str(caught.value) == f"atlas_a3 has 768 dies ({sizes}); {ranks} ranks were asked for"


@settings(max_examples=60, deadline=None)
@given(data=st.data(), spec=st.sampled_from(sorted(MACHINES)))
def test_routes_are_chains_whose_latency_is_that_of_the_innermost_common_level(data: st.DataObject, spec: str) -> None:
    chosen: MachineSpec = MACHINES[spec]
    ranks = data.draw(st.integers(1, min(chosen.dies, 48)))
    fabric = Fabric(chosen, ranks)
    source, target = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, ranks - 1))
    route, back = fabric.route(source, target), fabric.route(target, source)
    assert all(one[1] == other[0] for one, other in zip(route.edges, route.edges[1:], strict=False))
    assert not any(name.startswith("die") for edge in route.edges[1:] for name in edge[:1])  # through no third die
    assert all(edge in fabric.graph.edges for edge in route.edges)
    assert back.edges == tuple((v, u) for u, v in reversed(route.edges))
    common = next(each for each in chosen.fabric
                  if fabric.instance(source, each.name) == fabric.instance(target, each.name))
    if source == target:
        assert route.edges == ()
    else:
        assert route.level == common.name
        assert route.latency_s == pytest.approx(common.latency.si)


def test_a_single_level_is_a_machine_too() -> None:
    fabric = Fabric(machine("box", level("box", "switch", 4, 100, 1.0)), ranks=4)
    assert fabric.route(0, 3).edges == (("die 0", "box 0"), ("box 0", "die 3"))


def test_all_pairs_of_288_dies_have_routes() -> None:
    fabric = Fabric(A3, ranks=288)
    hops = [fabric.route(source, target).hops for source in range(288) for target in range(288)]
    assert [hops.count(number) for number in (0, 1, 2, 4)] == [288, 288, 288 * 14, 288 * 272]
    assert fabric.route(0, 287) == fabric.route(0, 287)
