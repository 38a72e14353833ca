"""Every expected value of the library against what is simulated: rows, a table for the terminal, a report to keep."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

from simulator.errors import InputError, reason_of
from simulator.observe.report import ExpectedRow
from simulator.observe.tables import Titled, console, markdown_table, plain_number, show
from simulator.paths import matches
from simulator.study import library
from simulator.study.expected import band_text, compared
from simulator.study.processes import Tell, in_processes
from simulator.study.simulate import simulate


def validate(pattern: str | None = None, jobs: int = 1, tell: Tell | None = None,
             more: Sequence[ExpectedRow] = ()) -> list[ExpectedRow]:
    """Simulates every scenario that has a chosen expected value, by roles, seed 0; rows in the library's order.

    pattern: chooses scenarios by name or expected values by id (see paths.matches); InputError if it chooses none.
    jobs: processes. more: rows of what is no scenario, which come last. A scenario that fails gives rows that say why;
    the others still run.
    """
    names = [name for name, _ in library.scenario_names()]
    rows = in_processes(partial(_rows_of, pattern=pattern), names, jobs, tell)
    chosen = [*(row for of_scenario in rows for row in of_scenario), *more]
    if not chosen and pattern is not None:
        raise InputError(f"no scenario and no expected value matches '{pattern}'; scenarios are: {', '.join(names)}")
    return chosen


def _rows_of(name: str, pattern: str | None) -> list[ExpectedRow]:
    """The rows of one scenario that the pattern chooses; simulates it only if there are any."""
    try:
        scenario = library.load_scenario(name)
    except Exception as error:
        rows = [ExpectedRow("-", "-", None, None, None, "-", scenario=name, missing=reason_of(error))]
        return rows if matches(pattern, name) else []
    chosen = tuple(one for one in scenario.expected if matches(pattern, name) or matches(pattern, one.id))
    if not chosen:
        return []
    try:
        return compared(simulate(scenario.variant(expected=chosen)))
    except Exception as error:
        return [ExpectedRow(one.id, one.metric, one.value, None, None, one.role, band_text(one.band), name, one.note,
                            reason_of(error)) for one in chosen]


_HEAD = ("<id", "<scenario", "<metric", ">expected", "<role", ">simulated", ">error")


def _cells(row: ExpectedRow) -> list[str]:
    expected, simulated, error = row.cells(plain_number, "not simulated" if row.missing else "-")
    return [row.id, row.scenario, row.metric, expected, row.role, simulated, error]


def summary(rows: Sequence[ExpectedRow]) -> str:
    """One line: how many values, how far off by role, what is not simulated."""
    parts = [f"{len(rows)} expected values of {len({row.scenario for row in rows})} scenarios"]
    for role in ("fit", "predict"):
        errors, met = _errors(rows, role)
        if errors:
            mean = sum(errors) / len(errors)
            parts.append(f"{role}: {len(errors)} values, mean error {mean:.1%}, largest {max(errors):.1%}")
        if met:
            parts.append(f"{role}: {sum(met)} of {len(met)} bands and signs met")
    broken = len({row.scenario for row in rows if row.missing})
    return "; ".join(parts + ([f"not simulated: values of {broken} scenarios"] if broken else []))


def _errors(rows: Sequence[ExpectedRow], *roles: str) -> tuple[list[float], list[bool]]:
    """Errors of the values of these roles, without their signs, and which of their bands are met."""
    there = [row for row in rows if row.role in roles and row.error is not None]
    return [abs(row.error or 0.0) for row in there if not row.band], [row.error == 0 for row in there if row.band]


SYSTEMS = {
    "a3": "Atlas A3 prefill", "a2": "Atlas 800I A2", "cm384": "CloudMatrix384", "pplx": "TransferEngine on EFA, CX-7",
    "efa": "EFA against CX-7", "uccl": "UCCL-EP on EFA", "deepep": "DeepEP on H800, H100",
    "trt": "TensorRT-LLM on B200", "flow": "FlowMLA on H20, H800", "h20": "SGLang on H20",
    "vllm": "API servers of vLLM",
}  # fmt: skip


def by_system(rows: Sequence[ExpectedRow]) -> str:
    """A line per system (what an id begins with): how many values, how far off the predicted ones are."""
    systems: dict[str, list[ExpectedRow]] = {}
    for row in rows:
        prefix = row.id.partition(".")[0]
        systems.setdefault(SYSTEMS.get(prefix, prefix), []).append(row)
    head = ("system", "fitted", "predicted", "median error", "largest error", "within 5%", "ranges and signs met")
    return markdown_table(head, [[name, *_accuracy(its)] for name, its in systems.items()])


def _accuracy(rows: Sequence[ExpectedRow]) -> list[str]:
    (errors, _), (_, met) = _errors(rows, "predict"), _errors(rows, "fit", "predict")
    fitted = sum(row.role == "fit" for row in rows)
    if not errors:
        return [str(fitted), "0", "-", "-", "-", f"{sum(met)} of {len(met)}"]
    near = sum(error <= 0.05 for error in errors)
    return [str(fitted), str(len(errors)), f"{median(errors):.1%}", f"{max(errors):.1%}",
            f"{near} of {len(errors)}", f"{sum(met)} of {len(met)}"]


def print_rows(rows: Sequence[ExpectedRow]) -> None:
    """The rows as a table in the terminal, then what is not simulated and why, then the summary."""
    terminal = console()
    show(terminal, Titled("", _HEAD, [_cells(row) for row in rows]))
    for name, reason in dict.fromkeys((row.scenario, row.missing) for row in rows if row.missing):
        show(terminal, f"{name}: not simulated: {reason}")
    show(terminal, summary(rows))


def markdown(rows: Sequence[ExpectedRow]) -> str:
    """results/validation.md; the same rows give the same bytes."""
    lines = [
        "# Validation", "",
        "Written by `braid validate`. **fit**: a parameter was fitted on this value, or could have been, so it proves"
        " nothing. **predict**: no parameter was fitted on it. That is weaker than it sounds: several assumed numbers"
        " and mechanisms were chosen with these values in view; calibration.md lists them.",
        "", f"{summary(rows)}.", "", by_system(rows), "", "## Every value", "",
        markdown_table((*(head[1:] for head in _HEAD), "note"),
                       [[*_cells(row), row.missing or row.note] for row in rows]),
        "",
    ]
    return "\n".join(lines).rstrip("\n") + "\n"
