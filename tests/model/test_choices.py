"""Which experts few tokens choose."""

from __future__ import annotations

import pytest

from simulator.model.choices import blocks_of, chosen_rows, even_rows


@pytest.mark.parametrize("skew", [0.0, 1.01, 3.0])
def test_a_token_never_chooses_an_expert_twice(skew: float) -> None:
    for seed in range(20):
        rows = chosen_rows(3, 32, 8, skew, (seed,))
        assert sum(rows) == 24
        assert max(rows) <= 3
        assert max(chosen_rows(1, 32, 8, skew, (seed,))) == 1


def test_the_same_seed_draws_the_same_and_skew_touches_fewer() -> None:
    assert chosen_rows(4, 256, 8, 1.01, (0, 7)) == chosen_rows(4, 256, 8, 1.01, (0, 7))
    touched = [sum(sum(map(bool, chosen_rows(16, 256, 8, skew, (seed,)))) for seed in range(20)) for skew in (0, 1, 2)]
    assert touched[0] > touched[1] > touched[2]


@pytest.mark.parametrize("tokens", [1, 4, 32, 40])
def test_even_rows_touch_as_many_experts_as_they_can_in_every_block(tokens: int) -> None:
    rows = even_rows(tokens, 256, 8)
    assert sum(rows) == 8 * tokens
    assert sum(map(bool, rows)) == min(8 * tokens, 256)
    assert len({sum(block) for block in blocks_of(rows, 8)}) == 1
