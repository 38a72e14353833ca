"""Every expected value of the library against what is simulated: rows, a table for the terminal, a report to keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simulator.commands.markdown import number, table
from simulator.commands.output import expected_row
from simulator.commands.terminal import console
from simulator.errors import BraidError, InputError
from simulator.patterns import matches

if TYPE_CHECKING:
    from simulator.scenario import Scenario


@dataclass(frozen=True)
class Row:
    """One expected value of one scenario; `reason` says why a scenario could not run."""

    scenario: str
    id: str
    metric: str
    value: Any
    role: str
    note: str = ""
    simulated: Any = None
    error: float | None = None
    reason: str | None = None

    @property
    def failed(self) -> bool:
        """The scenario could not run."""
        return self.reason is not None

    def as_object(self) -> dict[str, Any]:
        """id, metric, value, simulated, error, role, scenario, and `reason` if it failed."""
        row = expected_row(vars(self), "scenario")
        return row if self.reason is None else row | {"reason": self.reason}


def validate(pattern: str | None = None, jobs: int = 1) -> list[Row]:
    """Simulates every scenario that has a chosen expected value, by roles, seed 0; rows in the library's order.

    pattern: chooses scenarios by name or expected values by id (see patterns.matches); InputError if it chooses none.
    jobs: processes. A scenario that fails gives rows with a reason; the others still run.
    """
    from simulator import library

    names = [name for name, _ in library.scenario_names()]
    rows = _in_processes(names, pattern, jobs) if jobs > 1 else [_rows_of(name, pattern) for name in names]
    chosen = [row for of_scenario in rows for row in of_scenario]
    if not chosen and pattern is not None:
        raise InputError(f"no scenario and no expected value matches '{pattern}'; scenarios are: {', '.join(names)}")
    return chosen


def _in_processes(names: list[str], pattern: str | None, jobs: int) -> list[list[Row]]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            return list(pool.map(_rows_of, names, [pattern] * len(names)))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _rows_of(name: str, pattern: str | None) -> list[Row]:
    """The rows of one scenario that the pattern chooses; simulates it only if there are any."""
    from simulator import library

    try:
        scenario = library.load_scenario(name)
    except Exception as error:
        rows = [Row(name, "-", "-", None, "-", reason=_reason(error))]
        return rows if matches(pattern, name) else []
    rows = [Row(name, one.id, one.metric, one.value, one.role, one.note or "") for one in scenario.expected
            if matches(pattern, name) or matches(pattern, one.id)]
    if not rows:
        return []
    try:
        return _simulated(scenario, rows)
    except Exception as error:
        return [replace(row, reason=_reason(error)) for row in rows]


def _simulated(scenario: Scenario, rows: list[Row]) -> list[Row]:
    from simulator.simulation import simulate

    found = {(row["id"], row["metric"]): row for row in simulate(scenario).expected}
    done = [found[row.id, row.metric] for row in rows]
    return [replace(row, simulated=one["simulated"], error=one["error"]) for row, one in zip(rows, done, strict=True)]


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, BraidError) else f"{type(error).__name__}: {text}"


_HEAD = ("id", "scenario", "metric", "expected", "role", "simulated", "error")


def _cells(row: Row) -> list[str]:
    simulated = "did not run" if row.failed else number(row.simulated)
    error = "-" if row.error is None else f"{row.error:+.1%}"
    return [row.id, row.scenario, row.metric, number(row.value), row.role, simulated, error]


def summary(rows: Sequence[Row]) -> str:
    """One line: how many values, how far off by role, what did not run."""
    parts = [f"{len(rows)} expected values of {len({row.scenario for row in rows})} scenarios"]
    for role in ("fit", "predict"):
        errors = [abs(row.error) for row in rows if row.role == role and row.error is not None]
        if errors:
            mean = sum(errors) / len(errors)
            parts.append(f"{role}: {len(errors)}, mean error {mean:.1%}, largest {max(errors):.1%}")
    broken = len({row.scenario for row in rows if row.failed})
    return "; ".join(parts + ([f"{broken} scenarios did not run"] if broken else []))


def print_rows(rows: Sequence[Row]) -> None:
    """The rows as a table in the terminal, then what did not run, then the summary."""
    from rich.table import Table

    terminal = console()
    shown = Table(box=None, pad_edge=False)
    for head in _HEAD:
        shown.add_column(head, justify="right" if head in ("expected", "simulated", "error") else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*_cells(row))
    terminal.print(shown)
    for name, reason in dict.fromkeys((row.scenario, row.reason) for row in rows if row.failed):
        terminal.print(f"{name} did not run: {reason}")
    terminal.print(summary(rows))


def markdown(rows: Sequence[Row]) -> str:
    """results/validation.md; the same rows give the same bytes."""
    lines = [
        "# Validation", "",
        "Written by `braid validate`. **fit**: a parameter was fitted on this value, so it proves nothing."
        " **predict**: no parameter was fitted on it.",
        "", f"{summary(rows)}.", "",
        table((*_HEAD, "note"), [[*_cells(row), row.reason or row.note or ""] for row in rows]),
    ]
    return "\n".join(lines)
