"""A small picture of one layer's streams, for a terminal or a text file."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from string import ascii_uppercase
from typing import TYPE_CHECKING

from simulator.observe.columns import Columns, block_of, layer_of, select
from simulator.observe.tables import number, time_unit
from simulator.units import PS_PER_S, format_si

if TYPE_CHECKING:
    from rich.text import Text

WAITING, ELSEWHERE, IDLE = "~", ":", " "
_COLOURS = ("cyan", "green", "yellow", "magenta", "bright_blue", "bright_red", "bright_green", "bright_cyan",
            "bright_yellow", "bright_magenta", "blue", "red")
_LABEL = 14


@dataclass(frozen=True)
class _Block:
    """Something drawn on a stream: a letter, its colour and when (ps)."""

    letter: str
    style: str
    start: int
    end: int


def layer_picture(columns: Columns, rank: int, layer: int | None = None, width: int = 100) -> Text:
    """What the streams of a rank did while a layer ran on it: a row per stream, a letter per block, a time axis.

    A block is the first word of a task's name ("attention" of "attention.q_a"). A cell shows what took most of it, so
    what is much shorter than a cell is only in the legend, whose times are sums over the layer. `layer` None is the
    middle one. Raises ValueError where the rank has no task of that layer.
    """
    from rich.text import Text

    mine, layer, here, later = layer_of(columns, rank, layer)
    if not here.any():
        raise ValueError(f"rank {rank} has no task of layer {layer}")
    start, end = int(mine["start_ps"][here].min()), int(mine["end_ps"][here].max())
    end = max(end, start + 1)
    letters = _letters([block_of(name) for name in mine["name"][here].tolist()])
    label = min(_LABEL, max(2, *(len(stream) for stream in mine["stream"].tolist())))
    cells = max(10, width - label - 3)
    unit, per_unit = time_unit(end - start)
    which = "outside any layer" if layer < 0 else f"layer {layer}"
    long, begins = format_si((end - start) / PS_PER_S, "s"), format_si(start / PS_PER_S, "s")
    after = f", the next {format_si(later / PS_PER_S, 's')} later" if later is not None else ""
    picture = Text(f"rank {rank}, {which}: {long} long, starts {begins} into the run{after}\n")
    rows = _rows(mine, layer, letters, start, end)
    for stream, blocks in rows.items():
        picture.append(f"{stream[:label]:<{label}} |")
        for letter, style in _cells(blocks, start, end, cells):
            picture.append(letter, style)
        picture.append("|\n")
    picture.append(f"{unit:<{label}}  {_axis((end - start) / per_unit, cells)}\n")
    picture.append_text(_legend(select(mine, here), letters, unit, per_unit, width))
    if len(rows) > 1:
        picture.append("\ntimes are of this layer, added up over the streams")
    return picture


def _letters(names: list[str]) -> dict[str, tuple[str, str]]:
    """(letter, colour) of each name in order of appearance: its first letter that is free, else any that is."""
    taken: dict[str, tuple[str, str]] = {}
    free = list(ascii_uppercase + "0123456789")
    for name in dict.fromkeys(names):
        letter = next((one for one in [*name.upper(), *free] if one in free), "#")
        if letter in free:
            free.remove(letter)
        taken[name] = (letter, _COLOURS[len(taken) % len(_COLOURS)])
    return taken


def _rows(columns: Columns, layer: int, letters: dict[str, tuple[str, str]], start: int,
          end: int) -> dict[str, list[_Block]]:
    """What each stream shows between start and end, streams in the order of their first task."""
    rows: dict[str, list[_Block]] = {stream: [] for stream in columns["stream"].tolist()}
    names = ("stream", "name", "layer", "micro_batch", "ready_ps", "start_ps", "end_ps")
    for stream, name, its, batch, ready, began, ended in zip(*(columns[one].tolist() for one in names), strict=True):
        if ended <= start or ready >= end:
            continue
        letter, colour = letters[block_of(name)] if its == layer else (ELSEWHERE, "")
        blocks = rows[stream]
        blocks.append(_Block(WAITING if its == layer else IDLE, "dim", ready, began))
        style = f"black on {colour}" if colour else "dim"
        blocks.append(_Block(letter.lower() if batch % 2 and batch > 0 else letter, style, began, ended))
    return {stream: blocks for stream, blocks in rows.items() if blocks}


def _cells(blocks: list[_Block], start: int, end: int, cells: int) -> list[tuple[str, str]]:
    """(letter, style) of every cell: what takes most of it, nothing included; ties go to the earlier."""
    amounts: list[dict[tuple[str, str], float]] = [{} for _ in range(cells)]
    size = (end - start) / cells
    for block in blocks:
        left, right = max(block.start, start) - start, min(block.end, end) - start
        for cell in range(int(left / size), min(cells, math.ceil(right / size))):
            part = min(right, (cell + 1) * size) - max(left, cell * size)
            if part > 0:
                key = (block.letter, block.style)
                amounts[cell][key] = amounts[cell].get(key, 0.0) + part
    shown = []
    for amount in amounts:
        nothing = size - sum(amount.values())
        best = max(amount, key=lambda key: amount[key], default=(IDLE, ""))
        shown.append(best if amount.get(best, 0.0) >= nothing else (IDLE, ""))
    return shown


def _axis(length: float, cells: int) -> str:
    """Round times below the cells, each at the left of its cell, the last one ending with the cells at most."""
    rough = length / max(2, cells // 14)
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough)
    line = ""
    for mark in range(int(length / step + 1e-9) + 1):
        text = f"{mark * step:.4g}"
        at = min(round(mark * step / length * cells) if length else 0, cells - len(text))
        line = f"{line:<{at}}{text}"
    return line


def _legend(columns: Columns, letters: dict[str, tuple[str, str]], unit: str, per_unit: int, width: int) -> Text:
    from rich.text import Text

    work = (columns["end_ps"] - columns["start_ps"]).tolist()
    total: Counter[str] = Counter()
    for name, length in zip(columns["name"].tolist(), work, strict=True):
        total[block_of(name)] += length
    legend, used = Text(), 0
    for name, (letter, colour) in letters.items():
        length = total[name]
        tiny = 0 < length * 1000 < per_unit
        entry = f" {name} {format_si(length / PS_PER_S, 's') if tiny else f'{number(length / per_unit)} {unit}'}"
        if used and used + len(entry) + 4 > width:
            legend.append("\n")
            used = 0
        elif used:
            legend.append("   ")
        legend.append(letter, f"black on {colour}").append(entry)
        used += len(entry) + 4
    notes = [f"{WAITING} waiting for cores or peers", f"{ELSEWHERE} another layer"]
    if (columns["micro_batch"] > 0).any():
        notes.append("small letters: odd micro-batches")
    return legend.append("\n" + ", ".join(notes))
