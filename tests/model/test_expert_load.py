"""Rows of dies in decode: shared dies get every token, routed ones what is drawn, and replicas halve a hot expert."""

from __future__ import annotations

import pytest

from simulator.model.expert_load import ExpertLoad
from simulator.spec.model import load_shapes
from workloads.cm384_decode import Dies

S = load_shapes("deepseek_r1")
TOKENS = 288 * 48


def load(skew: float | None = 0.1, **layout: object) -> ExpertLoad:
    return ExpertLoad.of(S, Dies.model_validate(layout), skew, seed=0)


def test_the_ninth_expert_gives_every_die_the_same_rows() -> None:
    """288 x 48 tokens: 8 of 9 copies on 256 dies, the ninth on 32."""
    assert load().even_rows(TOKENS) == (432,)
    assert load().shared_rows(TOKENS) == 432


def test_drawn_rows_add_up_and_are_the_same_for_the_same_seed() -> None:
    rows = load().drawn_rows(TOKENS, layer=5, micro_batch=0, group=0)
    assert len(rows) == 256
    assert sum(map(sum, rows)) == TOKENS * 8
    assert rows == load().drawn_rows(TOKENS, 5, 0, 0)
    assert rows != load().drawn_rows(TOKENS, 5, 1, 0)


def test_a_hot_expert_stays_hot_in_its_layer() -> None:
    first, second = (load(0.3).drawn_rows(TOKENS, 5, number, 0) for number in (0, 1))
    assert first.index(max(first)) == second.index(max(second))
    assert max(first)[0] > 3 * 432


def test_every_layer_has_hot_experts_of_its_own() -> None:
    layers = [load(0.3, placement="in_order").drawn_rows(TOKENS, layer, 0, 0) for layer in range(4, 8)]
    assert len({rows.index(max(rows)) for rows in layers}) == 4


def test_redundant_experts_level_a_skewed_load() -> None:
    layout = {"expert_parallel": 320, "shared_dies": 32}
    plain = load(0.3, **layout, placement="in_order").drawn_rows(TOKENS, 5, 0, 0)
    level = load(0.3, **layout, placement="eplb").drawn_rows(TOKENS, 5, 0, 0)
    assert len(plain) == len(level) == 288
    assert sum(map(sum, level)) == sum(map(sum, plain)) == TOKENS * 8
    assert max(map(sum, level)) < 0.4 * max(map(sum, plain))


def test_fewer_dies_hold_more_slots() -> None:
    assert load(expert_parallel=128).slots == 3  # 114 dies for 256 experts
    assert load(expert_parallel=32).slots == 9  # 29 dies


def test_no_die_left_for_routed_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="none are left"):
        load(expert_parallel=8, shared_dies=8)
