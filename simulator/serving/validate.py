"""Expected values of services against what is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from simulator.errors import BraidError
from simulator.observe.report import ExpectedRow
from simulator.paths import matches
from simulator.serving.kept import cache_folder
from simulator.serving.library import load_service, service_names
from simulator.serving.loop import Loop
from simulator.serving.offered import drawn
from simulator.serving.outcome import outcome
from simulator.study.expected import band_text, beside


def service_rows(pattern: str | None = None) -> list[ExpectedRow]:
    """Rows of every service that has a chosen expected value, under its own load, seed 0; pattern: as of
    `study.validate`. Metrics are means of the steady state, where there is one."""
    return [row for name, _ in service_names() for row in _rows_of(name, pattern)]


def _rows_of(name: str, pattern: str | None) -> list[ExpectedRow]:
    expected = [one for one in load_service(name).expected if matches(pattern, name) or matches(pattern, one.id)]
    try:
        metrics = metrics_of(name) if expected else {}
    except BraidError as error:
        return [ExpectedRow(one.id, one.metric, one.value, None, None, one.role, band_text(one.band), name, one.note,
                            str(error)) for one in expected]  # fmt: skip
    return [beside(one, name, metrics, metrics_of) for one in expected]


@cache
def metrics_of(name: str) -> Mapping[str, float]:
    """Means of a service's metrics, by AIPerf's names."""
    service = load_service(name)
    offered = drawn(service.load, 0, service.engines.cache.block_size)
    served = Loop(service, offered.requests, concurrency=offered.concurrency, folder=cache_folder()).run()
    found = outcome(served, None, offered.concurrency or None)
    return {key: float(block["avg"]) for key, block in (found.steady or found.whole).metrics.items()}
