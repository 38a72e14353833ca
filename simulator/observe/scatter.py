"""Points on a plane of characters: all of them, those on a front, and a few by a letter each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

MOST_WIDTH, HEIGHT = 100, 20
COLUMNS_OF_TICK, ROWS_OF_TICK = 14, 4  # between labels, at least
SIGNS, PLAIN = tuple("·o│─┤┬└"), tuple(".o|-+++")  # a point, one on the front, lines, ticks, corner; in ASCII

Place = tuple[float, float]


@dataclass
class Scatter:
    """A picture for a terminal. points: (x, y), both 0 or more; front: those that stand out; marked: (letter, x, y),
    drawn last, the first ones on top; x_axis, y_axis: what is drawn, with its unit; height: lines of the plane; width:
    columns of all (0: as many as there are, up to MOST_WIDTH)."""

    points: Sequence[Place]
    front: Sequence[Place]
    marked: Sequence[tuple[str, float, float]]
    x_axis: str
    y_axis: str
    width: int = 0
    height: int = HEIGHT

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        width = min(self.width or MOST_WIDTH, options.max_width)
        yield Text("\n".join(drawn(self, width, options.ascii_only)))
        yield ""


def drawn(picture: Scatter, width: int, ascii_only: bool = False) -> list[str]:
    """Its lines, no wider than that where ticks and title have room; ascii_only: without other signs."""
    point, front, beside, below, left, down, corner = PLAIN if ascii_only else SIGNS
    ticks_y = ticks(_largest(picture, 1), max(picture.height // ROWS_OF_TICK, 1))
    labels = _labels(ticks_y)
    margin = max(map(len, labels)) + 1
    across = max(width - margin - 1, COLUMNS_OF_TICK)
    ticks_x = ticks(_largest(picture, 0), max(across // COLUMNS_OF_TICK, 1))
    signs = [[" "] * across for _ in range(picture.height)]
    for sign, x, y in [*((point, *one) for one in picture.points), *((front, *one) for one in picture.front),
                       *reversed(picture.marked)]:  # fmt: skip
        signs[picture.height - 1 - _step(y, ticks_y[-1], picture.height)][_step(x, ticks_x[-1], across)] = sign
    rows = {picture.height - 1 - _step(tick, ticks_y[-1], picture.height): label
            for tick, label in zip(ticks_y, labels, strict=True)}
    lines = [picture.y_axis]
    lines += [f"{rows.get(row, ''):>{margin - 1}} {left if row in rows else beside}{''.join(line)}".rstrip()
              for row, line in enumerate(signs)]
    lines += _bottom(ticks_x, margin, across, corner + below + down)
    return [*lines, f"{picture.x_axis:>{margin + 1 + across}}"]


def _bottom(ticks_x: Sequence[float], margin: int, across: int, signs: str) -> list[str]:
    """The lower line with its ticks, and their numbers below it, none over another."""
    line, numbers = [signs[1]] * across, ""
    for tick, label in zip(ticks_x, _labels(ticks_x), strict=True):
        column = _step(tick, ticks_x[-1], across)
        line[column] = signs[2]
        begin = min(margin + 1 + column - len(label) // 2, margin + 1 + across - len(label))
        if begin > len(numbers) or not numbers:
            numbers = f"{numbers:<{begin}}{label}"
    return [f"{' ' * margin}{signs[0]}{''.join(line)}", numbers]


def ticks(largest: float, most: int) -> list[float]:
    """0 and equal steps of 1, 2 or 5 times a power of ten, up to the first that is no less than the largest value; at
    most so many steps."""
    if not largest > 0:
        return [0.0, 1.0]
    least = largest / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    return [step * number for number in range(math.ceil(largest / step * (1 - 1e-9)) + 1)]


def _labels(places: Sequence[float]) -> list[str]:
    """With as many decimals as the steps have."""
    decimals = max(-math.floor(math.log10(places[1]) + 1e-9), 0)
    return [f"{place:,.{decimals}f}" for place in places]


def _largest(picture: Scatter, axis: int) -> float:
    places = [*picture.points, *picture.front, *((x, y) for _, x, y in picture.marked)]
    return max((place[axis] for place in places), default=0.0)


def _step(value: float, largest: float, count: int) -> int:
    """Of `count` columns or rows from 0 to the largest value, the one of a value."""
    return min(int(value / largest * (count - 1) + 0.5), count - 1)
