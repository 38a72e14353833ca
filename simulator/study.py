"""How results depend on one setting: the same scenarios with several values of it, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.scenario import Scenario, Study


@dataclass(frozen=True)
class Table:
    """A study's result: a column per scenario and metric; None where a scenario has no such metric.

    unread: settings from outside that no run has read.
    """

    title: str
    key: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]
    unread: tuple[str, ...] = ()


def run_study(scenario: Scenario, study: Study, tell: Callable[[float], None] | None = None) -> Table:
    """Simulate the scenario, and those that the study names beside it, with every value of the study's key."""
    from simulator.library import load_scenario
    from simulator.simulation import simulate

    scenarios = [load_scenario(name) for name in study.beside] + [scenario]
    columns = tuple((one.name, metric) for one in scenarios for metric in study.metrics)
    rows, unread = [], []
    for number, value in enumerate(study.values):
        results = [simulate(one.replace({study.key: value})) for one in scenarios]
        rows.append((value, tuple([one.metrics.get(metric) for one in results for metric in study.metrics])))
        unread += [one.header["unread"] for one in results]
        if tell is not None:
            tell((number + 1) / len(study.values))
    return Table(study.title, study.key, columns, tuple(rows), tuple(in_all(unread)))


def in_all(unread: Sequence[Sequence[str]]) -> list[str]:
    """The settings that no run has read, from those that each has not."""
    return [key for key in (unread[0] if unread else ()) if all(key in keys for keys in unread)]
