"""What is asked of a service: a recorded trace, or requests that are drawn; at their times, or in a closed loop."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from simulator import np
from simulator.errors import InputError
from simulator.serving.arrivals import arrivals
from simulator.serving.draws import stream_of
from simulator.serving.lengths import uniform
from simulator.serving.requests import Requests, independent
from simulator.serving.settings import Load
from simulator.serving.traces import read_trace


class Offered(NamedTuple):
    """requests: all that will come; concurrency: so many at a time in a closed loop, 0: at their times."""

    requests: Requests
    concurrency: int


def drawn(load: Load, seed: int) -> Offered:
    """Requests with the lengths and times of a load."""
    lengths = [uniform(load.requests, tokens, load.range_ratio, stream_of(seed, name))
               for name, tokens in (("input", load.input_tokens), ("output", load.output_tokens))]  # fmt: skip
    times = arrivals(load.requests, load.rate, seed, load.burstiness) if load.rate else np.zeros(load.requests)
    return Offered(independent(times, *lengths), 0 if load.rate else load.concurrency)


def recorded(path: Path, load: Load, seed: int, *, limit: int | None = None, speedup: float = 1.0,
             skip_bad: bool = False, rate: bool = False, closed: bool = False) -> Offered:  # fmt: skip
    """Requests of a trace, at its times; where it has none (a table of lengths), or rate or closed loop are asked for,
    as the load says. InputError: a rate for requests that have times."""
    found = read_trace(path, skip_bad=skip_bad, limit=limit)
    timed = bool(found.arrival_s.any()) or len(found) == 1
    if timed and rate:
        raise InputError(f"{path} has times: --rate is for requests without; --speedup X makes its times shorter")
    if closed or not (timed or load.rate):
        return Offered(found, load.concurrency)
    if timed:
        return Offered(found.sped_up(speedup) if speedup != 1.0 else found, 0)
    return Offered(independent(arrivals(len(found), load.rate, seed, load.burstiness), found.input_tokens,
                               found.output_tokens), 0)  # fmt: skip
