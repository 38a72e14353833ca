"""Few layers for all: which layers of a model are simulated, and how long the whole takes.

Without draws the time of a layer is the same wherever it stands between the same neighbours. So a model is cut to a few
layers in which every layer still stands between neighbours that it has in the whole, and each such place is there at
least once. What is left out takes as long as its likes: from the start of their first task to that of the next layer::

    whole      A A A B B B B B B ... B       A: dense, B: experts
    simulated  A A A B B B           B       the last B but one stands for those that are left out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator.model.transformer import Layer

Place = tuple[Layer | None, Layer, Layer | None]  # a layer between its neighbours, none before the first


@dataclass(frozen=True)
class FewLayers:
    """layers: those that are simulated, in order. left_out: (the last of them in such a place, how many more of these
    the whole model has)."""

    layers: tuple[Layer, ...]
    left_out: tuple[tuple[int, int], ...]


@cache
def few_layers(layers: tuple[Layer, ...], least: int) -> FewLayers:
    """The fewest layers with every place of the whole, but at least so many (0: all)."""
    places = _places(layers)
    kept = list(range(len(layers)))
    while least and (cut := _cut([places[number] for number in kept], least)):
        del kept[slice(*cut)]
    there = [places[number] for number in kept]
    missing = Counter(places)
    missing.subtract(there)
    last = {place: number for number, place in enumerate(there)}
    left_out = tuple((last[place], count) for place, count in missing.items() if count)
    return FewLayers(tuple(layers[number] for number in kept), left_out)


def _places(layers: Sequence[Layer]) -> list[Place]:
    return list(zip((None, *layers[:-1]), layers, (*layers[1:], None), strict=True))


def _cut(places: Sequence[Place], least: int) -> tuple[int, int] | None:
    """The longest stretch that can go: it ends in a place like the one before it, so that neighbours stay as they are,
    and all its places are elsewhere too."""
    for length in range(len(places) - least, 0, -1):
        for first in range(1, len(places) - length):
            if places[first - 1] == places[first + length - 1] and set(places[first : first + length]) <= {
                *places[:first], *places[first + length :]
            }:
                return first, first + length
    return None


def whole_s(columns: Mapping[str, Any], few: FewLayers) -> float:
    """How long the whole model takes, in seconds, from the timeline of the few; layers are labelled with their numbers.

    Every rank ends as much later as its own layers take; the last one counts.
    """
    ranks, layers, starts, ends = (columns[name] for name in ("rank", "layer", "start_ps", "end_ps"))
    longest = 0
    for rank in sorted(set(ranks.tolist())):
        mine = ranks == rank
        more = sum(count * (_mark(starts, mine & (layers == number + 1)) - _mark(starts, mine & (layers == number)))
                   for number, count in few.left_out)
        longest = max(longest, int(ends[mine].max()) + more)
    return longest / 1e12


def _mark(starts: Any, rows: Any) -> int:
    """When the first of these tasks starts (ps)."""
    return int(starts[rows].min())
