"""Means over time, exact: integrals on one path."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.serving.over_time import LEVELS, level, levels
from tests.serving.hand import MS, together


def test_levels_by_hand() -> None:
    found = levels(together())
    assert set(found) == set(LEVELS)
    edges = np.array([0, 30, 90]) * MS
    means = {name: one(edges).tolist() for name, one in found.items()}
    assert means["in_flight"] == pytest.approx([(30 + 10) / 30, (50 + 60 + 5) / 60])
    assert means["queue"] == pytest.approx([(5 + 5) / 30, (10 + 2) / 60])
    assert means["decoding"] == pytest.approx([0, (10 + 30 + 20 + 10) / 60])
    assert means["used_blocks"] == pytest.approx([7 * 20 / 30, (7 * 10 + 26 * 40 + 19 * 10) / 60])


def test_integral_of_the_number_is_the_sum_of_stays() -> None:
    """Little's law as an identity of the path."""
    draw = np.random.default_rng(1)
    start = np.sort(draw.integers(0, 10**15, 5000))
    stay = draw.integers(0, 10**13, 5000)
    end = int((start + stay).max())
    mean = level(start, start + stay)(np.array([0, end]))[0]
    assert mean * end == pytest.approx(stay.sum(), rel=1e-9)


def test_nothing_there_is_zero() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert level(nothing, nothing)(np.array([0, 5, 9])).tolist() == [0, 0]
