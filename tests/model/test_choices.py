"""Which experts few tokens choose."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import numpy as np
import pytest

from simulator.model.choices import blocks_of, chosen_rows, even_rows, power_law_rows

WAYS = [chosen_rows, power_law_rows]


def touched(draw: Callable[..., tuple[int, ...]], tokens: int, skew: float, groups: int = 1) -> float:
    """Experts with rows in the fullest group, the mean of 40 draws."""
    return mean(max(sum(map(bool, block)) for block in blocks_of(draw(tokens, 256, 8, skew, (seed,)), groups))
                for seed in range(40))  # fmt: skip


@pytest.mark.parametrize("draw", WAYS)
@pytest.mark.parametrize("skew", [0.0, 1.0, 1.01, 3.0])
def test_a_token_never_chooses_an_expert_twice(draw: Callable[..., tuple[int, ...]], skew: float) -> None:
    for seed in range(20):
        rows = draw(3, 32, 8, skew, (seed,))
        assert sum(rows) == 24
        assert max(rows) <= 3
        assert max(draw(1, 32, 8, skew, (seed,))) == 1


@pytest.mark.parametrize("draw", WAYS)
def test_the_same_seed_draws_the_same_and_skew_touches_fewer(draw: Callable[..., tuple[int, ...]]) -> None:
    assert draw(4, 256, 8, 1.01, (0, 7)) == draw(4, 256, 8, 1.01, (0, 7))
    assert touched(draw, 16, 0) > touched(draw, 16, 1) > touched(draw, 16, 2)


def by_gumbel(tokens: int, experts: int, per_token: int, skew: float, seed: tuple[int, ...], groups: int, kept: int
              ) -> list[int]:
    """The same draws as the largest of log popularity + Gumbel noise; groups by the sum of their two best."""
    random = np.random.default_rng(seed)
    popularity = -skew * np.log(np.arange(1, experts + 1, dtype=float))
    random.shuffle(popularity)
    rows = np.zeros(experts, dtype=int)
    for keys in popularity + random.gumbel(size=(tokens, experts)):
        blocks = keys.reshape(groups, -1)
        good = np.argsort([sum(sorted(block)[-2:]) for block in blocks])[-kept:]
        there = np.concatenate([block if number in good else block - np.inf for number, block in enumerate(blocks)])
        rows[np.argsort(there)[-per_token:]] += 1
    return rows.tolist()


@pytest.mark.parametrize(("skew", "groups", "kept"), [(0.0, 1, 1), (0.7, 1, 1), (1.3, 8, 4)])
def test_rows_are_those_of_gumbels_trick_and_the_first_of_many_tokens_choose_as_few_do(
    skew: float, groups: int, kept: int
) -> None:
    for tokens in (300, 7, 301):
        rows = chosen_rows(tokens, 64, 4, skew, (5, tokens > 300), groups, kept)
        assert list(rows) == by_gumbel(tokens, 64, 4, skew, (5, tokens > 300), groups, kept)


@pytest.mark.parametrize(("tokens", "experts", "fullest"), [(4, 29, 6.3), (8, 61, 11.3), (16, 100, 17)])
def test_a_power_law_touches_as_many_experts_as_the_measured_tables(tokens: int, experts: int, fullest: float) -> None:
    assert touched(power_law_rows, tokens, 1.01) == pytest.approx(experts, rel=0.1)
    assert touched(power_law_rows, tokens, 1.01, groups=8) == pytest.approx(fullest, rel=0.1)


def test_a_token_keeps_to_its_groups_and_ranks_are_less_even() -> None:
    def fullest(**limit: int) -> float:
        draws = [power_law_rows(4, 256, 8, 1.01, (seed,), **limit) for seed in range(40)]
        return mean(max(sum(map(bool, block)) for block in blocks_of(rows, 8)) for rows in draws)

    for seed in range(20):
        one = power_law_rows(1, 256, 8, 1.01, (seed,), groups=8, kept=4)
        assert sum(one) == 8
        assert sum(sum(block) > 0 for block in blocks_of(one, 8)) <= 4
    assert fullest(groups=8, kept=4) > fullest() + 0.3
    assert fullest(groups=8, kept=8) == fullest()


@pytest.mark.parametrize("tokens", [1, 4, 32, 40])
def test_even_rows_touch_as_many_experts_as_they_can_in_every_block(tokens: int) -> None:
    rows = even_rows(tokens, 256, 8)
    assert sum(rows) == 8 * tokens
    assert sum(map(bool, rows)) == min(8 * tokens, 256)
    assert len({sum(block) for block in blocks_of(rows, 8)}) == 1
