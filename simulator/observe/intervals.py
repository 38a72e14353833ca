"""Sets of time intervals as sorted numpy arrays: unions and overlaps without a loop.

Many ranks are treated at once by laying them one behind the other on one line (`lay_out`).
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.observe.columns import Array


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals in ascending order: start[i] < end[i] <= start[i + 1]; integer picoseconds."""

    start: Array
    end: Array

    def covered(self, start: Array, end: Array) -> Array:
        """For each interval start..end given (they may overlap) how much of it lies in this set (ps)."""
        return self._measure(end) - self._measure(start)

    def lengths(self) -> Array:
        """Length of each interval (ps)."""
        return self.end - self.start

    def _measure(self, time: Array) -> Array:
        """How much of the set lies before each time."""
        import numpy as np

        before = np.concatenate([[0], np.cumsum(self.lengths())])
        begun = np.searchsorted(self.start, time, side="right")
        last_end = np.concatenate([[0], self.end])[begun]
        return before[begun] - np.where(begun > 0, np.maximum(last_end - time, 0), 0)


def union(start: Array, end: Array) -> Intervals:
    """The union of intervals start..end in any order; empty ones vanish and touching ones become one."""
    import numpy as np

    some = end > start
    start, end = start[some], end[some]
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    end = np.maximum.accumulate(end)
    if not len(start):
        return Intervals(start, end)
    fresh = np.concatenate([[True], start[1:] > end[:-1]])
    last = np.concatenate([fresh[1:], [True]])
    return Intervals(start[fresh], end[last])


def lay_out(position: Array, time: Array | int, span_ps: int) -> Array:
    """Times of the rank at each position, moved to its own stretch of one line; span_ps > every time."""
    return position.astype("int64") * span_ps + time
