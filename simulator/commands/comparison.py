"""Two results side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from simulator.commands.summary import facts
from simulator.commands.terminal import console

if TYPE_CHECKING:
    from rich.table import Table

    from simulator.simulation import Result


def print_comparison(a: Result, b: Result) -> None:
    """Metrics, where the time went, time by kind and exposed communication of two runs, with the differences."""
    from simulator.observe.report import stretch_sentence

    terminal = console()
    for letter, result in (("A", a), ("B", b)):
        terminal.print(f"{letter}  {result.scenario.name}: {result.scenario.title}", style="bold")
        for fact in facts(result):
            terminal.print(f"   {fact}")
        terminal.print(f"   {stretch_sentence(result.measured)}")
    terminal.print()
    for table in _tables(a, b):
        terminal.print(table)


def _tables(a: Result, b: Result) -> list[Table]:
    one, other = a.measured, b.measured
    hidden = [{name: times.hidden_ps / 1e9 for name, times in side.communication.items()} for side in (one, other)]
    exposed = [{name: times.exposed_ps / 1e9 for name, times in side.communication.items()} for side in (one, other)]
    return [
        _table("metric", a.metrics, b.metrics),
        _table("where the time went, ms", _ms(one.account_ps), _ms(other.account_ps)),
        _table("time by kind, ms", _ms(one.kind_ps), _ms(other.kind_ps)),
        _table("hidden communication, ms", *hidden),
        _table("exposed communication, ms", *exposed),
    ]


def _ms(times_ps: Mapping[str, float]) -> dict[str, float]:
    return {name: value / 1e9 for name, value in times_ps.items()}


def _table(title: str, a: Mapping[str, float], b: Mapping[str, float]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title, min_width=36)
    for head in ("A", "B", "B - A", "B / A"):
        table.add_column(head, justify="right", min_width=9)
    for name, cells in rows(a, b):
        table.add_row(Text(name), *cells)
    return table


def rows(a: Mapping[str, float], b: Mapping[str, float]) -> Iterable[tuple[str, tuple[str, str, str, str]]]:
    """(name, (A, B, difference, ratio)) of every name in A or B that is not zero in both; "-" where there is none."""
    from simulator.observe.report import number

    for name in dict.fromkeys((*a, *b)):
        one, other = a.get(name), b.get(name)
        if not one and not other:
            continue
        if one is None or other is None:
            yield name, (*("-" if side is None else number(side) for side in (one, other)), "-", "-")  # type: ignore[misc]
        else:
            ratio = f"{other / one:.3f}" if one else "-"
            yield name, (number(one), number(other), f"{'+' if other > one else ''}{number(other - one)}", ratio)
