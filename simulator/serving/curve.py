"""A function of one number that is dear to ask: asked at nodes, interpolated between them, bisected where it bends.

Between two neighbours of a grid the function is asked at both and in the middle. Where the middle lies on the line
between them, within the tolerance, the line stands for it; where it does not, there is a kink, and each half is treated
in the same way. Nodes are asked for when a value between them is first wanted.

Worked example. f(x) = max(80, x) on a grid of 64, 128, tolerance 1%, at x = 70: 64 and 128 give 80 and 128, and 96 in
the middle 96 where the line says 104. So the half from 64 to 96 is looked at: its middle 80 gives 80 where the line
says 88. In the half from 64 to 80 the middle 72 gives 80, as the line does: f(70) = 80, with five questions.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from itertools import pairwise

from simulator import np

NARROW = 8  # nodes less than an eighth apart are not told apart further: what is drawn makes small bends everywhere


class Curve:
    """ask: the function, of whole numbers; grid: where it is asked first, ascending; beyond its ends the nearest line
    goes on. tolerance: of the middle of two nodes, relative; what is nearer than one part in `narrow` is not
    bisected."""

    def __init__(self, ask: Callable[[int], float], grid: Sequence[int], tolerance: float,
                 narrow: int = NARROW) -> None:  # fmt: skip
        if len(grid) < 2 or any(low >= high for low, high in pairwise(grid)):
            raise ValueError(f"grid {list(grid)}: it must have two numbers at least, and ascend")
        self._ask, self._grid, self._tolerance, self._narrow = ask, list(grid), tolerance, narrow
        self._known: dict[int, float] = {}
        self._nodes: list[int] = []
        self._straight: set[tuple[int, int]] = set()  # intervals of which the line was found to hold
        self._arrays: tuple[np.Array, np.Array] | None = None

    def at(self, x: float) -> float:
        """The value at one number."""
        low, high = self.around(x)
        first, last = self._value(low), self._value(high)
        return first + (last - first) * (x - low) / (high - low)

    def over(self, xs: np.Array) -> np.Array:
        """The values at ascending numbers."""
        x, last = float(xs[0]), float(xs[-1])
        while True:
            low, high = self.around(x)
            self._value(low), self._value(high)
            if high >= last or high == self._grid[-1]:
                break
            x = high
        if self._arrays is None:
            self._arrays = np.array(self._nodes, float), np.array([self._known[node] for node in self._nodes])
        nodes, values = self._arrays
        found: np.Array = np.interp(xs, nodes, values)
        if last > nodes[-1]:
            slope = (values[-1] - values[-2]) / (nodes[-1] - nodes[-2])
            found = np.where(xs > nodes[-1], values[-1] + slope * (xs - nodes[-1]), found)
        return found

    def first(self) -> float:
        """The value where the grid begins."""
        return self._value(self._grid[0])

    def around(self, x: float) -> tuple[int, int]:
        """The neighbouring nodes around a number between which the line holds."""
        place = min(max(bisect_right(self._grid, x), 1), len(self._grid) - 1)
        low, high = self._grid[place - 1], self._grid[place]
        while (low, high) not in self._straight and high - low > max(1, low // self._narrow):
            middle = (low + high) // 2
            first, value, last = self._value(low), self._value(middle), self._value(high)
            line = first + (last - first) * (middle - low) / (high - low)
            if abs(line - value) <= self._tolerance * abs(value):
                self._straight |= {(low, middle), (middle, high)}
            low, high = (low, middle) if x < middle else (middle, high)
        return low, high

    def _value(self, node: int) -> float:
        value = self._known.get(node)
        if value is None:
            value = self._known[node] = self._ask(node)
            insort(self._nodes, node)
            self._arrays = None
        return value
