"""Statistics of a metric, against NumPy's and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.serving.spread import PERCENTILES, single, spread


def test_four_values_by_hand() -> None:
    block = spread("ms", np.array([4.0, 1.0, np.nan, 2.0, 3.0]))
    assert list(block) == ["unit", "avg", "min", "max", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99",
                           "std", "count", "sum"]  # fmt: skip
    assert (block["unit"], block["count"], block["sum"], block["avg"]) == ("ms", 4, 10.0, 2.5)
    assert (block["min"], block["p25"], block["p50"], block["max"]) == (1, 1.75, 2.5, 4)
    assert block["p99"] == pytest.approx(3.97)
    assert block["std"] == pytest.approx(1.25**0.5)
    assert single("sec", 3) == {"unit": "sec", "avg": 3.0}


def test_counted_values_are_as_if_written_out() -> None:
    draw = np.random.default_rng(3)
    values, counts = draw.integers(0, 50, 300).astype(float), draw.integers(1, 9, 300)
    block, whole = spread("ms", values, counts), np.repeat(values, counts)
    assert [block[f"p{part}"] for part in PERCENTILES] == pytest.approx(np.percentile(whole, PERCENTILES).tolist())
    assert (block["avg"], block["std"]) == (pytest.approx(whole.mean()), pytest.approx(whole.std()))
    assert (block["count"], block["sum"]) == (len(whole), whole.sum())


def test_one_value() -> None:
    block = spread("ms", np.array([7.0]))
    assert {block[name] for name in ("avg", "min", "max", "p1", "p99", "sum")} == {7.0}
    assert block["std"] == 0
