"""What an engine could do at most: no step is shorter than its bytes at the peak of HBM, or its FLOPs at that of cores.

A rank reads its weights once a step, of routed experts those that some token chose, and the cache of its requests. With
W and E bytes of dense and expert weights on a rank, K of a request's cache, and t(n) the share of experts that the
tokens of n requests of each of g groups choose, at p stages one after the other::

    step >= (W + t(n) E + n K) / HBM,        tokens of a request a second <= (tokens in a step) / step
    step >= FLOPs of all tokens / (ranks x peak),  those of the prompts that n requests bring included

The first holds for each step, the larger of both for the mean of steps, wherever prompts are computed. A deployment has
no point above and to the right of these; where others have been found there, it need not be looked at.

Worked example. DeepSeek-R1 on 16 H200, dp=16, ep=16: W is 17 GB, E is 41 GB, K 0.3 GB: at 64 requests of a group all
experts are chosen, and a step takes 17 + 41 + 20 GB at 4.8 TB/s, 16 ms; 47 ms are simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, NamedTuple

from simulator import np
from simulator.model.transformer import Experts, Model, layer_weights
from simulator.parallel.ledger import cache_bytes, weights_of
from simulator.parallel.mesh import check
from simulator.search.deployment import Ask, Engine
from simulator.search.engine import words_of
from simulator.study.scenario import Scenario
from simulator.study.step import step_of

GRID = [2.0 ** (half / 2) for half in range(26)]  # requests of a group, from point to point of a roofline
UNREAD = ("embedding", "attention: absorbed kv_b, BF16")  # weights of which a step reads rows, or the same ones again


class Corner(NamedTuple):
    """Neither is exceeded by a batch between two of the grid: tokens a second of a user, and of a GPU."""

    tok_s_per_user: float
    tok_s_per_gpu: float


class Roofline(NamedTuple):
    """Of an engine: dense and expert weights and a request's cache in bytes on each rank, popularity of experts and how
    many a token chooses; the FLOPs of a token; HBM in bytes a second and cores in FLOP/s, of a rank; room: bytes."""

    dense_bytes: float
    expert_bytes: float
    cache_bytes: float
    popularity: np.Array
    per_token: int
    token_flops: float
    hbm_bytes_per_s: float
    flops_per_s: float
    room_bytes: float
    ranks: int
    cards: int
    groups: int
    queries: int
    per_iteration: float

    def step_s(self, count: float) -> float:
        """A step that decodes `count` requests of each group takes no less."""
        rows = count * self.groups * self.queries * self.per_token
        chosen = float(np.mean(1.0 - (1.0 - self.popularity) ** rows)) if self.per_token else 0.0
        held = self.dense_bytes + chosen * self.expert_bytes + count * self.cache_bytes
        return max(held / self.hbm_bytes_per_s, self._flops_s(count * self.groups * self.queries))

    def mean_s(self, count: float, prompt_tokens: float) -> float:
        """Nor the mean of steps where each brings so many prompt tokens of a group."""
        return max(self.step_s(count), self._flops_s(self.groups * (count * self.queries + prompt_tokens)))

    def _flops_s(self, tokens: float) -> float:
        return tokens * self.token_flops / (self.flops_per_s * self.ranks)

    @property
    def most(self) -> float:
        """Requests of a group for which there is memory beside the weights, at most."""
        return (self.room_bytes - self.dense_bytes - self.expert_bytes) / self.cache_bytes

    def corners(self, ask: Ask) -> list[Corner]:
        """Above all that the engine can do within the limit of TPOT, from few requests to many; none where not even one
        request can be within it."""
        found, steps = [], ask.output_tokens / self.per_iteration
        for low, high in pairwise(GRID):
            if low > self.most or self.step_s(low) / self.per_iteration * 1e3 > ask.tpot_ms:
                break
            most = min(high, max(self.most, low))
            mean_s = self.mean_s(most, most * ask.new_tokens / steps)
            found.append(Corner(self.per_iteration / self.step_s(low),
                                most * self.groups * self.per_iteration / mean_s / self.cards))  # fmt: skip
        return found


def roofline_of(ask: Ask, engine: Engine, phase: str = "decode") -> Roofline:
    """InputError for what cannot be: a mesh that does not divide, a stack without kernels of the model in a phase."""
    step = step_of(words_of(ask, engine, phase))
    layout, knobs, batch = (_any(one) for one in (step.layout, step.knobs, step.batch))
    model, chip = knobs.model_of(step.transformer()), step.machine_spec().chip
    check(layout, model)
    mesh = layout.placed(knobs.exchange != "all_reduce")
    least = mesh.model_copy(update={"redundant": 0})  # a copy of an expert need not be read where the other one is
    weights = [(title, size) for stage in range(mesh.pp)
               for title, _, size in weights_of(model, least, stage, False, gathered=knobs.gathered.kept())
               if title not in _unread(model, stage == mesh.pp - 1)]
    experts = 0.0 if mesh.apart else sum(size for title, size in weights if title == "routed experts")
    dense = sum(size for title, size in weights if title != "routed experts")
    cache = sum(cache_bytes(model, mesh, [ask.cached_tokens], stage) for stage in range(mesh.pp))
    popularity, chosen = _popularity(step, model)
    return Roofline(dense, experts, cache, popularity, chosen, _token_flops(model), chip.hbm.peak.si,
                    _peak(model, step), chip.hbm.capacity.si * chip.hbm.usable.si * mesh.pp, mesh.ranks, step.cards,
                    mesh.dp, batch.queries, batch.tokens_per_iteration)  # fmt: skip


def _any(value: object) -> Any:
    return value


def _unread(model: Model, last: bool) -> Sequence[str]:
    """last: whether a stage is, which multiplies with the embedding where that is the head, too."""
    return UNREAD[1:] if model.tied and last else UNREAD


def _popularity(step: Scenario, model: Model) -> tuple[np.Array, int]:
    """Of the experts of a layer, and how many a token chooses; 0 of a model without."""
    experts = next((one.feed_forward for one in model.layers if isinstance(one.feed_forward, Experts)), None)
    if experts is None:
        return np.ones(1), 0
    popularity = np.arange(1, experts.routed + 1, dtype=float) ** -(step.routing.skew or 0.0)
    return popularity / popularity.sum(), experts.per_token


def _token_flops(model: Model) -> float:
    """Of the products with all weights that one token takes: two each."""
    found = 0.0
    for layer in model.layers:
        chosen = 1.0
        if isinstance(layer.feed_forward, Experts):
            chosen = layer.feed_forward.per_token / layer.feed_forward.routed
        found += sum(2.0 * one.elements * (chosen if one.shard == "experts" else 1.0)
                     for one in layer_weights(layer, model.hidden) if one.inputs > 1)  # fmt: skip
    return found


def _peak(model: Model, step: Scenario) -> float:
    """The fastest of the chip's products in a data type that the model's weights have, or of all where a type is not
    the chip's own."""
    peaks = {dtype: rate.si for pool in step.machine_spec().chip.peak.values() for dtype, rate in pool.items()}
    words = {word for word in asdict(model.precision).values() if isinstance(word, str) and word}
    own = [max((rate for dtype, rate in peaks.items() if word.startswith(dtype)), default=0.0) for word in words]
    return max(peaks.values()) if 0.0 in own else max(own)
