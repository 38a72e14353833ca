"""The studies that scenarios name, of the whole library: how results depend on what is uncertain."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import InputError, reason_of
from simulator.observe.tables import markdown_table, plain_number
from simulator.study import library
from simulator.study.processes import Tell, in_processes
from simulator.study.sweep import StudyTable, run_study


def studies(jobs: int = 1, tell: Tell | None = None) -> list[StudyTable]:
    """In the order of the library; one that cannot run has no columns and its reason as a row. jobs: processes."""
    names = [name for name, _ in library.scenario_names()]
    return [study for found in in_processes(studies_of, names, jobs, tell) for study in found]


def studies_of(name: str) -> list[StudyTable]:
    """Those of one scenario; none of a scenario that cannot be loaded: `braid validate` says so."""
    try:
        scenario = library.load_scenario(name)
    except InputError:
        return []
    tables = []
    for study in scenario.studies:
        try:
            tables.append(run_study(scenario, study))
        except Exception as error:
            tables.append(StudyTable(study.title, study.key, (), ((f"did not run: {reason_of(error)}", ()),)))
    return tables


def markdown(tables: Sequence[StudyTable]) -> list[str]:
    """Lines: a heading and a table each; what did not run has its reason below."""
    return [line for study in tables for line in _lines(study)]


def _lines(study: StudyTable) -> list[str]:
    head = (study.key, *(f"{scenario}: {metric}" for scenario, metric in study.columns))
    shown = markdown_table(head, [[value, *map(plain_number, row)] for value, row in study.rows])
    reasons = [f"{value} did not run: {reason.splitlines()[0]}" for value, reason in study.reasons]
    return [f"### {study.title}", "", shown, *reasons, ""]
