"""Charts that several pages have, as plotly draws them: dictionaries of traces and layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simulator.observe.page.html import Chart, shown

BAR = 26  # pixels of a horizontal bar and the gap to the next
PATTERN = {"shape": "/", "size": 7, "solidity": 0.45, "fillmode": "overlay", "fgcolor": "#ffffff",
           "fgopacity": 0.55}
"""Of what is hidden under other work."""


class Part(NamedTuple):
    """A stretch of every bar. name: in the legend; values: one for each bar; colour: of all, or one each; hatched:
    drawn lighter, with lines across."""

    name: str
    values: Sequence[float]
    colour: str | Sequence[str]
    hatched: bool = False


def stacked(label: str, bars: Sequence[str], parts: Sequence[Part], axis: str, unit: str,
            wanted: Mapping[str, float] | None = None) -> Chart:
    """Horizontal bars, the first on top, each of parts one after the other. wanted: lines across all bars, by name."""
    names = [shown(bar) for bar in bars]
    said = f"%{{y}}<br>%{{fullData.name}}: %{{x:,.4~g}} {unit}<extra></extra>"
    traces = [{"type": "bar", "orientation": "h", "name": shown(part.name), "y": names, "x": [*part.values],
               "marker": _marker(part), "hovertemplate": said} for part in parts]
    layout = {"barmode": "stack", "xaxis": {"title": {"text": shown(axis)}, "rangemode": "tozero"},
              "yaxis": {"autorange": "reversed", "type": "category"}, "showlegend": len(parts) > 1,
              **_lines(wanted or {})}
    return Chart(label, traces, layout, 110 + BAR * len(bars))


def _marker(part: Part) -> dict[str, Any]:
    colour = part.colour if isinstance(part.colour, str) else [*part.colour]
    return {"color": colour, **({"pattern": PATTERN, "opacity": 0.75} if part.hatched else {})}


def _lines(wanted: Mapping[str, float]) -> dict[str, Any]:
    """Vertical lines with their names on top."""
    shapes = [{"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper",
               "line": {"dash": "dash", "width": 1.5}} for at in wanted.values()]
    notes = [{"x": at, "y": 1, "yref": "paper", "yanchor": "top", "xanchor": "right", "xshift": -4, "text": shown(name),
              "showarrow": False} for name, at in wanted.items()]
    return {"shapes": shapes, "annotations": notes}


class Step(NamedTuple):
    """A bar of a waterfall, from where the one before ended; total: from 0."""

    name: str
    value: float
    colour: str
    total: bool = False


def waterfall(label: str, steps: Sequence[Step], axis: str, unit: str) -> Chart:
    """Horizontal bars, each beginning where the one above it ends."""
    base, at = [], 0.0
    for step in steps:
        at = 0.0 if step.total else at
        base.append(at)
        at += step.value
    names = [shown(step.name) for step in steps]
    trace = {"type": "bar", "orientation": "h", "y": names, "x": [step.value for step in steps], "base": base,
             "marker": {"color": [step.colour for step in steps]},
             "hovertemplate": f"%{{y}}: %{{x:,.4~g}} {unit}<extra></extra>"}
    lines = [{"type": "line", "x0": begin + step.value, "x1": begin + step.value, "y0": place, "y1": place + 1,
              "line": {"width": 1, "dash": "dot"}} for place, (step, begin) in enumerate(zip(steps, base, strict=True))]
    layout = {"xaxis": {"title": {"text": shown(axis)}}, "yaxis": {"autorange": "reversed", "type": "category"},
              "shapes": lines[:-1], "showlegend": False}
    return Chart(label, [trace], layout, 90 + BAR * len(steps))


class Line(NamedTuple):
    """Of values over places on an axis. panel: of `panels`, from 0; steps: each value holds until the next place; fill:
    the ground below is coloured."""

    name: str
    x: Sequence[Any]
    y: Sequence[float | None]
    colour: str
    panel: int = 0
    steps: bool = False
    fill: bool = False


class Panel(NamedTuple):
    """One of several charts below each other. title: what it shows; unit: of its values; peak: at most; 0: none."""

    title: str
    unit: str
    peak: float = 0.0


def panels(label: str, axis: str, wanted: Sequence[Panel], lines: Sequence[Line], each: int = 96,
           names: bool = False) -> Chart:  # fmt: skip
    """Charts of lines with one axis of places, one below the other, each with its peak as a dashed line. each: pixels;
    names: places are names, not numbers."""
    count = len(wanted)
    layout: dict[str, Any] = {"shapes": [], "annotations": [], "showlegend": len({line.name for line in lines}) > count,
                              "xaxis": {"title": {"text": shown(axis)}, "anchor": f"y{count}" if count > 1 else "y",
                                        **({"type": "category"} if names else {})}}
    for place, panel in enumerate(wanted):
        axis_name = f"y{place + 1}" if place else "y"
        low, high = 1 - (place + 0.80) / count, 1 - (place + 0.12) / count
        layout[f"yaxis{place + 1}" if place else "yaxis"] = {
            "domain": [low, high], "rangemode": "tozero", "nticks": 4, "title": {"text": shown(panel.unit)}}
        layout["annotations"].append({"text": shown(panel.title), "x": 0, "xref": "paper", "xanchor": "left",
                                      "y": high, "yref": "paper", "yanchor": "bottom", "showarrow": False})
        if panel.peak:
            layout["shapes"].append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": axis_name,
                                     "y0": panel.peak, "y1": panel.peak, "line": {"dash": "dash", "width": 1.2}})
    units = [panel.unit for panel in wanted]
    return Chart(label, [_line(line, units[line.panel]) for line in lines], layout, 70 + each * count)


def _line(line: Line, unit: str) -> dict[str, Any]:
    style = {"color": line.colour, "width": 1.6, **({"shape": "hv"} if line.steps else {})}
    few = len(line.x) <= 40
    return {"type": "scatter", "mode": "lines+markers" if few else "lines", "name": shown(line.name), "x": [*line.x],
            "y": [*line.y], "line": style, "yaxis": f"y{line.panel + 1}" if line.panel else "y",
            **({"fill": "tozeroy"} if line.fill else {}),
            "hovertemplate": f"%{{fullData.name}}: %{{y:,.4~g}} {unit} at %{{x}}<extra></extra>"}
