"""What moved from A to B, task by task: names whose tasks take longer or shorter, and what one side has alone."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.observe.align import Alignment, Tasks, align
from simulator.observe.page.html import Html, Section, joined, paragraph, table
from simulator.observe.page.sides import Sides
from simulator.observe.tables import Cell, Titled

MOST_ROWS = 15


def moved(sides: Sides) -> Section:
    """Tables of the names that changed, the greatest difference first."""
    a, b = sides["A"], sides["B"]
    found = align(a.columns, b.columns, (a.leaders, b.leaders))
    parts = [paragraph(_sentence(found)), _tasks("tasks that work or wait longer or shorter", found.changes),
             _tasks("tasks without a counterpart", found.unpaired)]
    return Section("moved", "What moved, task by task", joined(parts))


def _sentence(found: Alignment) -> str:
    if not found.moved:
        return f"Nothing moved: all {found.aligned:,} tasks are at the same times in A and in B."
    if not found.aligned:
        return "A and B have no task in common."
    return (f"Of {found.aligned:,} tasks that both have, {found.changed:,} work or wait longer or shorter, "
            f"{found.shifted:,} are only shifted, {found.same:,} are at the same times.")


def _tasks(title: str, tasks: Sequence[Tasks]) -> Html:
    rows: list[Sequence[Cell]] = []
    for one in tasks[:MOST_ROWS]:
        means = [time / count / 1e6 if count else None
                 for times in (one.work_ps, one.waiting_ps) for time, count in zip(times, one.tasks, strict=True)]
        counts = [f"{count:g}" if count else "-" for count in one.tasks]
        rows.append((one.name, one.kind, *counts, *means, one.difference_ps / 1e9))
    headings = ("<name", "<kind", ">tasks in A", ">in B", ">work us, A", ">B", ">waiting us, A", ">B", ">B - A, ms")
    more = f"; {len(tasks) - MOST_ROWS} more are not shown" if len(tasks) > MOST_ROWS else ""
    caption = f"one by one in the mean; B - A: of all of them on an average rank{more}"
    return table(Titled(title, headings, rows, caption))
