"""Of neighbouring layers that are alike some are simulated, and their time stands for that of all.

Where nothing is drawn per layer, the time of L such layers is linear in L: another layer takes from the end of one to
the end of the next. The first one of a stretch fills streams and the last one empties them, so they are not counted.
Where kinds of attention alternate (three linear layers and a full one), the same holds of what repeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from pydantic import Field

from simulator import np
from simulator.model.transformer import Layer
from simulator.study.scenario import Case, Requests, decode_measures
from simulator.units import PS_PER_S

LAYERS: Any = Field(
    0, ge=0, description="of neighbouring layers that are alike so many are simulated, three at least, and their"
    " time stands for that of all (0: all are)"
)
"""A knob of workloads that can do so."""


class Stretch(NamedTuple):
    """Neighbouring layers that are alike, or repeat every `unit` layers: the numbers of those that are simulated, and
    how many such units are not."""

    numbers: range
    left: int
    unit: int = 1


def stretches(layers: Sequence[Layer], most: int) -> list[Stretch]:
    """All layers, of which at most so many of each stretch are simulated (0: all), or three units if they stand for
    more."""
    unit = _unit(layers)
    if unit:
        repeats = len(layers) // unit
        simulated = min(repeats, max(-(-most // unit), 3)) if most else repeats
        return [Stretch(range(simulated * unit), repeats - simulated, unit)]
    found, first = [], 0
    for _, alike in groupby(layers):
        count = sum(1 for _ in alike)
        simulated = min(count, max(most, 3)) if most else count
        found.append(Stretch(range(first, first + simulated), count - simulated))
        first += count
    return found


def _unit(layers: Sequence[Layer]) -> int:
    """Layers of different kinds of attention after which all repeats, the fewest; 0 where none do."""
    if len({type(layer.attention) for layer in layers}) < 2:
        return 0
    halves = range(2, len(layers) // 2 + 1)
    return next((unit for unit in halves if len(layers) % unit == 0 and layers[unit:] == layers[:-unit]), 0)


def simulated(layers: Sequence[Layer], most: int) -> list[int]:
    """The numbers of the layers that are simulated."""
    return [number for stretch in stretches(layers, most) for number in stretch.numbers]


def left_seconds(found: Sequence[Stretch], columns: Mapping[str, Any]) -> float:
    """How much longer a run of these would take with the layers that were left out; columns: of its timeline."""
    return sum(one.left * _unit_ps(one.numbers, one.unit, columns) for one in found if one.left) / PS_PER_S


def measures(case: Case[Requests, Any, Any], seconds: float) -> Mapping[str, float]:
    """Of a decode iteration; nothing of a part of the layers."""
    return {} if case.knobs.layers else decode_measures(case, seconds)


def decode_readings(case: Case[Requests, Any, Any], columns: Mapping[str, Any]) -> dict[str, float]:
    """Of a part of the layers of a decode iteration: for all of them."""
    if not case.knobs.layers:
        return {}
    found = stretches(case.model.layers, case.knobs.layers)
    return dict(decode_measures(case, float(columns["end_ps"].max()) / PS_PER_S + left_seconds(found, columns)))


def _unit_ps(numbers: range, unit: int, columns: Mapping[str, Any]) -> float:
    """From the end of the first unit of these layers to that of the last but one, per unit, on an average rank."""
    first, last = (_end_ps(number, columns) for number in (numbers[unit - 1], numbers[-unit - 1]))
    return (last - first) / (len(numbers) // unit - 2)


def _end_ps(layer: int, columns: Mapping[str, Any]) -> float:
    rows = columns["layer"] == layer
    ranks, place = np.unique(columns["rank"][rows], return_inverse=True)
    ends = np.zeros(len(ranks))
    np.maximum.at(ends, place, columns["end_ps"][rows].astype(float))
    return float(ends.mean())
