"""The timeline of a page: a canvas, the controls beside it, and what its colours mean."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.observe.layer_budget import layer_budget
from simulator.observe.page.bars import PACKED, ranks_shown, timeline_data, unit_ps
from simulator.observe.page.html import (
    Html,
    Section,
    data_script,
    element,
    escaped,
    folded,
    fresh_id,
    joined,
    paragraph,
    table,
)
from simulator.observe.page.palette import KINDS
from simulator.observe.page.sides import Sides, kind_colours, named
from simulator.observe.report import budget_table
from simulator.observe.tables import Titled

KEYS = ("arrow keys left and right move, + and - zoom, up and down zoom too; Shift with left and right goes from task "
        "to task, Shift with up and down from stream to stream; Home shows the whole run, End a layer. With the "
        "pointer: drag, wheel or two fingers; a click keeps a task.")


def timeline(sides: Sides) -> Section:
    """Streams of the slowest rank, of the median and of rank 0; of two sides one above the other, on one scale."""
    unit = max(unit_ps(run.measured.makespan_ps) for run in sides.values())
    colour = kind_colours(sides)
    tracks = [{"title": named(run.name, side) if side else run.name, "end": -(-run.measured.makespan_ps // unit),
               "ranks": timeline_data(run.columns, run.critical, unit)} for side, run in sides.items()]
    data = {"unit_ps": unit, "columns": PACKED, "kinds": colour, "wait": KINDS["wait"], "tracks": tracks}
    said = ("Each row is a stream of a rank, each bar a task. Grey and hatched: ready, and waiting for peers, a "
            "flag or cores. A line on top of a bar: on the critical path. Stripes: micro-batches B, D, ... Where bars "
            "are too narrow to be seen, a column has the colour of what took most of it.")
    key_id = fresh_id("keys")
    place = element("div", _controls(sides), _legend(colour, sides), _canvas(sides, key_id), data_script(data),
                    class_="timeline")
    keys = element("p", escaped(f"Keys: {KEYS}"), id=key_id, class_="quiet")
    return Section("timeline", "Timeline", joined([paragraph(said), place, keys, *_budgets(sides)]))


def _budgets(sides: Sides) -> Iterator[Html]:
    """Block by block what the middle layer of the first rank shown works and waits, and what runs beside."""
    for side, run in sides.items():
        budget = layer_budget(run.columns, next(iter(ranks_shown(run.columns))))
        if budget is not None:
            found = budget_table(budget)
            yield folded(named(f"layer {budget.layer}, block by block", side),
                         table(Titled("", found.headings, found.rows, found.caption)))


def _controls(sides: Sides) -> Html:
    ranks = [element("label", escaped(named("rank", side)), Html(" "),
                     element("select", class_="rank", aria_label=named("rank of the timeline", side)))
             for side in sides]
    align = []
    if len(sides) == 2:
        choices = [element("option", escaped(text), value=value)
                   for value, text in (("layer", "begin of the layer"), ("start", "begin of the run"))]
        align = [element("label", escaped("one above the other from"), Html(" "),
                         element("select", *choices, class_="align"))]
    layer = element("label", escaped("layer"), Html(" "), element("select", class_="layer", aria_label="layer shown"))
    buttons = [element("button", escaped(sign), type="button", class_=f"do-{what}", aria_label=text, title=text)
               for what, sign, text in (("out", "−", "zoom out"), ("in", "+", "zoom in"))]
    buttons.append(element("button", escaped("whole run"), type="button", class_="do-whole"))
    return element("div", *ranks, layer, *align, *buttons, class_="controls")


def _canvas(sides: Sides, keys: str) -> Html:
    runs = " and ".join(run.name for run in sides.values())
    canvas = element("canvas", escaped("a timeline of tasks"), tabindex="0", role="application",
                     aria_label=f"timeline of {runs}", aria_describedby=keys)
    tip = element("div", class_="tip", hidden="hidden")
    said = element("div", escaped("no task chosen: click one, or press Shift and an arrow key"), class_="said",
                   role="status", aria_live="polite")
    return joined([element("div", canvas, tip, class_="stage"), said])


def _legend(colour: dict[str, str], sides: Sides) -> Html:
    communication = {kind for run in sides.values() for kind in set(run.columns["kind"][run.columns["communication"]])}
    order = sorted(colour, key=lambda kind: (kind in communication, kind))
    chips = [_chip(kind, f"background:{colour[kind]}") for kind in order]
    lines = f"background:repeating-linear-gradient(45deg,{KINDS['wait']} 0 2px,transparent 2px 5px)"
    chips.append(_chip("waiting", lines))
    return element("div", *chips, class_="legend")


def _chip(text: str, style: str) -> Html:
    return element("span", element("i", style=style), escaped(text))

