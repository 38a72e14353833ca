"""Copies per node and GPU: their expectation against draws, and what leaves somewhere arrives somewhere."""

from __future__ import annotations

import pytest

from simulator import np
from simulator.model.transformer import Experts
from simulator.parallel.border import Engines
from simulator.parallel.exchange.copies import Copies, _tables, copies_of, even_copies, nodes_reached
from simulator.parallel.exchange.deepep_normal import NormalSettings
from simulator.parallel.exchange.task import ExchangeSettings, ExpertTask
from simulator.parallel.mesh import Mesh
from simulator.parallel.routed import Routing, routed
from simulator.program.rank import Rank
from simulator.stack.pplx import STACK

EXPERTS, PLACES, NODE = Experts(256, 8, 2048), 32, 8


def copies(skew: float | None, tokens: tuple[int, ...], place: int) -> Copies:
    settings = ExchangeSettings("deepep_normal", skew=skew, node=NODE)
    task = ExpertTask(Rank({}, {}), STACK, None, EXPERTS, Mesh(dp=PLACES, ep=PLACES), Engines("nvlink"),  # type: ignore[arg-type]
                      settings, 0, 0, tokens)  # fmt: skip
    return copies_of(task.routed(task.own), task, place, NormalSettings())


@pytest.mark.parametrize("tokens", [(512,) * PLACES, tuple(range(64, 64 + 32 * PLACES, 32))])
def test_what_leaves_arrives(tokens: tuple[int, ...]) -> None:
    all_of = [copies(0.3, tokens, place) for place in range(PLACES)]
    for place, one in enumerate(all_of):
        assert len(one.to_nodes) == PLACES // NODE - 1
        for there, sent in one.to_nodes:
            assert there % NODE == place % NODE
            assert dict(all_of[there].from_nodes)[place] == sent
        assert one.inside.leaving == pytest.approx(one.own.leaving + one.passed_on.leaving)
    for first in range(0, PLACES, NODE):
        node = all_of[first : first + NODE]
        assert sum(one.inside.leaving for one in node) == pytest.approx(sum(one.inside.arriving for one in node))
    assert sum(one.summed for one in all_of) == pytest.approx(sum(one.returning for one in all_of))


def test_many_drawn_tokens_of_even_popularity_need_as_many_copies_as_even_load() -> None:
    drawn, even = (copies(skew, (4096,) * PLACES, 5) for skew in (0.0, None))
    for name in ("leaving", "summed", "returning"):
        assert getattr(drawn, name) == pytest.approx(getattr(even, name), rel=0.02)
    assert drawn.inside.arriving == pytest.approx(even.inside.arriving, rel=0.05)


def test_copies_of_hot_experts_are_those_of_drawn_tokens() -> None:
    """Tokens of one source draw 8 different experts of a power law; a copy serves all of a GPU, or node."""
    tokens, skew = 4000, 0.6
    weights = np.arange(1, 257, dtype=float) ** -skew
    keys = np.random.default_rng(5).gumbel(size=(tokens, 256)) + np.log(weights)
    taken = np.argsort(-keys, axis=1)[:, :8]
    counts = np.bincount(taken.ravel(), minlength=256)
    routing = Routing(skew, 0, PLACES, draw=lambda routed: np.stack([counts] * PLACES))
    found = _tables(routed(EXPERTS, (tokens,) * PLACES, routing, 0, 0), (tokens,) * PLACES, NODE)
    for each, table in zip((8, 64), found, strict=True):
        drawn = [np.any(taken // each == place, axis=1).sum() for place in range(256 // each)]
        assert table[0].tolist() == pytest.approx(drawn, rel=0.04)


def test_a_token_never_needs_more_copies_than_experts_nodes_or_gpus() -> None:
    for skew in (None, 0.5):
        one = copies(skew, (100,) * PLACES, 0)
        assert one.returning <= 100 * min(PLACES // NODE, EXPERTS.per_token)
        assert one.own.leaving <= 100 * EXPERTS.per_token


def test_groups_of_experts_keep_tokens_to_few_nodes() -> None:
    grouped = Experts(256, 8, 2048, groups=8, groups_per_token=4)
    assert [nodes_reached(grouped, nodes) for nodes in (1, 2, 4, 8, 16)] == [4, 4, 4, 4, 8]
    few, any_node = (even_copies(experts, 128, 64, 8, 0, 1, 0) for experts in (grouped, EXPERTS))
    assert few.returning <= 128 * 4 < any_node.returning
    assert even_copies(EXPERTS, 128, 64, 8, 0, 1, 4) == few
