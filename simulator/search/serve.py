"""The best deployments served: requests one by one through all engines, for the percentiles that steps do not have.

A closed loop keeps as many requests in flight as were found; the first ones are sent over the time that one takes, so
that it begins as it goes on, and the steady state counts. Or requests come as a trace has them. Where the means of TTFT
or TPOT are above the limits, fewer are in flight, and it is served again: `TRIES` times at most, between those that
were within the limits and those that were not.
"""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from simulator.model.library import load_transformer
from simulator.search.deployment import Ask, Found
from simulator.search.engine import deployed, of_some_layers, requests_of
from simulator.serving.loop import Loop
from simulator.serving.offered import Offered, drawn, recorded
from simulator.serving.outcome import outcome
from simulator.serving.record import Served
from simulator.serving.settings import Service, changed
from simulator.spec.load import load_machine
from simulator.study.kept import source

TRIES = 4
MARGIN = 0.98  # of what a limit asks for, where it was missed
CLOSE = 0.05  # of the requests in flight: no closer is looked


class Requests(NamedTuple):
    """Those that come: of a trace (None: alike ones, drawn), its first `limit` (None: all); seed: of all draws."""

    trace: Path | None = None
    limit: int | None = None
    seed: int = 0


class Times(NamedTuple):
    """Of the steady state: means and 99th percentiles in ms, output tokens a second of a GPU, requests in flight."""

    ttft_ms: float
    tpot_ms: float
    ttft_p99_ms: float
    tpot_p99_ms: float
    tok_s_per_gpu: float
    in_flight: float


def served(ask: Ask, requests: Requests, folder: Path | None, found: Found) -> Found:
    """A deployment as its users see it, with the most requests in flight of those tried that are within the limits, or
    as many as were found if none is. folder: where steps are kept."""
    in_flight, within, above, stopped = found.concurrency, 0, 0, found.stopped_by
    service, times, share = _of_some_layers(deployed(ask, found)), None, 1.0
    for _ in range(TRIES if requests.trace is None else 1):
        tried = _times(service, requests, in_flight, folder)
        over = max(tried.ttft_ms / ask.ttft_ms, tried.tpot_ms / ask.tpot_ms)
        if times is None or over <= 1.0:
            times, share = tried, in_flight / found.concurrency
        if over > 1.0:
            stopped = "TTFT" if tried.ttft_ms / ask.ttft_ms == over else "TPOT"
        within, above = (in_flight, above) if over <= 1.0 else (within, in_flight)
        if not above or above - within <= max(CLOSE * above, 1):
            break
        in_flight = (within + above) // 2 if within else max(int(in_flight * max(MARGIN / over, 0.5)), 1)
    assert times is not None
    return replace(found, ttft_ms=times.ttft_ms, tpot_ms=times.tpot_ms, tok_s_per_gpu=times.tok_s_per_gpu,
                   tok_s_per_user=1e3 / times.tpot_ms if times.tpot_ms else 0.0,
                   concurrency=max(round(times.in_flight), 1), served=True, stopped_by=stopped,
                   requests=max(round(found.requests * share), 1) if requests.trace is None else found.requests,
                   ttft_p99_ms=times.ttft_p99_ms, tpot_p99_ms=times.tpot_p99_ms)  # fmt: skip


def _of_some_layers(service: Service) -> Service:
    """With engines whose steps are simulated with some layers for all, where they can be."""
    there = {role: one.step for role in ("engines", "prefill") if (one := getattr(service, role)) is not None}
    some = {f"{role}.step.{key}": text for role, step in there.items() for key, text in of_some_layers(step).items()}
    return changed(service, some) if some else service


def name_of(ask: Ask, requests: Requests, found: Found) -> str:
    """Of what is kept of a deployment that was served: what was asked of it, and the version of Braid."""
    trace = requests.trace and sha256(requests.trace.read_bytes()).hexdigest()
    text = json.dumps([ask, found.words, found.concurrency, trace, requests.limit, requests.seed, source(),
                       repr(load_transformer(ask.model)), load_machine(ask.machine).model_dump_json()])  # fmt: skip
    return sha256(text.encode()).hexdigest()[:24]


def is_within(ask: Ask, found: Found) -> bool:
    """Whether its means are within the limits."""
    return found.ttft_ms <= ask.ttft_ms and found.tpot_ms <= ask.tpot_ms


def _times(service: Service, requests: Requests, in_flight: int, folder: Path | None) -> Times:
    offered = _offered(service, requests, in_flight)
    run = Loop(service, offered.requests, concurrency=offered.concurrency, steps="lattice", seed=requests.seed,
               folder=folder).run()  # fmt: skip
    if run.interrupted:
        raise KeyboardInterrupt
    return _times_of(run, offered.concurrency or None)


def _offered(service: Service, requests: Requests, in_flight: int) -> Offered:
    load = service.load.model_copy(update={"concurrency": in_flight, "requests": requests_of(in_flight)})
    if requests.trace is None:
        return drawn(load, requests.seed, service.engines.cache.block_size)
    return recorded(requests.trace, load, requests.seed, limit=requests.limit)


def _times_of(run: Served, concurrency: int | None) -> Times:
    """Of the steady state, or of all where there is none, as `braid serve` has them. concurrency: of a closed loop,
    None where requests came in time."""
    found = outcome(run, concurrency=concurrency)
    metrics = (found.steady or found.whole).metrics

    def value(metric: str, name: str = "avg") -> float:
        return float(metrics.get(metric, {}).get(name, 0.0))

    first, each = "time_to_first_token", "inter_token_latency"
    return Times(value(first), value(each), value(first, "p99"), value(each, "p99"),
                 value("output_token_throughput_per_gpu"),
                 value("request_throughput") * value("request_latency") / 1e3)  # fmt: skip
