"""What was run, what came out, and what was published: the head of a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from simulator.observe.page.html import Html, Section, element, escaped, folded, joined, paragraph, table
from simulator.observe.page.sides import Sides, compared_table
from simulator.observe.recorded import Recorded
from simulator.observe.report import ExpectedRow, expected_table, footnote_table, host_sentence, stretch_sentence
from simulator.observe.report import Footnote as Note
from simulator.observe.tables import Cell, Titled, number

_IN_CHARTS = ("block_", "sent_")


class Words(NamedTuple):
    """What a page says in words. meaning: of a metric, by its name, "" where it is not known; facts: how a run was
    simulated, line by line."""

    meaning: Callable[[str], str]
    facts: Callable[[Recorded], Sequence[str]]


def title_of(run: Recorded) -> str:
    """Its scenario and what that is."""
    return f"{run.name}: {run.about['title']}"


def fact_list(sides: Sides, words: Words) -> Html:
    """The facts of every side."""
    made = []
    for side, run in sides.items():
        if side:
            made.append(element("h2", escaped(f"{side}  {title_of(run)}"), class_=f"side side-{side}"))
        made.append(element("ul", *(element("li", escaped(fact)) for fact in words.facts(run)), class_="facts"))
    return joined(made)


def headline(run: Recorded) -> dict[str, float]:
    """The metrics that no chart or table below shows."""
    kinds = {f"{kind}_ms" for kind in run.measured.kind_ps}
    return {name: value for name, value in run.metrics.items()
            if value is not None and name not in kinds and not name.startswith(_IN_CHARTS)}


def summary(sides: Sides, words: Words) -> Section:
    """The headline table, and what was published."""
    runs = [*sides.values()]
    if len(runs) == 1:
        rows: list[Sequence[Cell]] = [(name, number(value), words.meaning(name))
                                      for name, value in headline(runs[0]).items()]
        metrics = Titled("metrics", ("<metric", ">value", "~what it says"), rows)
    else:
        metrics = compared_table("metrics", "", [headline(run) for run in runs], texts_alike=False)
        given = {row[0]: words.meaning(str(row[0])) for row in metrics.rows if row is not None}
        metrics = Titled("metrics", ("<metric", *metrics.headings[1:], "~what it says"),
                         [(*row, given[row[0]]) for row in metrics.rows if row is not None])
    parts = [table(metrics), _published(sides)]
    for side, run in sides.items():
        if run.measured.makespan_ps:
            sentences = f"{stretch_sentence(run.measured)} {host_sentence(run.measured)}"
            parts.append(paragraph(f"{side}: {sentences}".removeprefix(": ")))
    return Section("summary", "Summary", joined(parts))


def _published(sides: Sides) -> Html:
    rows = [ExpectedRow(**{**row, "id": f"{side}  {row['id']}".strip()})
            for side, run in sides.items() for row in run.expected]
    if not rows:
        return Html("")
    caption = "fit: numbers were chosen by it, so it proves nothing; predict: none was"
    found = expected_table(rows)
    return table(Titled("published values", found.headings, found.rows, caption))


def provenance(sides: Sides) -> Section:
    """Where the numbers come from that mattered, and every setting of the run."""
    parts = []
    for side, run in sides.items():
        found = footnote_table([_note(one) for one in run.parameters])
        title = "numbers of the machine that bounded the critical path"
        parts.append(table(Titled(f"{side}  {title}".strip(), found.headings, found.rows,
                                  "published, derived, fitted or assumed; saves: if it were twice as good")))
    both = ([*dict.fromkeys(key for run in sides.values() for key in run.about["settings"])])
    rows = [(key, *(_text(run.about["settings"].get(key)) for run in sides.values())) for key in both]
    how = "; ".join(f"{side} seed {run.about['seed']}, Braid {run.about['version']}".strip()
                    for side, run in sides.items())
    settings = Titled("", ("<setting", *(f"~{side or 'value'}" for side in sides)), rows)
    parts.append(folded(f"all settings ({how})", table(settings)))
    metrics = [(name, *(number(run.metrics[name]) if run.metrics.get(name) is not None else "-"
                        for run in sides.values()))
               for name in dict.fromkeys(name for run in sides.values() for name in run.metrics)]
    headings = ("<metric", *(f">{side or 'value'}" for side in sides))
    parts.append(folded("all metrics", table(Titled("", headings, metrics))))
    return Section("provenance", "Where the numbers come from", joined(parts))


def _note(one: Any) -> Note:
    value = f"{one['value']:g} {one['unit']}".removesuffix(" 1") if one["value"] is not None else "-"
    return Note(one["name"], f"{one['saves']:.1%}", value, one["kind"], one["source"])


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value[:12])) + (f", ... ({len(value)})" if len(value) > 12 else "") or "none"
    return "none" if value is None else str(value)
