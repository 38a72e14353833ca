"""Where it is written down when each flow ends, in the time of what holds it back (see `levels.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


class Places:
    """Every load of every flow has a place in `ends`, which is inf unless this load holds the flow back.

    The places of one capacity lie together. capacities: those of each load of each flow, the last of all for its limit.
    of: the place of each load; on: the flows that cross each capacity; load_on: with which of their loads; first: of
    the ends on each capacity.
    """

    def __init__(self, capacities: Ints, clock: int) -> None:
        loads, depth = capacities.ravel(), capacities.shape[1]
        order = loads.argsort(kind="stable")
        bounds = np.searchsorted(loads[order], np.arange(clock + 2)).tolist()
        parts = [slice(a, b) for a, b in pairwise(bounds)]
        of = np.empty(len(loads), np.intp)
        of[order] = np.arange(len(loads))
        self.of = of.reshape(-1, depth)
        self.ends = np.full(len(loads), np.inf)
        self.first = np.full(clock + 1, np.inf)
        flows, numbers = order // depth, order % depth
        self.on = [flows[part] for part in parts]
        self.load_on = [numbers[part] for part in parts]
        self._ends_on = [self.ends[part] for part in parts]

    def find_first(self, capacities: Iterable[int]) -> None:
        """After ends there have changed."""
        for c in capacities:
            ends = self._ends_on[c]
            if len(ends):
                self.first[c] = ends[ends.argmin()]

    def due(self, now: Floats, near: Floats) -> Ints:
        """Flows that end when the time of what holds them back has gone on by so much, in order."""
        soon = np.flatnonzero(self.first - now <= near).tolist()
        found = [self.on[c][self._ends_on[c] - now[c] <= near[c]] for c in soon]
        return found[0] if len(found) == 1 else np.sort(np.concatenate(found))
