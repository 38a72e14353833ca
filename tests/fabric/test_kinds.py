"""Rails, torus, dragonfly: routes, hops and bisection counted by hand, exchanges in closed form, roles as all ranks."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.collective.one_sided import ports_of
from simulator.errors import InputError
from simulator.fabric import graph
from simulator.fabric.crossings import crossings
from simulator.fabric.graph import Fabric
from simulator.fabric.level import die
from simulator.program.rank import Rank
from simulator.program.world import Groups
from simulator.spec.load import disagreements, load_machine, override
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import SpecError, validate
from tests.die.machines import level, number
from tests.law.symmetry.test_roles import assert_same
from tests.replay.small import TINY, everybody, run

DATA = Path(__file__).parents[1] / "data"
RAILS, TORUS, DRAGONFLY = (load_machine(DATA / f"{name}.toml") for name in ("rails", "torus", "dragonfly"))
KINDS = {spec.name: spec for spec in (RAILS, TORUS, DRAGONFLY)}
MB = 10**6


def joined(*levels: dict) -> MachineSpec:
    return validate(MachineSpec, {**TINY.model_dump(), "name": "joined", "fabric": list(levels)}, "joined",
                    disagreements)


def torus(*extents: int) -> MachineSpec:
    dies = 1
    for extent in extents:
        dies *= extent
    return joined(level("grid", "torus", dies, 1, 1, extents=[number(extent) for extent in extents]))


def dragonfly(groups: int, routers: int, dies: int) -> MachineSpec:
    return joined(level("router", "dragonfly", groups * routers * dies, 4, 1, groups=number(groups),
                        routers=number(routers), local_rate=number(1, "GB/s"), global_rate=number(0.5, "GB/s"),
                        local_latency=number(0.5, "us"), global_latency=number(2, "us")))  # fmt: skip


def rails(dies: int, nodes: int) -> MachineSpec:
    return joined(level("node", "switch", dies, 8, 1), level("rail", "rails", nodes, 0.25, 3))


def bisection_gb_s(fabric: Fabric, half: set[int]) -> float:
    """What all dies of a half can send to all others at most."""
    graph = fabric.graph.copy()
    graph.add_edges_from(("here", die(rank)) for rank in half)
    graph.add_edges_from((die(rank), "there") for rank in range(fabric.ranks) if rank not in half)
    return float(nx.maximum_flow_value(graph, "here", "there", capacity="rate_bytes_per_s")) / 1e9


@pytest.mark.parametrize(("spec", "source", "target", "way", "us"), [
    (RAILS, 1, 2, ["die 1", "node 0", "die 2"], 1.0),
    (RAILS, 1, 9, ["die 1", "rail 1", "die 9"], 3.0),
    (RAILS, 1, 7, ["die 1", "node 0", "die 3", "rail 3", "die 7"], 4.0),
    (TORUS, 0, 1, ["die 0", "die 1"], 1.0),
    (TORUS, 0, 7, ["die 0", "die 3", "die 7"], 2.0),
    (TORUS, 0, 2, ["die 0", "die 1", "die 2"], 2.0),
    (TORUS, 1, 3, ["die 1", "die 0", "die 3"], 2.0),  # from an odd place down where both ways are as long
    (DRAGONFLY, 0, 1, ["die 0", "router 0", "die 1"], 1.0),
    (DRAGONFLY, 0, 2, ["die 0", "router 0", "router 1", "die 2"], 1.5),
    (DRAGONFLY, 0, 6, ["die 0", "router 0", "router 3", "die 6"], 3.0),
    (DRAGONFLY, 2, 4, ["die 2", "router 1", "router 0", "router 3", "router 2", "die 4"], 4.0),
])
def test_routes(spec: MachineSpec, source: int, target: int, way: list[str], us: float) -> None:
    route = Fabric(spec, spec.dies).route(source, target)
    assert route.edges == tuple(pairwise(way))
    assert route.latency_s * 1e6 == pytest.approx(us)
    assert route.level == ("node" if way == ["die 1", "node 0", "die 2"] else spec.fabric[-1].name)


@pytest.mark.parametrize(("spec", "hops"), [
    (RAILS, {2: 3 + 2, 4: 6}), (TORUS, {1: 3, 2: 3, 3: 1}), (DRAGONFLY, {2: 1, 3: 2 + 2, 4: 2 + 2, 5: 2}),
])
def test_hops_from_a_die_to_all_others(spec: MachineSpec, hops: dict[int, int]) -> None:
    fabric = Fabric(spec, spec.dies)
    for source in range(spec.dies):
        found = [fabric.route(source, target).hops for target in range(spec.dies) if target != source]
        assert {count: found.count(count) for count in sorted(set(found))} == hops


@pytest.mark.parametrize(("spec", "half", "gb_s"), [
    (RAILS, {0, 1, 2, 3}, 4 * 0.25),  # a node's four rails
    (TORUS, {0, 1, 4, 5}, 4 * 0.5),  # two rings of four, cut at two places each
    (TORUS, {0, 1, 2, 3}, 4 * 0.5),  # four pairs
    (DRAGONFLY, {0, 1, 2, 3}, 2 * 0.5),  # a group's two global links
    (DRAGONFLY, {0, 1}, 1.0 + 0.5),  # a router: one link inside its group, one out of it
])
def test_bisection(spec: MachineSpec, half: set[int], gb_s: float) -> None:
    assert bisection_gb_s(Fabric(spec, spec.dies), half) == pytest.approx(gb_s)


# start-up of 10 us and 1 us for each peer, the longest route, then the busiest link:
CLOSED_US = {
    "rails": (10 + 11) + (1 + 3) + 8 * 1000 / 0.25,  # what 4 dies of a node send to the 2 others of one place
    "torus": (10 + 7) + 3 + 4 * 1000 / 0.5,  # a ring of 4: 2 pairs cross a link, and each has 2 targets
    "dragonfly": (10 + 11) + (1 + 2 * 0.5 + 2) + 16 * 1000 / 0.5,  # every pair of two groups crosses one link
}


@pytest.mark.parametrize("mode", ["auto", "pairwise"])
@pytest.mark.parametrize("kind", ["all_to_all", "all_gather"])
@pytest.mark.parametrize("name", KINDS)
def test_exchanges_take_what_the_busiest_link_needs(name: str, kind: str, mode: str) -> None:
    def program(npu: Rank) -> None:
        getattr(npu.group("world"), kind)("exchange", MB, "dma")

    done = run(program, KINDS[name].dies, machine=KINDS[name], exchange=mode)
    assert done.lasts_us("exchange") == pytest.approx(CLOSED_US[name], abs=1e-5)


@pytest.mark.parametrize("mode", ["auto", "classes", "pairwise"])
@pytest.mark.parametrize("name", KINDS)
def test_roles_are_all_ranks(name: str, mode: str) -> None:
    spec = KINDS[name]
    groups: Groups = {**everybody(spec.dies), "pair": [(rank, rank + 1) for rank in range(0, spec.dies, 2)],
                      "far": [(rank, rank + spec.dies // 2) for rank in range(spec.dies // 2)]}

    def program(npu: Rank) -> None:
        npu.group("world").all_to_all("turn", MB, "dma")
        with npu.stream("other"):
            npu.group("far").all_gather("gather", MB, "aiv")
            npu.group("pair").all_reduce("sum", 3 * MB, "aiv")

    folded, unfolded = (run(program, spec.dies, machine=spec, groups=groups, fold=fold, exchange=mode)
                        for fold in (True, False))
    assert_same(folded, unfolded)
    assert len(folded.roles.leaders) < spec.dies


def test_one_sided_exchanges_stay_on_a_rail_and_behind_a_router() -> None:
    assert ports_of(Fabric(RAILS, 12), (1, 5, 9), 5) == ((("die 5", "rail 1"), ("rail 1", "die 5"), 2),)
    assert ports_of(Fabric(DRAGONFLY, 12), (0, 1), 1) == ((("die 1", "router 0"), ("router 0", "die 1"), 1),)
    for spec, members, says in ((RAILS, range(12), "from die 0 to die 5 pass through other dies"),
                                (TORUS, range(8), "from die 0 to die 2 pass through other dies"),
                                (DRAGONFLY, range(12), "the link router 0 to router 1 is narrower")):
        with pytest.raises(InputError, match=says):
            ports_of(Fabric(spec, spec.dies), tuple(members), 0)


# any size ---------------------------------------------------------------------------------------------------------

tori = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(lambda extents: torus(*extents))
dragonflies = st.builds(dragonfly, st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
railed = st.builds(rails, st.integers(2, 4), st.integers(1, 4))
spined = st.integers(2, 3).map(lambda pods: joined(
    level("node", "mesh", 2, 8, 1), level("rail", "rails", 2, 1, 3), level("spine", "switch", pods, 1.5, 5)))
ported = st.integers(1, 3).map(lambda boxes: joined(
    level("grid", "torus", 4, 8, 1, extents=[number(2), number(2)]), level("net", "switch", boxes, 1, 3)))


@settings(deadline=None, max_examples=150)
@given(st.one_of(tori, dragonflies, railed, spined, ported), st.data())
def test_routes_are_ways_through_the_graph(spec: MachineSpec, data: st.DataObject) -> None:
    fabric = Fabric(spec, data.draw(st.integers(1, spec.dies)))
    for source, target in permutations(range(min(fabric.ranks, 12)), 2):
        route = fabric.route(source, target)
        visited = [edge[0] for edge in route.edges] + [die(target)]
        assert list(pairwise(visited)) == list(route.edges)
        assert (visited[0], len(set(visited))) == (die(source), len(visited))
        assert route.latency_s == pytest.approx(sum(fabric.graph.edges[edge]["latency_s"] for edge in route.edges))
        if spec.fabric[0].kind != "dragonfly":  # where two links between groups may be shorter than one and two inside
            assert route.hops == nx.shortest_path_length(_inside(fabric, source, target), die(source), die(target))
        else:
            between = [edge for edge in route.edges if fabric.graph.edges[edge]["latency_s"] == 2e-6]
            assert len(between) <= 1
            assert route.hops <= 5


def _inside(fabric: Fabric, source: int, target: int) -> nx.DiGraph:
    """The graph without levels further out than the one that joins two ranks."""
    order = fabric.by_level[fabric.route(source, target).level].order
    edges = [edge for edge, far in nx.get_edge_attributes(fabric.graph, "order").items() if far <= 4**order]
    return nx.DiGraph(edges)


@settings(deadline=None, max_examples=60)
@given(st.one_of(tori, dragonflies, railed, spined, ported), st.data())
def test_crossings_are_those_of_all_pairs(spec: MachineSpec, data: st.DataObject) -> None:
    ranks = min(spec.dies, 30)
    members = tuple(data.draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=10, unique=True)))
    fabric = Fabric(spec, ranks)
    ways, latency_s = crossings(fabric, members)
    routes = [fabric.route(*pair) for pair in permutations(members, 2)]
    assert sum((way.links for way in ways), Counter()) == Counter(edge for route in routes for edge in route.edges)
    assert sum((way.peers for way in ways), Counter()) == {rank: len(members) - 1 for rank in members[: len(routes)]}
    assert latency_s == max((route.latency_s for route in routes), default=0.0)


def test_a_torus_uses_both_directions_alike() -> None:
    fabric = Fabric(torus(4, 4), 16)
    (way_1, *others), _ = crossings(fabric, tuple(range(16)))
    links = sum((way.links for way in others), way_1.links)
    assert set(links.values()) == {16 * 4 // 8}
    assert len(links) == 16 * 4


@pytest.mark.parametrize(("spec", "vertices"), [(TORUS, 8), (DRAGONFLY, 3 + 6), (RAILS, 3 + 1)])
def test_links_that_may_be_needed_are_there_although_few_dies_are_ranks(spec: MachineSpec, vertices: int) -> None:
    """Three ranks: all dies of a torus, all routers of a dragonfly, but no rails that join nothing."""
    assert Fabric(spec, 3).graph.number_of_nodes() == vertices


def test_way_around_a_cut_leads_over_dies_and_routers_without_ranks() -> None:
    assert [edge[1] for edge in Fabric(override(TORUS, {"fabric.cut": "die 0 - die 1"}), 2).route(0, 1).edges] == [
        "die 4", "die 5", "die 1"]  # fmt: skip
    around = Fabric(override(DRAGONFLY, {"fabric.cut": "router 0 - router 1"}), 4).route(0, 2)
    assert [edge[1] for edge in around.edges] == [
        "router 0", "router 3", "router 2", "router 5", "router 4", "router 1", "die 2"]  # fmt: skip


# what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("levels", "line"), [
    ([level("grid", "torus", 8, 1, 1)], "fabric[0].extents: is missing: this key is required"),
    ([level("grid", "torus", 8, 1, 1, extents=[number(3), number(2)])],
     "fabric.grid.extents: got 3, 2: their product is 6, and must be the size, 8"),
    ([level("grid", "torus", 8, 1, 1, extents=[4, 2])], "fabric[0].extents[0]: got 4: a bare number is refused"),
    ([level("grid", "torus", 8, 1, 1, extent=[number(8)])],
     "fabric[0].extent: got a list of 1: no such key (did you mean 'extents'?); keys are name, size, link_rate,"),
    ([level("node", "switch", 2, 1, 1), level("grid", "torus", 2, 1, 1, extents=[number(2)])],
     "fabric.grid.kind: got 'torus': a torus joins dies: only the innermost level can be one"),
    ([level("rail", "rails", 8, 1, 1)],
     "fabric.rail.kind: got 'rails': rails join dies of several nodes: a level must lie inside; or write \"switch\""),
    ([level("node", "mesh", 2, 1, 1), level("rail", "rails", 8, 1, 1, ports="die")],
     "fabric[1].ports: got 'die': no such key; keys are"),
    ([level("r", "dragonfly", 8, 1, 1, groups=number(3), routers=number(2))],
     "fabric[0].local_rate: is missing: write {value"),
    ([level("r", "dragonfly", 8, 4, 1, groups=number(3), routers=number(2), local_rate=number(1, "GB/s"),
            global_rate=number(1, "GB/s"), local_latency=number(1, "us"), global_latency=number(1, "us"))],
     "fabric.r.routers: got 2: 8 dies cannot be shared out evenly over 3 groups of 2 routers"),
])
def test_what_a_kind_needs(levels: list[dict], line: str) -> None:
    with pytest.raises(SpecError) as caught:
        joined(*levels)
    assert any(each.startswith(f"joined: {line}") for each in caught.value.lines), caught.value.lines


def test_a_kind_is_one_file() -> None:
    assert len({kind.__module__ for kind in graph.KINDS.values()}) == len(graph.KINDS)
