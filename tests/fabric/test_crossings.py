"""Crossings from the levels of a fabric are those that the routes of all pairs add up to."""

from __future__ import annotations

from itertools import pairwise, permutations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.fabric.crossings import crossings, crossings_by_pair
from simulator.fabric.graph import Fabric
from simulator.fabric.level import die
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import validate
from tests.die.machines import level
from tests.replay.small import TINY


def machine(levels: list[tuple[str, int, bool]]) -> MachineSpec:
    """Levels of (kind, size, whether dies have the ports)."""
    fabric = [level(f"level {k}", kind, size, 1 + k, 1 + k, **({"ports": "die"} if own and k else {}))
              for k, (kind, size, own) in enumerate(levels)]
    return validate(MachineSpec, {**TINY.model_dump(), "fabric": fabric}, "levels")


switch = st.tuples(st.just("switch"), st.integers(1, 4), st.booleans())
mesh = st.tuples(st.just("mesh"), st.integers(1, 4), st.just(False))
levels_of = st.tuples(mesh | switch, st.lists(switch, max_size=3)).map(lambda levels: [levels[0], *levels[1]])


@settings(deadline=None, max_examples=150)
@given(levels_of, st.data())
def test_levels_say_what_pairs_add_up_to(levels: list[tuple[str, int, bool]], data: st.DataObject) -> None:
    spec = machine(levels)
    ranks = data.draw(st.integers(1, spec.dies))
    members = tuple(data.draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=20, unique=True)))
    fabric = Fabric(spec, ranks)
    ways, latency_s = crossings(fabric, members)
    by_pair, latency_by_pair_s = crossings_by_pair(fabric, members)
    assert ways == by_pair
    assert latency_s == latency_by_pair_s
    assert sum(way.peers.total() for way in ways) == len(members) * (len(members) - 1)
    drawn = Fabric(spec, ranks)
    assert drawn.graph.number_of_nodes() >= ranks  # from now on the graph counts
    assert crossings_by_pair(drawn, members) == (ways, latency_s)
    for pair in permutations(members, 2):
        assert fabric.route(*pair) == drawn.route(*pair)
        for edge in fabric.route(*pair).edges:
            assert fabric.link_rate(*edge) == drawn.link_rate(*edge) == drawn.graph.edges[edge]["rate_bytes_per_s"]
            assert fabric.link_level(*edge) == drawn.link_level(*edge)
    assert fabric.as_described


@settings(deadline=None, max_examples=80)
@given(levels_of, st.data())
def test_routes_are_the_shortest_ways(levels: list[tuple[str, int, bool]], data: st.DataObject) -> None:
    spec = machine(levels)
    ranks = data.draw(st.integers(2, max(spec.dies, 2)))
    if ranks > spec.dies:
        return
    fabric = Fabric(spec, ranks)
    source, target = data.draw(st.permutations(range(ranks)))[:2]
    shortest = nx.dijkstra_path(fabric.graph, die(source), die(target), weight="order")
    assert fabric.route(source, target).edges == tuple(pairwise(shortest))


def test_a_missing_link_is_gone_around_and_counted_by_pair() -> None:
    fabric = Fabric(machine([("mesh", 2, False), ("switch", 2, True)]), 4)
    fabric.graph.remove_edge("die 0", "die 1")
    assert fabric.route(0, 1).edges == (("die 0", "level 1 0"), ("level 1 0", "die 1"))
    assert crossings(fabric, (0, 1, 2, 3)) == crossings_by_pair(fabric, (0, 1, 2, 3))


def test_pairs_behind_narrow_uplinks_are_a_way_of_their_own() -> None:
    """Nodes of two dies with ports of 1 GB/s: an uplink of 2 GB/s carries both, one of 1.9 GB/s does not."""
    for rate, ways in ((2.0, [3]), (1.9, [1, 2])):
        fabric = [level("node", "switch", 2, 1, 1), level("top", "switch", 2, rate, 2)]
        spec = validate(MachineSpec, {**TINY.model_dump(), "fabric": fabric}, "levels")
        found, _ = crossings(Fabric(spec, 4), (0, 1, 2, 3))
        assert [way.peers[0] for way in found] == ways


def test_pairs_that_go_around_a_missing_link_are_a_way_of_their_own() -> None:
    fabric = Fabric(machine([("mesh", 4, False)]), 4)
    fabric.graph.remove_edges_from([("die 0", "die 1"), ("die 1", "die 0")])
    found, _ = crossings(fabric, (0, 1, 2, 3))
    assert [dict(way.peers) for way in found] == [{0: 2, 1: 2, 2: 3, 3: 3}, {0: 1, 1: 1}]


@pytest.mark.parametrize("name", ["atlas_a3", "atlas_a2", "cloudmatrix384"])
def test_it_holds_on_machines_of_the_library(name: str) -> None:
    spec = load_machine(name)
    fabric = Fabric(spec, min(spec.dies, 64))
    members = tuple(range(0, fabric.ranks, 3))
    assert crossings(fabric, members) == crossings_by_pair(fabric, members)
