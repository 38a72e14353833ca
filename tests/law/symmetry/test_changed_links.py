"""With cut and slow links, on every kind of level, roles are all ranks, and only those split that feel a change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.program.rank import Rank
from simulator.program.world import Groups
from simulator.spec.load import override
from simulator.spec.machine import MachineSpec
from tests.fabric.test_kinds import DRAGONFLY, RAILS, TORUS
from tests.law.symmetry.test_own_numbers import MESH, Differing, kinds, scripts, without_puts
from tests.law.symmetry.test_roles import assert_plain, assert_same
from tests.replay.small import TINY, replay, run

MB = 10**6
CUTS = {  # the ways around them join all ranks
    "mesh": (MESH, ("", "die 0 - die 1", "die 2 - top 0, die 0 to die 3", "die 6 to top 0")),
    "rails": (RAILS, ("", "die 0 - rail 0", "die 5 to rail 1, rail 2 to die 6")),
    "torus": (TORUS, ("", "die 0 - die 3", "die 0 - die 1, die 5 to die 6")),
    "dragonfly": (DRAGONFLY, ("", "router 0 - router 1", "router 0 to router 3")),
}
SLOW = {"mesh": "die 1 - die 2", "rails": "node 0 to die 3", "torus": "die 4 - die 5", "dragonfly": "die 1 to router 0"}


def machine(name: str, cut: int, share: float) -> MachineSpec:
    spec, cuts = CUTS[name]
    return override(spec, {"fabric.cut": cuts[cut % len(cuts)], "fabric.slow": f"{SLOW[name]}: {share}"})


machines = st.builds(machine, st.sampled_from(sorted(CUTS)), st.integers(0, 3), st.sampled_from([1.0, 0.5, 0.1]))
whole = kinds.filter(lambda one: len(one) == 8)  # the links of the settings lie among eight ranks
changed = st.builds(Differing, machines, whole, without_puts)


@pytest.mark.parametrize("mode", ["auto", "classes", "pairwise"])
@settings(deadline=None, max_examples=40)
@given(one=changed)
def test_folded_equals_unfolded(mode: str, one: Differing) -> None:
    world = one.world()
    assert_same(replay(world, one.machine, fold=True, exchange=mode), replay(world, one.machine, exchange=mode))


@pytest.mark.parametrize("mode", ["auto", "pairwise"])
@settings(deadline=None, max_examples=40)
@given(one=changed)
def test_the_classes_are_those_of_a_plain_refinement(mode: str, one: Differing) -> None:
    assert_plain(one.world(), one.machine, mode)


@settings(deadline=None, max_examples=40)
@given(st.builds(Differing, st.sampled_from(
    [override(TINY, {"fabric.slow": text}) for text in ("die 2 - box 0: 0.5", "box 0 to die 5: 0.1")]), whole, scripts))
def test_puts_through_a_slow_port_too(one: Differing) -> None:
    world = one.world()
    assert_same(replay(world, one.machine, fold=True), replay(world, one.machine))


PAIRS: Groups = {"pair": [(0, 1), (2, 3), (4, 5), (6, 7)]}


def in_pairs(npu: Rank) -> None:
    npu.group("pair").all_to_all("pair", MB, "dma")


@pytest.mark.parametrize(("settings_", "leaders"), [
    ({}, [0, 0, 0, 0, 0, 0, 0, 0]),
    ({"fabric.cut": "die 2 - die 3"}, [0, 0, 2, 2, 0, 0, 0, 0]),  # through another die of the mesh, one hop more
    ({"fabric.cut": "die 2 to die 3"}, [0, 0, 2, 3, 0, 0, 0, 0]),
    ({"fabric.slow": "die 6 - die 7: 0.25"}, [0, 0, 0, 0, 0, 0, 6, 6]),
    ({"fabric.slow": "die 0 - top 0: 0.1"}, [0, 0, 0, 0, 0, 0, 0, 0]),  # no pair leaves its node
])
def test_only_those_split_that_feel_it(settings_: dict[str, str], leaders: list[int]) -> None:
    spec = override(MESH, settings_)
    done = run(in_pairs, 8, groups=PAIRS, machine=spec, fold=True)
    assert list(done.roles.leader) == leaders
    assert_same(done, run(in_pairs, 8, groups=PAIRS, machine=spec))


def test_a_slow_link_takes_longer_and_a_cut_one_the_way_around() -> None:
    """1 MB in pairs over links of 2 GB/s at the 1 GB/s of the engine, after 11 us of start-up and 1 us of way."""
    times = [run(in_pairs, 8, groups=PAIRS, machine=override(MESH, changes)).lasts_us("pair", 2) for changes in (
        {}, {"fabric.slow": "die 2 - die 3: 0.25"}, {"fabric.cut": "die 2 - die 3"})]
    assert times == [12 + 1000, 12 + 2000, 13 + 1000]
