"""How results depend on settings: one with several values, side by side, or a ladder.

A ladder is published optimisations one after the other, each on top of those before, and what each of them buys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.errors import InputError, RunError
from simulator.study.library import load_scenario
from simulator.study.scenario import Scenario, Study
from simulator.study.simulate import simulate


@dataclass(frozen=True)
class StudyTable:
    """A study's result: a column per scenario and metric; None where a scenario has no such metric.

    unread: settings from outside that no run has read. reasons: (value, why it could not run).
    """

    title: str
    key: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]
    unread: tuple[str, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()


def run_study(scenario: Scenario, study: Study, tell: Callable[[float], None] | None = None) -> StudyTable:
    """Simulate the scenario, and those that the study names beside it, with every value of the study's key.

    A value that is no setting's, or a key that is none, is refused before anything runs.
    """
    scenarios = [load_scenario(name) for name in study.beside] + [scenario]
    columns = tuple((one.name, metric) for one in scenarios for metric in study.metrics)
    changed = [(value, [one.replace({study.key: value}) for one in scenarios]) for value in study.values]
    rows, unread, reasons = [], [], []
    for number, (value, its) in enumerate(changed):
        metrics: list[dict[str, float]] = [{}] * len(its)
        try:
            results = [simulate(one) for one in its]
            metrics = [one.metrics for one in results]
            unread += [one.header["unread"] for one in results]
        except (InputError, RunError) as error:
            reasons.append((value, str(error)))
        rows.append((value, tuple([one.get(metric) for one in metrics for metric in study.metrics])))
        if tell is not None:
            tell((number + 1) / len(study.values))
    return StudyTable(study.title, study.key, columns, tuple(rows), tuple(in_all(unread)), tuple(reasons))


def in_all(unread: Sequence[Sequence[str]]) -> list[str]:
    """The settings that no run has read, from those that each has not."""
    return [key for key in (unread[0] if unread else ()) if all(key in keys for keys in unread)]


class LadderRow(NamedTuple):
    """One step of a ladder with its metrics, and the settings that it did not read; the first one is the scenario."""

    title: str
    metrics: dict[str, float]
    unread: list[str]


def scenarios_of(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """The scenario, then with every step of its ladder on top of those before; InputError if it has none."""
    if not scenario.ladder:
        raise InputError(f"{scenario.name} has no ladder: its scenario function sets none (trt_min_latency:base does)")
    yield scenario.name, scenario
    for step in scenario.ladder:
        scenario = scenario.replace(step.changes)
        yield step.title, scenario


def run_ladder(scenario: Scenario, seed: int = 0, tell: Callable[[float], None] | None = None) -> list[LadderRow]:
    """Simulate every step."""
    steps, rows = list(scenarios_of(scenario)), []
    for title, one in steps:
        result = simulate(one, seed=seed)
        rows.append(LadderRow(title, result.metrics, result.header["unread"]))
        if tell is not None:
            tell(len(rows) / len(steps))
    return rows
