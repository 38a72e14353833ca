"""How results depend on settings: one with several values, side by side, or a ladder.

A ladder is published optimisations one after the other, each on top of those before, and what each of them buys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from simulator.errors import InputError, RunError
from simulator.study.library import load_scenario
from simulator.study.processes import in_processes
from simulator.study.scenario import Scenario, Study
from simulator.study.simulate import Result, simulate


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


@dataclass(frozen=True)
class How:
    """How the runs of a study are done: their seed, "roles" or "all" ranks, how many at a time, each in a process of
    its own; keep: called there with every value and its result; known: before, with a value and what would be run, for
    what was kept of it: metrics, and settings that were not read."""

    seed: int = 0
    ranks: str = "roles"
    jobs: int = 1
    keep: Callable[[str, Result], None] | None = None
    known: Callable[[str, Scenario], tuple[dict[str, float], list[str]] | None] | None = None


ONCE = How()


class _Runs(NamedTuple):
    """The runs of one value: metrics and what was not read of every scenario, or why one of them could not run."""

    metrics: list[dict[str, float]]
    unread: list[list[str]]
    reason: str = ""


def run_study(scenario: Scenario, study: Study, tell: Callable[[float], None] | None = None,
              how: How = ONCE) -> StudyTable:
    """Simulate the scenario, and those that the study names beside it, with every value of the study's key.

    A value that is no setting's, or a key that is none, is refused before anything runs.
    """
    scenarios = [load_scenario(name) for name in study.beside] + [scenario]
    for one in scenarios:
        for value in study.values:
            one.replace({study.key: value})
    makers = [maker(one, how.jobs) for one in scenarios]
    done = in_processes(partial(_runs, makers, study.key, how), study.values, how.jobs, tell)
    rows = [(value, tuple([one.get(metric) for one in its.metrics for metric in study.metrics]))
            for value, its in zip(study.values, done, strict=True)]
    reasons = [(value, its.reason) for value, its in zip(study.values, done, strict=True) if its.reason]
    columns = tuple((one.name, metric) for one in scenarios for metric in study.metrics)
    unread = in_all([keys for its in done for keys in its.unread])
    return StudyTable(study.title, study.key, columns, tuple(rows), tuple(unread), tuple(reasons))


def maker(scenario: Scenario, jobs: int) -> Callable[[], Scenario]:
    """What gives it: as it is, or where processes of their own run it (`jobs` above 1), from its file."""
    return partial(Scenario.variant, scenario) if jobs == 1 else partial(_loaded, scenario.name, scenario.given)


def _loaded(name: str, given: dict[str, str]) -> Scenario:
    return load_scenario(name).replace(given)


def _runs(scenarios: Sequence[Callable[[], Scenario]], key: str, how: How, value: str) -> _Runs:
    """Of one value, in whatever process; what programs print goes to stderr."""
    try:
        with redirect_stdout(sys.stderr):
            done = [_one(one().replace({key: value}), how, value) for one in scenarios]
    except (InputError, RunError) as error:
        return _Runs([{}] * len(scenarios), [], str(error))
    return _Runs([metrics for metrics, _ in done], [unread for _, unread in done])


def _one(scenario: Scenario, how: How, value: str) -> tuple[dict[str, float], list[str]]:
    """Metrics, and settings that were not read, of one run, or of one that was kept."""
    if how.known is not None and (known := how.known(value, scenario)) is not None:
        return known
    result = simulate(scenario, ranks=how.ranks, seed=how.seed)
    if how.keep is not None:
        how.keep(value, result)
    return result.metrics, result.header["unread"]


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
