"""Cached tokens in decode, drawn and placed."""

from __future__ import annotations

from statistics import mean, stdev

import pytest

from simulator.model.layout import cached_lengths, on_ranks


def test_without_spread_all_are_alike() -> None:
    assert cached_lengths(2, 3, 100, 0.0, seed=1) == [100] * 6


def test_drawn_lengths_have_the_mean_and_the_spread_that_were_asked_for() -> None:
    drawn = cached_lengths(32, 72, 3072, 0.19, seed=0)
    assert mean(drawn) == pytest.approx(3072, rel=0.02)
    assert stdev(drawn) / mean(drawn) == pytest.approx(0.19, rel=0.05)
    assert drawn == cached_lengths(32, 72, 3072, 0.19, seed=0) != cached_lengths(32, 72, 3072, 0.19, seed=1)


def test_length_aware_placement_levels_tokens_and_keeps_the_number_of_requests() -> None:
    drawn = cached_lengths(8, 9, 3072, 0.5, seed=3)
    arrival, level = on_ranks(drawn, 8, length_aware=False), on_ranks(drawn, 8, length_aware=True)
    for hands in (arrival, level):
        assert {len(hand) for hand in hands} == {9}
        assert sorted(length for hand in hands for length in hand) == sorted(drawn)
    spread = [max(map(sum, hands)) - min(map(sum, hands)) for hands in (arrival, level)]
    assert spread[1] < 0.1 * spread[0]
