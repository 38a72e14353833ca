"""Of neighbouring layers that are alike some are simulated, and their time stands for that of all.

Where nothing is drawn per layer, the time of L such layers is linear in L: another layer takes from the end of one to
the end of the next. The first one of a stretch fills streams and the last one empties them, so they are not counted.
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
    """Neighbouring layers that are alike: the numbers of those that are simulated, and how many are not."""

    numbers: range
    left: int


def stretches(layers: Sequence[Layer], most: int) -> list[Stretch]:
    """All layers, of which at most so many of each stretch are simulated (0: all), or three if they stand for more."""
    found, first = [], 0
    for _, alike in groupby(layers):
        count = sum(1 for _ in alike)
        simulated = min(count, max(most, 3)) if most else count
        found.append(Stretch(range(first, first + simulated), count - simulated))
        first += count
    return found


def simulated(layers: Sequence[Layer], most: int) -> list[int]:
    """The numbers of the layers that are simulated."""
    return [number for stretch in stretches(layers, most) for number in stretch.numbers]


def left_seconds(found: Sequence[Stretch], columns: Mapping[str, Any]) -> float:
    """How much longer a run of these would take with the layers that were left out; columns: of its timeline."""
    return sum(one.left * _layer_ps(one.numbers, columns) for one in found if one.left) / PS_PER_S


def measures(case: Case[Requests, Any, Any], seconds: float) -> Mapping[str, float]:
    """Of a decode iteration; nothing of a part of the layers."""
    return {} if case.knobs.layers else decode_measures(case, seconds)


def decode_readings(case: Case[Requests, Any, Any], columns: Mapping[str, Any]) -> dict[str, float]:
    """Of a part of the layers of a decode iteration: for all of them."""
    if not case.knobs.layers:
        return {}
    found = stretches(case.model.layers, case.knobs.layers)
    return dict(decode_measures(case, float(columns["end_ps"].max()) / PS_PER_S + left_seconds(found, columns)))


def _layer_ps(numbers: range, columns: Mapping[str, Any]) -> float:
    """From the end of the first of these layers to that of the last but one, per layer, on an average rank."""
    first, last = (_end_ps(number, columns) for number in (numbers[0], numbers[-2]))
    return (last - first) / (len(numbers) - 2)


def _end_ps(layer: int, columns: Mapping[str, Any]) -> float:
    rows = columns["layer"] == layer
    ranks, place = np.unique(columns["rank"][rows], return_inverse=True)
    ends = np.zeros(len(ranks))
    np.maximum.at(ends, place, columns["end_ps"][rows].astype(float))
    return float(ends.mean())
