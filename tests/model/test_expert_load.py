"""Rows of dies in decode: shared dies get every token, routed ones what is drawn, and replicas halve a hot expert."""

from __future__ import annotations

from simulator.model.expert_load import ExpertLoad
from simulator.model.transformer import Experts

EXPERTS = Experts(routed=256, per_token=8, intermediate=2048, shared_intermediate=2048)
TOKENS = 288 * 48


def load(skew: float | None = 0.1, routed: int = 256, shared: int = 32, placement: str = "eplb") -> ExpertLoad:
    return ExpertLoad(EXPERTS, routed, shared, placement, skew)  # type: ignore[arg-type]


def test_the_ninth_expert_gives_every_die_the_same_rows() -> None:
    """288 x 48 tokens: 8 of 9 copies on 256 dies, the ninth on 32."""
    assert load(None).rows(TOKENS, 0, 0, 0) == ((432,),) * 288


def test_drawn_rows_add_up_and_are_the_same_for_the_same_seed() -> None:
    rows = load().rows(TOKENS, 5, 0, 0)
    assert len(rows) == 288
    assert sum(map(sum, rows[:256])) == TOKENS * 8
    assert rows[256:] == ((432,),) * 32
    assert rows == load().rows(TOKENS, 5, 0, 0)
    assert rows[:256] != load().rows(TOKENS, 5, 1, 0)[:256]


def test_a_hot_expert_stays_hot_in_its_layer() -> None:
    first, second = (load(0.3).rows(TOKENS, 5, number, 0) for number in (0, 1))
    assert first.index(max(first)) == second.index(max(second))
    assert max(first)[0] > 3 * 432


def test_every_layer_has_hot_experts_of_its_own() -> None:
    layers = [load(0.3, placement="in_order").rows(TOKENS, layer, 0, 0) for layer in range(4, 8)]
    assert len({rows.index(max(rows)) for rows in layers}) == 4


def test_redundant_experts_level_a_skewed_load() -> None:
    plain = load(0.3, 288, 32, "in_order").rows(TOKENS, 5, 0, 0)[:288]
    level = load(0.3, 288, 32, "eplb").rows(TOKENS, 5, 0, 0)[:288]
    assert sum(map(sum, level)) == sum(map(sum, plain)) == TOKENS * 8
    assert max(map(sum, level)) < 0.4 * max(map(sum, plain))


def test_fewer_dies_hold_more_slots() -> None:
    assert load(routed=114).slots == 3
    assert load(routed=29).slots == 9
    assert {len(rows) for rows in load(None, 114, 14).rows(TOKENS, 0, 0, 0)} == {3, 1}
