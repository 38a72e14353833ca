"""How values are spread: the statistics that AIPerf writes of a metric."""

from __future__ import annotations

from typing import TypeAlias

from simulator import np

Block: TypeAlias = dict[str, str | float | int]
"""Of one metric: its unit, and statistics by their names in AIPerf's JSON. One number for a whole run is its `avg`."""

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def spread(unit: str, values: np.Array, counts: np.Array | None = None) -> Block:
    """unit, avg, min, max, percentiles (between values: along the line), std (of these values, not of a sample), count
    and sum. counts: how many times each value is there, more than 0; NaN: not there. At least one must be there.

    As AIPerf's `metric_result_from_array` with its default ddof of 0 (ai-dynamo/aiperf, metrics/metric_dicts.py).
    """
    counts = np.ones(len(values), dtype=np.int32) if counts is None else counts
    if not (there := ~np.isnan(values)).all():
        values, counts = values[there], counts[there]
    order = np.argsort(values := values.astype(np.float64, copy=False), kind="stable")
    values, counts = values[order], counts[order]
    del order  # of ten million values each column is 80 MB
    last = np.cumsum(counts)
    count, total = int(last[-1]), float((values * counts).sum())
    average = total / count
    place = np.array(PERCENTILES) / 100.0 * (count - 1)
    below = place.astype(np.int64)
    low, high = (values[np.searchsorted(last, at, side="right")] for at in (below, np.minimum(below + 1, count - 1)))
    parts = low + (place - below) * (high - low)
    del last
    squares = values - average
    squares *= squares
    squares *= counts
    deviation = np.sqrt(squares.sum() / count)
    return {"unit": unit, "avg": average, "min": float(values[0]), "max": float(values[-1]),
            **{f"p{part}": float(value) for part, value in zip(PERCENTILES, parts, strict=True)},
            "std": float(deviation), "count": count, "sum": total}  # fmt: skip


def single(unit: str, value: float) -> Block:
    """One number for a whole run."""
    return {"unit": unit, "avg": float(value)}
