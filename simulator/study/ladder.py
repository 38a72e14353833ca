"""A ladder: published optimisations one after the other, each on top of those before, and what each of them buys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from simulator.errors import InputError
from simulator.study.scenario import Scenario


class LadderRow(NamedTuple):
    """One step of a ladder with its metrics, and the settings that it did not read; the first one is the scenario."""

    title: str
    metrics: dict[str, float]
    unread: list[str]


def scenarios_of(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """The scenario, then with every step of its ladder on top of those before.

    Raises:
        InputError: it has no ladder, or a step changes what cannot be changed.
    """
    if not scenario.ladder:
        raise InputError(f"{scenario.name} has no ladder: its scenario function sets none (trt_min_latency:base does)")
    yield scenario.name, scenario
    for step in scenario.ladder:
        scenario = scenario.replace(step.changes)
        yield step.title, scenario


def run_ladder(scenario: Scenario, seed: int = 0, tell: Callable[[float], None] | None = None) -> list[LadderRow]:
    """Simulate every step."""
    from simulator.study.simulate import simulate

    steps, rows = list(scenarios_of(scenario)), []
    for title, one in steps:
        result = simulate(one, seed=seed)
        rows.append(LadderRow(title, result.metrics, result.header["unread"]))
        if tell is not None:
            tell(len(rows) / len(steps))
    return rows
