"""What tokens ask of the experts of every layer at some time, and where these are: one may be stale for the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator import np
from simulator.model.eplb import Placement


@dataclass(frozen=True, eq=False)
class ExpertState:
    """name: the same for the same state. layers: numbers of the layers with routed experts, ascending. popularity:
    [layer, expert], of each layer they add up to 1. placements: of each layer. imbalance: load of the fullest place
    over the mean, mean of all layers: 1 where all are level; its inverse is what vLLM logs as balancedness. A later
    layer than all of them (that of a draft) is like the last one."""

    name: str
    layers: tuple[int, ...]
    popularity: np.ndarray
    placements: tuple[Placement, ...]
    imbalance: float

    def popularity_of(self, layer: int) -> tuple[float, ...]:
        """Of the experts of a layer, by its number."""
        return tuple(self.popularity[self._row(layer)].tolist())

    def placement_of(self, layer: int) -> Placement:
        """Of the experts of a layer, by its number."""
        return self.placements[self._row(layer)]

    def _row(self, layer: int) -> int:
        return self.layers.index(layer) if layer <= self.layers[-1] else -1


def imbalance_of(loads: Sequence[float], placement: Placement) -> float:
    """Load of the fullest place over the mean, for loads by expert."""
    places = placement.loads(loads)
    return max(places) * len(places) / sum(places)
