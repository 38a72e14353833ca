"""Runs of library scenarios, each simulated once per test session; every timeline is held to the laws."""

from __future__ import annotations

from functools import cache

from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate
from tests.law.timeline_laws import check_timeline


def run(name: str, **changes: str) -> Result:
    """A scenario by roles, with settings changed (dots written as double underscores)."""
    return _run(name, tuple((key.replace("__", "."), text) for key, text in changes.items()))


@cache
def _run(name: str, changes: tuple[tuple[str, str], ...]) -> Result:
    result = simulate(load_scenario(name).replace(dict(changes)))
    check_timeline(result.columns)
    return result


def latency_ms(name: str, **changes: str) -> float:
    """Latency of a scenario."""
    return run(name, **changes).metrics["latency_ms"]
