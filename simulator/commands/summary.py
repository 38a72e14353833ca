"""What a person reads of a result: its header, and the report's input made from it; and of two, side by side."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from rich.padding import Padding
from rich.text import Text

from simulator.observe.layer_picture import layer_picture
from simulator.observe.report import Footnote, ReportInput, expected_table, stretch_sentence
from simulator.observe.tables import Titled, console, number, show
from simulator.study.expected import compared
from simulator.study.glossary import meaning
from simulator.study.simulate import Result
from simulator.units import format_si

# what the report's tables show in full, so that the headline need not
_IN_TABLES = {
    "communication_ms", "hidden_comm_ms", "exposed_comm_ms", "waiting_comm_ms", "communication_share", "compute_ms",
    "compute_stretch", "compute_stretch_beside_communication", "host_bound_ms",
}


def _in_tables(name: str) -> bool:
    return name in _IN_TABLES or name.startswith(("block_", "sent_"))


def facts(result: Result, in_both: Container[str] = ()) -> list[str]:
    """The header's lines: what was run, how, and which settings were changed; in_both: those changed on two sides."""
    header, ledger = result.header, result.ledger
    ranks, classes = header["ranks"], header["classes"]
    how = "every rank by itself"
    if header["mode"] == "roles":
        how = f"by roles, {classes} of {ranks} ranks stand for all" if classes < ranks else f"{how}, no two do the same"
    lines = [
        f"{header['machine']}, {count(header['cards'], 'card')} = {count(ranks, 'rank')}; {header['model']}",
        f"simulated {how}; seed {header['seed']}",
        f"memory: {format_si(ledger.used_bytes, 'B')} of {format_si(ledger.usable_bytes, 'B')} on the fullest rank",
    ]
    if not result.recorded:
        lines.append("not recorded: only what follows from the makespan and from the programs")
    for key, text in header["changed"].items():
        how = " (assumed)" if key.startswith(("machine.", "model.")) else ""
        if key == "launch_jitter" and all(program.captured for program in result.world.programs):
            how = " (of captured graphs, each of which is one launch)"
        if key in header["unread"]:
            how = " (without effect: nothing in this run reads it)"
        where = " in A and B" if key in in_both else ""
        lines.append(f"changed{where}: {key} = {text}{how}")
    lines += missing(result)
    if header["changed"] and result.scenario.expected:
        lines.append("expected values are those of the scenario without these changes")
    return lines


def count(number: int, what: str) -> str:
    """"1 card", "8 cards"."""
    return f"{number} {what}{'s' * (number != 1)}"


def missing(result: Result) -> list[str]:
    """Why an expected value has no simulated one beside it."""
    return [f"expected {one.id}: {one.missing}" for one in compared(result) if one.missing]


def headline(result: Result) -> dict[str, float]:
    """The metrics without the time of each kind, which has a table of its own."""
    kinds = {f"{kind}_ms" for kind in result.measured.kind_ps} if result.recorded else set()
    return {name: value for name, value in result.metrics.items() if name not in kinds}


def report_of(result: Result) -> ReportInput:
    """The report of one run."""
    numbers = [(name, number(value)) for name, value in headline(result).items() if not _in_tables(name)]
    title, meanings = f"{result.scenario.name}: {result.scenario.title}", {name: meaning(name) for name, _ in numbers}
    shown = ReportInput(title, facts(result), numbers, compared(result), meanings=meanings)
    if not result.recorded:
        return shown
    notes = [Footnote(one["name"], f"{one['saves']:.1%}", f"{one['value']:g} {one['unit']}".removesuffix(" 1"),
                      one["kind"], one["source"]) for one in result.parameters]  # fmt: skip
    return replace(shown, metrics=result.measured, path=result.critical, columns=result.columns, footnotes=notes)


def print_comparison(a: Result, b: Result) -> None:
    """Published values, metrics, where the time went and one layer's streams of two runs, with the differences."""
    terminal = console()
    expected = [replace(row, id=f"{letter}  {row.id}") for letter, result in (("A", a), ("B", b))
                for row in compared(result)]
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
    return [_table("metric", headline(a), headline(b)),
            _table("where the time went, ms", _ms(one.account_ps), _ms(other.account_ps)),
            _table("time by kind, ms", _ms(one.kind_ps), _ms(other.kind_ps)),
            _table("hidden communication, ms", *hidden),
            _table("exposed communication, ms", *exposed)]


def _ms(times_ps: Mapping[str, float]) -> dict[str, float]:
    return {name: value / 1e9 for name, value in times_ps.items()}


def _table(title: str, a: Mapping[str, float], b: Mapping[str, float]) -> Titled:
    headings = (f"<{title:<36}", *(f">{head:>9}" for head in ("A", "B", "B - A", "B / A")))
    return Titled("", headings, [(name, *cells) for name, cells in _rows(a, b)])


def _rows(a: Mapping[str, float], b: Mapping[str, float]) -> Iterable[tuple[str, tuple[str, str, str, str]]]:
    """(name, (A, B, difference, ratio)) of every name in A or B that is not zero in both; "-" where there is none."""
    for name in dict.fromkeys((*a, *b)):
        one, other = a.get(name), b.get(name)
        if not one and not other:
            continue
        if one is None or other is None:
            yield name, (*("-" if side is None else number(side) for side in (one, other)), "-", "-")  # type: ignore[misc]
        else:
            ratio = f"{other / one:.3f}" if one else "-"
            yield name, (number(one), number(other), f"{'+' if other > one else ''}{number(other - one)}", ratio)
