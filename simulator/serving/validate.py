"""Services with expected values, as `braid validate` compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.serving.library import load_service, service_names
from simulator.serving.loop import Loop
from simulator.serving.offered import drawn
from simulator.serving.outcome import outcome
from simulator.study.kept import cache_folder
from simulator.study.scenario import Expected
from simulator.study.validate import Kind


def _names() -> list[str]:
    return [name for name, _ in service_names()]


def _expected(name: str) -> Sequence[Expected]:
    return load_service(name).expected


def metrics_of(name: str) -> Mapping[str, float]:
    """Means of a service's metrics under its own load, seed 0, by AIPerf's names; of the steady state, where there is
    one."""
    service = load_service(name)
    offered = drawn(service.load, 0, service.engines.cache.block_size)
    served = Loop(service, offered.requests, concurrency=offered.concurrency, folder=cache_folder()).run()
    found = outcome(served, None, offered.concurrency or None)
    return {key: float(block["avg"]) for key, block in (found.steady or found.whole).metrics.items()}


SERVICES = Kind(_names, _expected, metrics_of, by_file=True)
