"""Links that a machine cuts or slows: what the graph is without them, and every name that is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.spec.levels import cut_links, slow_links
from simulator.spec.load import load_machine, override
from simulator.spec.typed_toml import SpecError

A3 = load_machine("atlas_a3")


def changed(ranks: int = 32, **settings: str) -> Fabric:
    """Atlas A3 with `cut` and `slow`."""
    return Fabric(override(A3, {f"fabric.{key}": text for key, text in settings.items()}), ranks)


def test_the_words_of_a_link() -> None:
    assert cut_links("") == slow_links(" ") == ()
    both, one = cut_links("die 3 - node 0, node 1 to supernode 0")
    assert both.edges == (("die 3", "node 0"), ("node 0", "die 3"))
    assert one.edges == (("node 1", "supernode 0"),)
    (slow,) = slow_links("  die 3   -  node 0 :0.5 ")
    assert (slow.edges, slow.share) == (both.edges, 0.5)


def test_a_cut_link_is_gone_in_both_directions_or_in_one() -> None:
    both, one = changed(cut="die 3 - node 0"), changed(cut="die 3 to node 0")
    way = ("die 3", "die 2", "node 0", "die 5")
    assert both.route(3, 5).edges == one.route(3, 5).edges == tuple(pairwise(way))
    assert both.route(5, 3).edges == tuple(pairwise(reversed(way)))
    assert one.route(5, 3) == Fabric(A3, 32).route(5, 3)
    assert both.route(3, 5).latency_s == pytest.approx(0.9e-6)
    assert not both.whole
    assert not both.as_described


def test_a_slow_link_has_a_share_of_its_rate_and_the_same_routes() -> None:
    fabric = changed(slow="die 3 - node 0: 0.5, node 0 to supernode 0: 0.25")
    assert fabric.link_rate("die 3", "node 0") == fabric.link_rate("node 0", "die 3") == 98e9
    assert fabric.link_rate("node 0", "supernode 0") == 784e9
    assert fabric.link_rate("supernode 0", "node 0") == 3136e9
    assert fabric.route(3, 20) == Fabric(A3, 32).route(3, 20)
    assert fabric.whole


def test_a_link_may_be_slow_in_one_direction_and_cut_in_the_other() -> None:
    fabric = changed(slow="die 3 to node 0: 0.5", cut="node 0 to die 3")
    assert fabric.link_rate("die 3", "node 0") == 98e9
    assert not fabric.graph.has_edge("node 0", "die 3")


def test_ranks_without_any_way_are_named() -> None:
    fabric = changed(cut="die 2 - node 0, die 3 - node 0")
    assert fabric.route(2, 3).hops == 1
    with pytest.raises(InputError) as caught:
        fabric.route(0, 3)
    assert str(caught.value) == ("links are missing, and no way leads from die 0 to die 3: machine.fabric.cut is "
                                 "'die 2 - node 0, die 3 - node 0'")


@pytest.mark.parametrize(("key", "text", "says"), [
    ("cut", "die 3 - nod 0", "machine.fabric.cut: got 'die 3 - nod 0': there is no 'nod 0' (did you mean 'node 0'?); "
     "there are die 0 to 31, node 0 to 1, supernode 0"),
    ("cut", "die 32 - node 1", "there is no 'die 32' (did you mean "),
    ("cut", "die 3 - node 1", "no link leads from die 3 to node 1; from die 3 they lead to die 2, node 0"),
    ("slow", "die 0 - die 2: 0.5", "machine.fabric.slow: got 'die 0 - die 2': no link leads from die 0 to die 2"),
    ("cut", "die 3 - node 0, node 0 - die 3", "got 'node 0 - die 3': no link leads from node 0 to die 3"),
])
def test_links_that_are_not_there_are_refused(key: str, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        changed(**{key: text})
    assert says in str(caught.value)


@pytest.mark.parametrize(("key", "text", "says"), [
    ("cut", "die 3", "atlas_a3: fabric.cut: got 'die 3': 'die 3': write \"A - B\" for both directions of a link"),
    ("cut", "die 3 - node 0,", "'': write"),
    ("cut", "die 3-node 0", "'die 3-node 0': write"),
    ("slow", "die 3 - node 0", "'die 3 - node 0': write \"A - B\""),
    ("slow", "die 3 - node 0: half", "more than 0 and at most 1"),
    ("slow", "die 3 - node 0: 0", "more than 0 and at most 1"),
    ("slow", "die 3 - node 0: 1.5", "more than 0 and at most 1"),
    ("slow", "die 3 - node 0: nan", "more than 0 and at most 1"),
])
def test_other_words_are_refused_with_those_that_are_right(key: str, text: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        override(A3, {f"fabric.{key}": text})
    assert says in str(caught.value)


def test_numbers_and_links_are_changed_together() -> None:
    spec = override(A3, {"fabric.cut": "die 3 - node 0", "fabric.node.link_rate": "98 GB/s"})
    assert (spec.cut, spec.fabric[1].link_rate.si) == ("die 3 - node 0", 98e9)
    assert override(spec, {"fabric.cut": ""}).cut == ""
    with pytest.raises(SpecError) as caught:
        override(A3, {"fabric.cut": "die 3", "fabric.node.link_rate": "98 GB"})
    assert [line.split(": ")[1] for line in caught.value.lines] == ["fabric[1].link_rate", "fabric.cut"]


def test_a_machines_file_may_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text('extends = "atlas_a3"\ncut = "die 3 - node 0"\nslow = "die 5 - node 0: 0.5"\n')
    settings = {"fabric.cut": "die 3 - node 0", "fabric.slow": "die 5 - node 0: 0.5"}
    assert load_machine(file) == override(A3, settings)
    file.write_text('extends = "atlas_a3"\ncut = "die 3"\n')
    with pytest.raises(SpecError, match=r"broken.toml: fabric.cut: got 'die 3': 'die 3': write"):
        load_machine(file)
