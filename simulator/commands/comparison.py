"""Two results side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from simulator.commands.summary import expected_rows, facts, headline

if TYPE_CHECKING:
    from simulator.observe.tables import Titled
    from simulator.study.simulate import Result


def print_comparison(a: Result, b: Result) -> None:
    """Published values, metrics, where the time went and one layer's streams of two runs, with the differences."""
    from rich.padding import Padding
    from rich.text import Text

    from simulator.observe.layer_picture import layer_picture
    from simulator.observe.report import expected_table, stretch_sentence
    from simulator.observe.tables import console, show

    terminal = console()
    expected = [replace(row, id=f"{letter}  {row.id}") for letter, result in (("A", a), ("B", b))
                for row in expected_rows(result)]
    both = dict(a.header["changed"].items() & b.header["changed"].items())
    for letter, result in (("A", a), ("B", b)):
        show(terminal, Text(f"{letter}  {result.scenario.name}: {result.scenario.title}", "bold"))
        show(terminal, *(Padding(fact, (0, 0, 0, 3))
                         for fact in (*facts(result, both), stretch_sentence(result.measured))))
    terminal.print()
    show(terminal, *([expected_table(expected)] if expected else ()), *_tables(a, b))
    for letter, result in (("A", a), ("B", b)):
        show(terminal, Text(f"{letter}  {result.scenario.name}, one layer's streams", "bold"))
        terminal.print(layer_picture(result.columns, rank=0, width=terminal.width))


def _tables(a: Result, b: Result) -> list[Titled]:
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


def _table(title: str, a: Mapping[str, float], b: Mapping[str, float]) -> Titled:
    from simulator.observe.tables import Titled

    table = Titled("", (f"<{title:<36}", *(f">{head:>9}" for head in ("A", "B", "B - A", "B / A"))))
    for name, cells in rows(a, b):
        table.add(name, *cells)
    return table


def rows(a: Mapping[str, float], b: Mapping[str, float]) -> Iterable[tuple[str, tuple[str, str, str, str]]]:
    """(name, (A, B, difference, ratio)) of every name in A or B that is not zero in both; "-" where there is none."""
    from simulator.observe.tables import number

    for name in dict.fromkeys((*a, *b)):
        one, other = a.get(name), b.get(name)
        if not one and not other:
            continue
        if one is None or other is None:
            yield name, (*("-" if side is None else number(side) for side in (one, other)), "-", "-")  # type: ignore[misc]
        else:
            ratio = f"{other / one:.3f}" if one else "-"
            yield name, (number(one), number(other), f"{'+' if other > one else ''}{number(other - one)}", ratio)
