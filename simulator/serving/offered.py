"""What is asked of a service: a recorded trace, or requests that are drawn; at their times, or in a closed loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from simulator import np
from simulator.errors import InputError
from simulator.serving.arrivals import arrivals
from simulator.serving.draws import stream_of
from simulator.serving.lengths import log_normal, uniform
from simulator.serving.requests import Requests, independent
from simulator.serving.settings import Load
from simulator.serving.sharing import conversations, with_common_prefixes
from simulator.serving.traces import read_trace
from simulator.study.computer import check_fits

REQUEST_BYTES = 500
"""That a request takes at least, of all columns."""
ENDLESS = 100_000
"""Requests of a load whose number is not given, of a run that ends when its steady state is known."""


class Offered(NamedTuple):
    """requests: all that will come; concurrency: so many at a time in a closed loop, 0: at their times."""

    requests: Requests
    concurrency: int


def drawn(load: Load, seed: int, block_tokens: int) -> Offered:
    """Requests with the lengths, prefixes, turns, priorities and times of a load; block_tokens: of the cache that
    shares prefixes."""
    check_fits(load.requests, "requests", REQUEST_BYTES, "fewer of them, or --until steady, which sends as many as it "
               "takes to know the means")  # fmt: skip
    inputs, outputs = (_lengths(load, tokens, stream_of(seed, name))
                       for name, tokens in (("input", load.input_tokens), ("output", load.output_tokens)))  # fmt: skip
    count = -(-load.requests // load.turns)
    rate = load.concurrency / load.ramp_s if load.ramp_s else load.rate
    times = arrivals(count, rate / load.turns, seed, load.burstiness) if rate else np.zeros(count)
    if load.turns > 1:
        turns = np.full(count, load.turns)
        turns[-1] = load.requests - load.turns * (count - 1)
        think_s = load.think_s * stream_of(seed, "think").exponential(size=load.requests)
        found = conversations(times, turns, inputs, outputs, think_s, block_tokens)
    else:
        found = independent(times, inputs, outputs)
    if load.prefix_share:
        random = stream_of(seed, "prefixes")
        found = with_common_prefixes(found, load.prefix_share, load.prefixes, block_tokens, random)
    if len(load.priorities) > 1:
        drawn_ones = stream_of(seed, "priorities").random(load.requests)
        found = replace(found, priority=np.searchsorted(np.cumsum(load.priorities[:-1]), drawn_ones, side="right"))
    return Offered(found, 0 if load.rate else load.concurrency)


def endless(load: Load) -> Load:
    """As many requests as it takes, ENDLESS at most; InputError where all of them would come at once."""
    if load.rate == np.inf:
        raise InputError("load.rate is inf: all requests come at once, and none of the time is steady; a rate or a "
                         "concurrency would be")
    return load.model_copy(update={"requests": ENDLESS})


def _lengths(load: Load, tokens: int, random: np.random.Generator) -> np.Array:
    if load.length_cv:
        return log_normal(load.requests, tokens, load.length_cv, random)
    return uniform(load.requests, tokens, load.range_ratio, random)


def recorded(path: Path, load: Load, seed: int, *, limit: int | None = None, speedup: float = 1.0,
             skip_bad: bool = False, paced: bool = False, tell: Callable[[float], None] | None = None) -> Offered:
    """Requests of a trace, at its times; where it has none (a table of lengths) as the load says. paced: the load's
    rate or concurrency was asked for; InputError where the trace has times of its own. tell: as of `read_trace`."""
    found = read_trace(path, skip_bad=skip_bad, limit=limit, tell=tell)
    if paced and found.arrival_s.any():
        raise InputError(f"{path}: its requests come at their own times; a rate or a concurrency is for a table of "
                         "lengths without times (--speedup X divides times by X)")
    if found.arrival_s.any() or len(found) == 1:
        return Offered(found.sped_up(speedup) if speedup != 1.0 else found, 0)
    if not load.rate:
        return Offered(found, load.concurrency)
    return Offered(replace(found, arrival_s=arrivals(len(found), load.rate, seed, load.burstiness)), 0)
