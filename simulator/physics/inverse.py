"""The inverse of a matrix of which one or a few columns change at a time.

When the columns c of A change by D (A' = A + D E', E the unit vectors of c), the inverse M = 1/A becomes
(Sherman, Morrison, Woodbury)

    M' = M - (M D) G (E' M)          with the small matrix G = 1 / (1 + E' M D)

and the solution of A x = b becomes x' = x - (M D) G x[c]. The product is not carried out each time: the thin factors
M D G and E' M are held, and folded into M by one multiplication of matrices when many have gathered.

Worked example. A = (2 0; 1 1), x = (3, 1) for b = (6, 4). The first column becomes (1, 1): D = (-1, 0), M D = (-1/2,
1/2), G = 1 / (1 - 1/2) = 2, x' = (3, 1) - (-1/2, 1/2) * 2 * 3 = (6, -2): 1 * 6 = 6 and 1 * 6 - 2 = 4.
"""

from __future__ import annotations

import numpy as np

from simulator.physics.places import Floats, Ints

HELD = 64  # so many columns gather before they are folded in
GROWTH = 32.0  # of rounding errors in one change, at most


class Inverse:
    """Of a square matrix. Everything is kept transposed: the columns of the inverse, asked for most, lie in a row."""

    def __init__(self, matrix: Floats) -> None:
        size = len(matrix)
        self._inverse = np.ascontiguousarray(np.linalg.inv(matrix).T)
        self._left, self._right = np.empty((size, HELD)), np.empty((HELD, size))
        self._held = 0

    def solve(self, right: Floats) -> Floats:
        """x of A x = right; only before the first change."""
        return right @ self._inverse

    def change(self, columns: list[int], rows: Ints, by: Floats) -> Floats | None:
        """Add `by[k, j]` at row `rows[j]` of column `columns[k]`; x becomes x - x[columns] @ (what is returned).

        None: nothing is changed, because rounding errors would grow too much; start again from the matrix.
        """
        many = len(columns)
        if self._held + many > HELD:
            self._fold()
        held = self._held
        step = by @ self._inverse.take(rows, axis=0)
        right = self._inverse.take(columns, axis=1)
        if held:
            step -= (by @ self._left.take(rows, axis=0)[:, :held]) @ self._right[:held]
            right -= self._left[:, :held] @ self._right[:held].take(columns, axis=1)
        small = step.take(columns, axis=1)
        small.flat[:: many + 1] += 1.0
        try:
            growth = 1.0 / small if many == 1 else np.linalg.inv(small)
        except np.linalg.LinAlgError:
            return None
        if not np.abs(growth).max() < GROWTH:
            return None
        step = growth @ step
        if many > HELD:
            self._inverse -= right @ step
        else:
            self._left[:, held : held + many], self._right[held : held + many] = right, step
            self._held = held + many
        return step

    def _fold(self) -> None:
        self._inverse -= self._left[:, : self._held] @ self._right[: self._held]
        self._held = 0
