"""Two results side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from simulator.commands.summary import expected_rows, facts, headline
from simulator.commands.terminal import console

if TYPE_CHECKING:
    from rich.table import Table

    from simulator.simulation import Result


def print_comparison(a: Result, b: Result) -> None:
    """Published values, metrics, where the time went and one layer's streams of two runs, with the differences."""
    from simulator.observe.layer_picture import layer_picture
    from simulator.observe.report import expected_table, stretch_sentence

    terminal = console()
    for letter, result in (("A", a), ("B", b)):
        terminal.print(f"{letter}  {result.scenario.name}: {result.scenario.title}", style="bold")
        for fact in facts(result):
            terminal.print(f"   {fact}")
        terminal.print(f"   {stretch_sentence(result.measured)}")
    terminal.print()
    expected = [*expected_rows(a), *expected_rows(b)]
    if expected:
        terminal.print(expected_table(expected))
    for table in _tables(a, b):
        terminal.print(table)
    for letter, result in (("A", a), ("B", b)):
        terminal.print(f"{letter}  {result.scenario.name}, one layer's streams", style="bold")
        terminal.print(layer_picture(result.columns, rank=0, width=terminal.width))


def _tables(a: Result, b: Result) -> list[Table]:
    one, other = a.measured, b.measured
    hidden = [{name: times.hidden_ps / 1e9 for name, times in side.communication.items()} for side in (one, other)]
    exposed = [{name: times.exposed_ps / 1e9 for name, times in side.communication.items()} for side in (one, other)]
    return [
        _table("metric", headline(a), headline(b)),
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
