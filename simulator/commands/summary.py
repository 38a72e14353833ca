"""What a person reads of a result: its header, and the report's input made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.units import format_si

if TYPE_CHECKING:
    from simulator.observe.report import ReportInput
    from simulator.simulation import Result

# what the report's tables show in full, so that the headline need not
_IN_TABLES = {
    "communication_ms", "hidden_comm_ms", "exposed_comm_ms", "waiting_comm_ms", "communication_share", "compute_ms",
    "compute_stretch", "compute_stretch_beside_communication", "host_bound_ms",
}


def facts(result: Result) -> list[str]:
    """The header's lines: what was run, how, and what the command line changed."""
    header, ledger = result.header, result.ledger
    ranks, classes = header["ranks"], header["classes"]
    how = f"by roles, {classes} of {ranks} ranks stand for all" if header["mode"] == "roles" else "every rank by itself"
    lines = [
        f"{header['machine']}, {header['cards']} cards = {ranks} ranks; {header['model']}",
        f"simulated {how}; seed {header['seed']}",
        f"memory: {format_si(ledger.used_bytes, 'B')} of {format_si(ledger.usable_bytes, 'B')} on the fullest rank",
    ]
    for key, text in header["changed"].items():
        assumed = " (assumed)" if key.startswith(("machine.", "model.")) else ""
        lines.append(f"changed on the command line: {key} = {text}{assumed}")
    if header["changed"] and result.scenario.expected:
        lines.append("expected values are those of the scenario without these changes")
    return lines


def report_of(result: Result) -> ReportInput:
    """The report of one run."""
    from simulator.observe.report import ExpectedRow, Footnote, ReportInput, number

    expected = [ExpectedRow(row["id"], row["metric"], row["value"], row["simulated"], row["role"])
                for row in result.expected]
    notes = [Footnote(one["name"], f"{one['value']:g} {one['unit']}".removesuffix(" 1"), one["kind"], one["source"])
             for one in result.parameters]
    return ReportInput(
        title=f"{result.scenario.name}: {result.scenario.title}",
        facts=facts(result),
        numbers=[(name, number(value)) for name, value in result.metrics.items() if name not in _IN_TABLES],
        expected=expected,
        metrics=result.measured,
        path=result.critical,
        columns=result.columns,
        footnotes=notes,
    )
