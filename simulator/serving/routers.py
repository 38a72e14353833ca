"""Routers: which engine a request goes to, by the rules and names of public ones.

A router is a function of the request's number and a view of the engines. Where two engines are alike the lowest index
is taken, as SGLang's does (the first minimum of its list); Dynamo draws, and so does `kv`. Draws come from the seed and
the request's number alone: the same in any process and in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from simulator import np
from simulator.np import Array

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Engines:
    """What a router sees when a request of `input_tokens` comes; arrays have an entry for each engine.

    waiting, running: requests there. queued_tokens: prompt tokens there that are not computed yet. cached_tokens: those
    whose KV requests there hold, or will hold when it has come. free_blocks: of the cache, `block_tokens` each.
    hit_blocks(engine): leading blocks of the prompt in that engine's cache, or in what the router takes for it.
    """

    waiting: Array
    running: Array
    queued_tokens: Array
    cached_tokens: Array
    free_blocks: Array
    hit_blocks: Callable[[int], int]
    input_tokens: int
    block_tokens: int
    seed: int = 0

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def load(self) -> Array:
        """Requests at each engine, waiting and running."""
        return self.waiting + self.running

    def hit_tokens(self) -> Array:
        """Tokens of the prompt that each engine has, at most all of them."""
        hits = [self.hit_blocks(engine) for engine in range(len(self))]
        return np.minimum(np.array(hits, np.int64) * self.block_tokens, self.input_tokens)


Router: TypeAlias = Callable[[int, Engines], int]


def round_robin(request: int, engines: Engines) -> int:
    """One after the other."""
    return request % len(engines)


def random(request: int, engines: Engines) -> int:
    """Any, each as likely."""
    return _drawn(engines.seed, request, 0, len(engines))


def power_of_two(request: int, engines: Engines) -> int:
    """Of two different ones that are drawn the one with fewer requests; the first drawn if they have as many.

    SGLang compares tokens where it has fresh numbers from both, and else requests, as here
    (sgl-model-gateway/src/policies/power_of_two.rs).
    """
    count = len(engines)
    if count == 1:
        return 0
    first = _drawn(engines.seed, request, 0, count)
    second = (first + 1 + _drawn(engines.seed, request, 1, count - 1)) % count
    load = engines.load
    return first if load[first] <= load[second] else second


def cache_aware(request: int, engines: Engines, cache_threshold: float = 0.3, balance_abs_threshold: int = 64,
                balance_rel_threshold: float = 1.5) -> int:  # fmt: skip
    """The engine that has most of the prompt if that is more than `cache_threshold` of it, else the least loaded one.

    The least loaded one too where loads differ by more than `balance_abs_threshold` requests and by more than a factor
    `balance_rel_threshold` (sgl-model-gateway/src/policies/cache_aware.rs; until December 2025 a prompt that is
    nowhere went to the engine with the smallest tree). SGLang compares characters with what it sent there before: give
    as `hit_blocks` a cache that prompts are taken into and released from when they are routed.
    """
    load = engines.load
    least, most = int(load.min()), int(load.max())
    if most - least <= balance_abs_threshold or most <= least * balance_rel_threshold:
        hit_tokens = engines.hit_tokens()
        best = int(hit_tokens.argmax())
        if hit_tokens[best] > cache_threshold * engines.input_tokens:
            return best
    return int(load.argmin())


def kv(request: int, engines: Engines, overlap_weight: float = 1.0) -> int:
    """The least of overlap_weight x prefill blocks + decode blocks, each with this request in; drawn among equals.

    Prefill blocks: prompt tokens that wait there and those of this prompt that are not there. Decode blocks: those of
    all requests there, waiting ones too; this prompt's are the same everywhere (lib/kv-router of NVIDIA Dynamo).
    """
    prefill_tokens = engines.queued_tokens + engines.input_tokens - engines.hit_tokens()
    decode_tokens = engines.cached_tokens + engines.queued_tokens + engines.input_tokens
    cost = (overlap_weight * prefill_tokens + decode_tokens) / engines.block_tokens
    least = np.flatnonzero(cost == cost.min())
    return int(least[_drawn(engines.seed, request, 0, len(least))])


def length_aware(request: int, engines: Engines) -> int:
    """Among engines with room for the prompt (all if none has) the one with the fewest prompt tokens to compute, then
    the one whose running requests hold the fewest tokens."""
    fits = engines.free_blocks * engines.block_tokens >= engines.input_tokens
    order = np.lexsort((engines.cached_tokens, engines.queued_tokens, ~fits))
    return int(order[0])


ROUTERS: dict[str, Router] = {"round_robin": round_robin, "random": random, "power_of_two": power_of_two,
                              "cache_aware": cache_aware, "kv": kv, "length_aware": length_aware}  # fmt: skip
"""By name."""


def _drawn(seed: int, request: int, draw: int, count: int) -> int:
    """A number below `count`, evenly: splitmix64 of seed, request and number of the draw."""
    state = (seed * 0x9E3779B97F4A7C15 + request * 0xD1B54A32D192ED03 + draw * 0x8CB92BA72F3D8DD7) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ state >> shift) * factor & _MASK
    return (state ^ state >> 31) * count >> 64
