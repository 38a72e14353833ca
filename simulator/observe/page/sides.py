"""One run, or A and B: what the sections of a page are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from simulator.observe.page.palette import colours
from simulator.observe.recorded import Recorded
from simulator.observe.tables import Cell, Titled, number
from simulator.units import alike

Sides: TypeAlias = Mapping[str, Recorded]
"""{"": a run} or {"A": a run, "B": another one}."""


def named(what: str, side: str) -> str:
    """What is shown of a side, by the name of the side too where there are two."""
    return f"{what} · {side}" if side else what


def kind_colours(sides: Sides) -> dict[str, str]:
    """Of every kind that any side has."""
    return colours(kind for run in sides.values() for kind in run.measured.kind_ps)


def compared_table(title: str, caption: str, values: Sequence[Mapping[str, float]], texts_alike: bool = True) -> Titled:
    """Every name that any side has and that is not zero in all: A, B, their difference and ratio."""
    a, b = values
    names = [name for name in dict.fromkeys((*a, *b)) if a.get(name) or b.get(name)]
    gained = {name: b[name] - a[name] for name in names if name in a and name in b}
    rows: list[Sequence[Cell]] = []
    columns = [_texts([side.get(name) for name in names], texts_alike) for side in (a, b, gained)]
    for name, one, other, more in zip(names, *columns, strict=True):
        sign = "+" if gained.get(name, 0.0) > 0 else ""
        ratio = f"{b[name] / a[name]:.3f}" if name in gained and a[name] else "-"
        rows.append((name, one, other, sign + more, ratio))
    return Titled(title, ("<", ">A", ">B", ">B - A", ">B / A"), rows, caption)


def _texts(values: Sequence[float | None], texts_alike: bool) -> list[str]:
    return alike(values) if texts_alike else ["-" if value is None else number(value) for value in values]


def in_ms(times_ps: Mapping[str, float]) -> dict[str, float]:
    """Times in milliseconds."""
    return {name: value / 1e9 for name, value in times_ps.items()}


def ordered(*names: Iterable[str]) -> list[str]:
    """All names in the order of their first appearance."""
    return list(dict.fromkeys(name for some in names for name in some))
