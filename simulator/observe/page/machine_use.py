"""What a run makes of its machine: a roofline of its kernels, its memory, links and memory over time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from simulator import np
from simulator.observe.page.bars import ranks_shown
from simulator.observe.page.charts import Line, Panel, Part, panels, stacked
from simulator.observe.page.html import (
    Chart,
    Html,
    Section,
    beside,
    chart,
    element,
    escaped,
    folded,
    joined,
    paragraph,
    shown,
    table,
)
from simulator.observe.page.palette import SERIES, SIDES
from simulator.observe.page.roofline import MOST, KernelPoint, kernel_points, roofs
from simulator.observe.page.sides import Sides, kind_colours, named, ordered
from simulator.observe.page.use import Use, use_over_time
from simulator.observe.recorded import Recorded
from simulator.observe.tables import Titled, number, time_unit
from simulator.units import format_si

BINS = 480
NEAR = 1.25  # roofs that are nearer than this ratio are drawn as one
_GIB = 2**30
_SYMBOLS = {"": "circle", "A": "circle", "B": "diamond-open"}


def roofline(sides: Sides) -> Section:
    """FLOP/s over FLOP/byte of every kernel, below what its chip can do."""
    points = {side: kernel_points(run.columns) for side, run in sides.items()}
    if not any(points.values()):
        return Section("roofline", "Roofline", paragraph("No kernel of this run both computes and moves bytes in HBM."))
    said = (f"Each point is all tasks of a name, for the {MOST} names at most that take longest; its area grows with "
            "the time they take. On the slope HBM decides, below a level the units that compute do; a point below both "
            "has other reasons, which the pointer tells.")
    tables = [folded(named("as a table", side), table(_points_table(some), wide=True))
              for side, some in points.items() if some]
    return Section("roofline", "Roofline of the kernels",
                   joined([chart(roofline_chart(sides, points)), paragraph(said), *tables]))


def _points_table(points: list[KernelPoint]) -> Titled:
    rows = [(one.name, one.kind, number(one.flops_per_byte), number(one.flops_per_s / 1e12), one.time_ps / 1e9,
             one.bound_by) for one in points]
    return Titled("", ("<kernel", "<kind", ">FLOP/byte", ">TFLOP/s", ">ms", "<bound by"), rows)


def roofline_chart(sides: Sides, points: Mapping[str, list[KernelPoint]]) -> Chart:
    """Log-log; a trace for each kind and side, and one for each roof."""
    everything = [one for some in points.values() for one in some]
    low = min(one.flops_per_byte for one in everything) / 3
    high = max(one.flops_per_byte for one in everything) * 8
    longest = max(one.time_ps for one in everything)
    traces = [trace for side, run in sides.items() if side != "B" or run.peaks != sides["A"].peaks
              for trace in _roofs(run, side, low, high)]
    colour = kind_colours(sides)
    for side, some in points.items():
        for kind in ordered(one.kind for one in some):
            of_kind = [one for one in some if one.kind == kind]
            traces.append(_kernels(named(kind, side), of_kind, colour[kind], _SYMBOLS[side], longest))
    floor = min(one.flops_per_s for one in everything) / 4
    top = max([one.flops_per_s for one in everything]
              + [roof for run in sides.values() for roof in roofs(run.peaks).values()])
    layout = {"xaxis": {"type": "log", "title": {"text": "FLOP for each byte of HBM"}, "dtick": 1,
                        "range": [float(np.log10(low)), float(np.log10(high))]},
              "yaxis": {"type": "log", "title": {"text": "FLOP/s of a rank"}, "dtick": 1, "exponentformat": "power",
                        "range": [float(np.log10(floor)), float(np.log10(top * 2.2))]}, "showlegend": True}
    return Chart("roofline: FLOP per second over FLOP per byte of HBM, one point for each kernel", traces, layout, 460)


def _roofs(run: Recorded, side: str, low: float, high: float) -> list[dict[str, Any]]:
    """A line for each peak: bytes/s x intensity up to it, then level."""
    made: list[dict[str, Any]] = []
    rate = run.peaks.hbm_bytes_per_s
    for name, peak in _levels(run).items():
        ridge = peak / rate if rate else low
        xs = [low, ridge, high] if low < ridge < high else [low, high]
        made.append({"type": "scatter", "mode": "lines+text", "x": xs, "y": [min(peak, rate * x) for x in xs],
                     "text": [""] * (len(xs) - 1) + [shown(name)],
                     "textposition": "top left", "name": shown(named(name, side)), "showlegend": False,
                     "hoverinfo": "skip", "line": {"width": 1.2, "dash": "dot" if made else "solid"}, "role": "roof"})
    return made


def _levels(run: Recorded) -> dict[str, float]:
    """The roofs with their names and FLOP/s; of those that lie so close that their names would, the highest."""
    found: dict[str, float] = {}
    names: list[str] = []
    last = 0.0
    for name, peak in [*roofs(run.peaks).items(), ("", 0.0)]:
        if names and peak < last / NEAR:
            found["; ".join(names)] = last
            names = []
        last = last if names else peak
        pool, _, dtype = name.partition(", ")
        same = bool(names) and names[0].startswith(f"{pool}, ")
        names.append(f"{dtype if same else name} {format_si(peak, 'FLOP/s')}")
    return found


def _kernels(name: str, points: list[KernelPoint], colour: str, symbol: str, longest: float) -> dict[str, Any]:
    said = [shown(f"{one.name}: {format_si(one.flops_per_s, 'FLOP/s')} at {one.flops_per_byte:.4g} FLOP/byte, "
                  f"{one.time_ps / 1e9:.4g} ms, bound by {one.bound_by}") for one in points]
    sizes = [7 + 27 * (one.time_ps / longest) ** 0.5 for one in points]
    return {"type": "scatter", "mode": "markers", "name": shown(name), "x": [one.flops_per_byte for one in points],
            "y": [one.flops_per_s for one in points], "text": said, "hovertemplate": "%{text}<extra></extra>",
            "marker": {"color": colour, "size": sizes, "symbol": symbol, "opacity": 0.85,
                       **({"line": {"width": 2}} if symbol.endswith("open") else {})}}


def use(sides: Sides) -> Section:
    """HBM, L2, cores and links over time: while the middle layer runs, and over the whole run."""
    parts: list[Html] = []
    for side, run in sides.items():
        rank, label = next(iter(ranks_shown(run.columns).items()), (0, ""))
        end = int(run.columns["end_ps"].max(initial=0))
        layer, begin, until = middle_layer(run, rank)
        whole = use_chart(run, rank, 0, end, named("use over the whole run", side))
        if layer >= 0:
            text = named(f"use while layer {layer} runs", side)
            parts += [element("h3", escaped(f"{text}, {label}")), chart(use_chart(run, rank, begin, until, text)),
                      folded(named("over the whole run", side), chart(whole))]
        else:
            parts += [element("h3", escaped(f"{named('use over the run', side)}, {label}")), chart(whole)]
    said = ("Dashed: the peak that a rank has, of memory what kernels together achieve. Every task is taken to move "
            f"its bytes evenly while it is at work, so a sum may pass the peak; a value is a mean over "
            f"1/{BINS} of the time.")
    return Section("use", "HBM, L2, cores and links over time", joined([paragraph(said), *parts]))


def middle_layer(run: Recorded, rank: int) -> tuple[int, int, int]:
    """(layer, from, to) of the middle layer of a rank (ps); -1 and the whole run where it has none."""
    columns = run.columns
    mine = columns["rank"] == rank
    layers = np.unique(columns["layer"][mine & (columns["layer"] >= 0)]).tolist()
    if not layers:
        return -1, 0, int(columns["end_ps"].max(initial=0))
    layer = layers[len(layers) // 2]
    rows = mine & (columns["layer"] == layer)
    return layer, int(columns["start_ps"][rows].min()), int(columns["end_ps"][rows].max())


def use_chart(run: Recorded, rank: int, begin_ps: int, end_ps: int, label: str) -> Chart:
    """A panel for each thing that is used between two times."""
    unit, per_unit = time_unit(end_ps - begin_ps)
    edges = np.linspace(begin_ps, max(end_ps, begin_ps + 1), BINS + 1)
    found = use_over_time(run.columns, run.peaks, rank, edges)
    at = [round(float((edge - begin_ps) / per_unit), 6) for edge in edges]
    lines = [_use_line(one, at, place) for place, one in enumerate(found)]
    return panels(label, f"{unit} from {format_si(begin_ps / 1e12, 's')} into the run",
                  [Panel(one.name, one.unit, one.peak) for one in found], lines)


def _use_line(one: Use, at: list[float], place: int) -> Line:
    mean = [float(f"{value:.4g}") for value in one.mean.tolist()]
    values = [*mean, mean[-1] if mean else 0.0]
    return Line(one.name, at, values, SERIES[place % len(SERIES)], place, steps=True, fill=True)


def memory(sides: Sides) -> Section:
    """What the fullest rank keeps, and how much room that leaves."""
    tables = []
    for side, run in sides.items():
        rows = [(category, name, number(size / _GIB), f"{size / run.memory.usable_bytes:.1%}")
                for category, name, size in run.memory.items]
        free = run.memory.usable_bytes - run.memory.used_bytes
        rows.append(("free", "", number(free / _GIB), f"{free / run.memory.usable_bytes:.1%}"))
        caption = f"of the fullest rank; {format_si(run.memory.capacity_bytes, 'B')} in all"
        headings = ("<what", "<of what", ">GiB", ">of what is usable")
        tables.append(table(Titled(named("memory ledger", side), headings, rows, caption)))
    return Section("memory", "Memory", joined([chart(memory_chart(sides)), beside(*tables)]))


def memory_chart(sides: Sides) -> Chart:
    """One bar for each side, a part for each item of the ledger; a line where room ends."""
    names = ordered(*([f"{category}: {name}" for category, name, _ in run.memory.items] for run in sides.values()))
    sizes = [{f"{category}: {name}": size / _GIB for category, name, size in run.memory.items}
             for run in sides.values()]
    shades = _shades(names)
    parts = [Part(name, [one.get(name, 0.0) for one in sizes], shades[name]) for name in names]
    wanted = {named("usable", side): run.memory.usable_bytes / _GIB for side, run in sides.items()}
    if len({round(value, 6) for value in wanted.values()}) == 1:
        wanted = {"usable": next(iter(wanted.values()))}
    bars = [named("fullest rank", side) for side in sides]
    return stacked("memory of the fullest rank, in GiB", bars, parts, "GiB", "GiB", wanted)._replace(
        height=220 + 30 * len(sides))


def _shades(names: list[str]) -> dict[str, str]:
    """A hue for each category, lighter from item to item."""
    hues = {"weights": SIDES[0], "KV": "#009e73", "activations": "#e69f00", "communication": "#d55e00"}
    made: dict[str, str] = {}
    spare = iter(SERIES[3:] * len(names))
    for category in ordered(name.partition(":")[0] for name in names):
        hue = hues.get(category) or next(spare)
        own = [name for name in names if name.partition(":")[0] == category]
        steps = [0.0, *(0.6 * (place + 1) / len(own) for place in range(len(own)))]
        made |= {name: _lighter(hue, share) for name, (share, _) in zip(own, pairwise(steps), strict=True)}
    return made


def _lighter(colour: str, share: float) -> str:
    """A colour mixed with white."""
    parts = [int(colour[place:place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)
