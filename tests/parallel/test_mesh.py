"""The groups of a mesh, and what does not divide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.model.layout import blocks
from simulator.model.transformer import Dense, Experts, Grouped, Layer, Model, Precision
from simulator.parallel.mesh import Mesh, check, coordinates_of, groups_of, node_blocks

GROUPED = Grouped(heads=16, kv_heads=4, head_dim=64)
DENSE = Model("small", 512, 1000, (Layer(GROUPED, Dense(2048)),) * 4, (), False, Precision())
MIXED = Model("mixed", 512, 1000, (Layer(GROUPED, Experts(32, 4, 256, 256)),) * 4, (), False, Precision())


def test_the_worked_example() -> None:
    groups = groups_of(Mesh(tp=2, dp=4, ep=4))
    assert groups["tensor"] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert groups["ep"] == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert groups["stage"] == groups["world"] == [tuple(range(8))]


def test_experts_may_be_there_more_than_once() -> None:
    """Two blocks of four ranks with all experts each: rows are exchanged inside a block."""
    mesh = Mesh(dp=8, ep=2, replicas=2)
    assert groups_of(mesh)["block"] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert groups_of(mesh)["ep"] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert [coordinates_of(mesh, rank)["place"] for rank in range(8)] == [0, 0, 1, 1] * 2
    assert mesh.expert_tensor == 2


def test_an_output_projection_lies_on_counterparts_of_blocks_that_have_all_heads() -> None:
    groups = groups_of(Mesh(tp=8, o_proj=2))
    assert groups["heads"] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert groups["o_proj"] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    for split, alone in ((8, "heads"), (1, "o_proj")):
        groups = groups_of(Mesh(tp=8, o_proj=split))
        assert groups[alone] == [(rank,) for rank in range(8)]
        assert groups[{"heads": "o_proj", "o_proj": "heads"}[alone]] == [tuple(range(8))]


powers = st.sampled_from([1, 2, 4])


@given(powers, powers, powers, powers, st.data())
def test_every_group_holds_every_rank_once(tp: int, cp: int, dp: int, pp: int, data: st.DataObject) -> None:
    stage = tp * cp * dp
    ep = data.draw(st.sampled_from([one for one in (1, 2, 4, 8, 16, 32, 64) if stage % one == 0]))
    mesh = Mesh(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep)
    for name, instances in groups_of(mesh).items():
        assert sorted(rank for members in instances for rank in members) == list(range(mesh.ranks)), name
        assert len({len(members) for members in instances}) == 1, name
    for members in groups_of(mesh)["ep"]:
        assert [coordinates_of(mesh, rank)["place"] for rank in members] == list(range(ep))
    for members in groups_of(mesh)["tensor"]:
        assert len({(coordinates_of(mesh, rank)["dp"], coordinates_of(mesh, rank)["stage"]) for rank in members}) == 1


@pytest.mark.parametrize(("mesh", "model", "words"), [
    (Mesh(tp=3), DENSE, ["tp=3 does not divide the 16 heads", "1, 2, 4, 8 or 16 would", "4 heads of keys and values"]),
    (Mesh(tp=2, ep=2), DENSE, ["small has no experts; leave ep out"]),
    (Mesh(dp=4, ep=3), MIXED, ["ep=3 places do not divide the 4 ranks of a stage; 1, 2 or 4 would"]),
    (Mesh(dp=2, ep=4), MIXED, ["ep=4 places do not divide the 2 ranks of a stage; 1 or 2 would"]),
    (Mesh(pp=5), DENSE, ["pp=5 stages are more than the 4 layers"]),
    (Mesh(tp=4, head=2), DENSE, ["head=2: with tp x cp = 4 it may be 1 or 4"]),
    (Mesh(dp=8, head=3), DENSE, ["head=3 does not divide the 8 ranks"]),
])  # fmt: skip
def test_what_does_not_divide_is_refused_with_what_would(mesh: Mesh, model: Model, words: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        check(mesh, model)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(("mesh", "model"), [
    (Mesh(tp=8), DENSE), (Mesh(tp=2, dp=2, ep=4), MIXED), (Mesh(dp=4, o_proj=2, head=4, ep=4, shared=1), MIXED),
    (Mesh(dp=8, ep=8, redundant=1), MIXED), (Mesh(dp=5, ep=5), MIXED), (Mesh(dp=64, ep=64), MIXED),
    (Mesh(tp=4, cp=2, pp=2), DENSE),
])  # fmt: skip
def test_what_divides_is_not(mesh: Mesh, model: Model) -> None:
    check(mesh, model)


def test_words_are_what_the_command_takes() -> None:
    assert Mesh(tp=2, dp=4, head=8).words() == "tp=2,dp=4,head=8"
    assert Mesh().words() == "tp=1"


@pytest.mark.parametrize("axes", [{"dp": 3, "apart": 1}, {"tp": 8, "shared": 1, "head": 1}, {"dp": 4, "redundant": 1}])
def test_the_words_of_a_mesh_mean_the_same_mesh(axes: dict[str, int]) -> None:
    pairs = (word.split("=") for word in Mesh(**axes).words().split(","))
    assert Mesh(**{name: int(value) for name, value in pairs}) == Mesh(**axes)


def test_nodes_are_whole() -> None:
    assert node_blocks(Mesh(dp=16, ep=16), 8, "exchange x") == blocks(16, 8)
    assert node_blocks(Mesh(dp=4, ep=4, pp=4), 8, "exchange x") == blocks(16, 4)
    for mesh in (Mesh(dp=12, ep=12, pp=2), Mesh(dp=6, ep=6, pp=2), Mesh(dp=12, ep=12)):
        with pytest.raises(InputError, match="a node has 8: they must be whole nodes, or 1, 2, 4 or 8 in one"):
            node_blocks(mesh, 8, "exchange x")
