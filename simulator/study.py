"""How results depend on one setting: the same scenarios with several values of it, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.scenario import Scenario, Study


@dataclass(frozen=True)
class Table:
    """A study's result: a column per scenario and metric; None where a scenario has no such metric."""

    title: str
    key: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]


def run_study(scenario: Scenario, study: Study, tell: Callable[[float], None] | None = None) -> Table:
    """Simulate the scenario, and those that the study names beside it, with every value of the study's key."""
    from simulator.library import load_scenario

    scenarios = [load_scenario(name) for name in study.beside] + [scenario]
    columns = tuple((one.name, metric) for one in scenarios for metric in study.metrics)
    rows = []
    for number, value in enumerate(study.values):
        rows.append((value, _row(scenarios, study, value)))
        if tell is not None:
            tell((number + 1) / len(study.values))
    return Table(study.title, study.key, columns, tuple(rows))


def _row(scenarios: Sequence[Scenario], study: Study, value: str) -> tuple[float | None, ...]:
    from simulator.simulation import simulate

    found: list[float | None] = []
    for scenario in scenarios:
        metrics = simulate(scenario.replace({study.key: value})).metrics
        found += [metrics.get(metric) for metric in study.metrics]
    return tuple(found)
