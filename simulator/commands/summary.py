"""What a person reads of a result: its header, and the report's input made from it; and of two, side by side."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from rich.padding import Padding
from rich.text import Text

from simulator.observe.layer_picture import layer_picture
from simulator.observe.report import Footnote, ReportInput, expected_table, stretch_sentence
from simulator.observe.tables import Titled, console, number, show
from simulator.study.expected import compared
from simulator.study.glossary import meaning
from simulator.study.simulate import Result
from simulator.units import alike, format_si

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
        lines.append("not recorded: the metrics of the workload, and not where the time went")
    for key, text in header["changed"].items():
        how = " (assumed)" if key.startswith(("machine.", "model.")) else ""
        if key == "launch_jitter" and all(program.captured for program in result.world.programs):
            how = " (of captured graphs, each of which is one launch)"
        if key in header["unread"]:
            how = " (without effect: nothing in this run reads it)"
        where = " in A and B" if key in in_both else ""
        lines.append(f"changed{where}: {key} = {text}{how}")
    lines += missing(result)
    if result.scenario.given and result.scenario.expected:
        lines.append("expected values are those of the scenario without these changes, so no error is shown")
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
    title = f"{result.scenario.name}: {result.scenario.full_title}"
    meanings = {name: meaning(name) for name, _ in numbers}
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
        show(terminal, Text(f"{letter}  {result.scenario.name}: {result.scenario.full_title}", "bold"))
        show(terminal, *(Padding(fact, (0, 0, 0, 3))
                         for fact in (*facts(result, both), stretch_sentence(result.measured))))
    terminal.print()
    show(terminal, *([expected_table(expected)] if expected else ()), *_tables(a, b))
    for letter, result in (("A", a), ("B", b)):
        show(terminal, Text(f"{letter}  {result.scenario.name}, one layer's streams", "bold"))
        show(terminal, layer_picture(result.columns, rank=0, width=terminal.width))


def _tables(a: Result, b: Result) -> list[Titled]:
    one, other = a.measured, b.measured
    hidden = [{name: times.hidden_ps / 1e9 for name, times in side.communication.items()} for side in (one, other)]
    exposed = [{name: times.exposed_ps / 1e9 for name, times in side.communication.items()} for side in (one, other)]
    return [_table("metric", headline(a), headline(b), lambda values: [*map(number, values)]),
            _table("where the time went, ms", _ms(one.account_ps), _ms(other.account_ps), alike),
            _table("time by kind, ms", _ms(one.kind_ps), _ms(other.kind_ps), alike),
            _table("hidden communication, ms", hidden[0], hidden[1], alike),
            _table("exposed communication, ms", exposed[0], exposed[1], alike)]


def _ms(times_ps: Mapping[str, float]) -> dict[str, float]:
    return {name: value / 1e9 for name, value in times_ps.items()}


def _table(title: str, a: Mapping[str, float], b: Mapping[str, float],
           texts_of: Callable[[Sequence[float]], list[str]]) -> Titled:
    """Every name in A or B that is not zero in both, with the difference and the ratio; "-" where there is none."""
    names = [name for name in dict.fromkeys((*a, *b)) if a.get(name) or b.get(name)]
    gained = {name: b[name] - a[name] for name in names if name in a and name in b}
    texts = iter(texts_of([side[name] for side in (a, b, gained) for name in names if name in side]))
    said = [{key: next(texts) for key in names if key in side} for side in (a, b, gained)]
    rows = [(name, said[0].get(name, "-"), said[1].get(name, "-"),
             f"{'+' if gained.get(name, 0) > 0 else ''}{said[2].get(name, '-')}",
             f"{b[name] / a[name]:.3f}" if name in gained and a[name] else "-") for name in names]
    return Titled("", (f"<{title:<36}", *(f">{head:>9}" for head in ("A", "B", "B - A", "B / A"))), rows)
