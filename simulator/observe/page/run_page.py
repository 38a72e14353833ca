"""The page of one run, and of A against B."""

from __future__ import annotations

from collections.abc import Callable

from simulator.observe.page.document import Page, Tell
from simulator.observe.page.html import Section
from simulator.observe.page.machine_use import memory, roofline, use
from simulator.observe.page.moved import moved
from simulator.observe.page.sides import Sides
from simulator.observe.page.summary import Words, fact_list, provenance, summary, title_of
from simulator.observe.page.timeline_section import timeline
from simulator.observe.page.where_time import critical, kernels, sensitivity, time_by_kind

_OF_TASKS: tuple[Callable[[Sides], Section], ...] = (timeline, time_by_kind, critical, sensitivity, roofline, use,
                                                     kernels)


def run_page(sides: Sides, words: Words, tell: Tell = lambda share: None) -> Page:
    """One run ({"": run}) or two ({"A": run, "B": another one}) section by section."""
    runs = [*sides.values()]
    title = " against ".join(f"{side} {run.name}" for side, run in sides.items())
    if len(runs) == 1:
        title = title_of(runs[0])
    sections = [summary(sides, words)]
    if all(len(run.columns["rank"]) for run in runs):
        for number, make in enumerate(_OF_TASKS):
            tell(number / len(_OF_TASKS))
            sections.append(make(sides))
            if make is critical and len(runs) == 2:
                sections.append(moved(sides))
    sections += [memory(sides), provenance(sides)]
    return Page(title, fact_list(sides, words), sections, str(runs[0].about["version"]))
