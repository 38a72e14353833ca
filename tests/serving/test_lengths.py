"""Lengths follow their law."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.serving.draws import stream_of
from simulator.serving.lengths import from_table, log_normal, uniform
from simulator.serving.requests import independent

COUNT = 100_000


def test_uniform_has_every_length_of_its_range_as_often() -> None:
    drawn = uniform(COUNT, 100, 0.8, stream_of(1, "input"))
    counts = np.bincount(drawn)[80:]
    assert (drawn.min(), drawn.max(), len(counts)) == (80, 100, 21)
    assert np.abs(counts - COUNT / 21).max() < 4.5 * (COUNT / 21) ** 0.5


def test_a_ratio_of_one_is_a_fixed_length() -> None:
    assert set(uniform(50, 1024, 1.0, stream_of(0, "input")).tolist()) == {1024}


def test_no_ratio_draws_an_empty_prompt() -> None:
    assert uniform(COUNT, 10, 0.01, stream_of(0, "input")).min() == 1


@pytest.mark.parametrize(("mean", "cv"), [(3000, 0.5), (300, 1.5)])
def test_log_normal_keeps_mean_and_spread(mean: float, cv: float) -> None:
    drawn = log_normal(COUNT, mean, cv, stream_of(2, "input"))
    assert drawn.dtype == np.int64
    assert drawn.mean() == pytest.approx(mean, rel=0.001 + 4 * cv / COUNT**0.5)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.05)
    logs = np.log(drawn)
    assert np.mean((logs - logs.mean()) ** 3) / logs.std() ** 3 == pytest.approx(0.0, abs=0.05)  # symmetric


def test_log_normal_without_spread_is_fixed_and_never_empty() -> None:
    assert set(log_normal(9, 77, 0.0, stream_of(0, "input")).tolist()) == {77}
    assert log_normal(COUNT, 2, 3.0, stream_of(0, "input")).min() == 1


def test_a_table_is_drawn_as_pairs_and_as_often() -> None:
    table = independent(np.zeros(3), np.array([10, 20, 20]), np.array([1, 2, 3]))
    pairs = list(zip(*(column.tolist() for column in from_table(30_000, table, stream_of(0, "pairs"))), strict=True))
    assert set(pairs) == {(10, 1), (20, 2), (20, 3)}
    for pair in set(pairs):
        assert pairs.count(pair) == pytest.approx(10_000, abs=4 * 10_000**0.5)


def test_what_no_length_can_be_is_refused() -> None:
    random = stream_of(0, "input")
    for ratio in (0.0, 1.5, -1.0):
        with pytest.raises(InputError, match=f"range_ratio is {ratio}"):
            uniform(3, 100, ratio, random)
    with pytest.raises(InputError, match="the length is 0 tokens; it must be at least 1"):
        uniform(3, 0, 0.5, random)
    with pytest.raises(InputError, match="the length is nan"):
        log_normal(3, float("nan"), 0.5, random)
    with pytest.raises(InputError, match="cv is -1"):
        log_normal(3, 100, -1, random)
