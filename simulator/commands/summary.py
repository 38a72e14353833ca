"""What a person reads of a result: its header, and the report's input made from it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from simulator.observe.lateness import Felt
from simulator.observe.metrics import Metrics
from simulator.observe.report import Footnote, ReportInput
from simulator.observe.tables import Titled, console, number, percent, show
from simulator.study.expected import compared
from simulator.study.glossary import meaning
from simulator.study.simulate import Result
from simulator.study.struck import Struck
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
    lines = identity(header, ledger.used_bytes, ledger.usable_bytes)
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


def identity(about: Mapping[str, Any], used_bytes: float, usable_bytes: float) -> list[str]:
    """On what a run was simulated and how; about: its header, or what its folder says of it."""
    ranks, classes = about["ranks"], about["classes"]
    how = "every rank by itself"
    if about["mode"] == "roles":
        how = f"by roles, {classes} of {ranks} ranks stand for all" if classes < ranks else f"{how}, no two do the same"
    return [f"{about['machine']}, {count(about['cards'], 'card')} = {count(ranks, 'rank')}; {about['model']}",
            f"simulated {how}; seed {about['seed']}",
            f"memory: {format_si(used_bytes, 'B')} of {format_si(usable_bytes, 'B')} on the fullest rank"]


def count(number: int, what: str) -> str:
    """"1 card", "8 cards"."""
    return f"{number} {what}{'s' * (number != 1)}"


def missing(result: Result) -> list[str]:
    """Why an expected value has no simulated one beside it."""
    return [f"expected {one.id}: {one.missing}" for one in compared(result) if one.missing]


def headline(metrics: Mapping[str, float], times: Metrics | None) -> dict[str, float]:
    """The metrics without the time of each kind, which has a table of its own where there are such times."""
    kinds = {f"{kind}_ms" for kind in times.kind_ps} if times is not None else set()
    return {name: value for name, value in metrics.items() if name not in kinds}


def print_faults(struck: Struck) -> None:
    """What each fault did, and all together; then the metrics of the workload with and without."""
    rows = [(one.text, f"{one.cost_ps / 1e9:+.3f}", _at(one.late.felt), _at(one.late.noticed),
             f"{one.late.as_before_ps / 1e9:.4g}" if one.late.moved else "-",
             f"{one.late.moved / max(one.late.tasks, 1):.0%}") for one in struck.aftermaths]
    heads = ("~fault", ">cost, ms", "~felt, ms", "~noticed by others, ms", ">as before, ms", ">tasks moved")
    own = [(name, number(value), number(struck.after.own[name]), percent(struck.after.own[name] / value - 1.0))
           for name, value in struck.before.own.items() if value and name in struck.after.own]
    show(console(), Titled("Faults", heads, rows), Titled("", ("<metric", ">without", ">with", ">change"), own))


def _at(felt: Felt | None) -> str:
    return "-" if felt is None else f"{felt.at_ps / 1e9:.4g}, rank {felt.rank}: {felt.task}"


def report_of(result: Result) -> ReportInput:
    """The report of one run."""
    shares = headline(result.metrics, result.measured if result.recorded else None)
    numbers = [(name, number(value)) for name, value in shares.items() if not _in_tables(name)]
    title = f"{result.scenario.name}: {result.scenario.full_title}"
    meanings = {name: meaning(name) for name, _ in numbers}
    shown = ReportInput(title, facts(result), numbers, compared(result), meanings=meanings)
    if not result.recorded:
        return shown
    notes = [Footnote(one["name"], f"{one['saves']:.1%}", f"{one['value']:g} {one['unit']}".removesuffix(" 1"),
                      one["kind"], one["source"]) for one in result.parameters]  # fmt: skip
    return replace(shown, metrics=result.measured, path=result.critical, columns=result.columns, footnotes=notes)
