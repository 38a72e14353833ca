"""Decode layers on the kernels of `pplx_moe`: one or two micro-batches, which share one proxy and engine per GPU.

Some layers are simulated; an iteration is as many as the model has. With two micro-batches the send and receive parts
of one surround attention and experts of the other; both go through one proxy thread, in the order of the launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import Field

from simulator.live.host import Host
from simulator.live.thread import HostProcess
from simulator.model.layout import shard_size
from simulator.model.routing import Drawn
from simulator.program.rank import Rank
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Workload
from workloads import fp8_layers as layers
from workloads.pplx_moe import (
    Knobs,
    PerRank,
    Step,
    combine_proxy,
    combine_receive,
    combine_send,
    coordinates,
    dispatch_proxy,
    dispatch_receive,
    dispatch_send,
    groups,
    measures,
    step_of,
)
from workloads.pplx_moe import memory as buffers


class Requests(PerRank):
    """Requests of every rank, and what they look like. draft_tokens and acceptance: of multi-token prediction."""

    per_rank: int = Field(16, gt=0)
    cached_tokens: int = Field(4096, gt=0)
    draft_tokens: int = Field(1, ge=0)
    acceptance: float = Field(0.8, ge=0, le=1)

    @property
    def queries(self) -> int:
        """Tokens of a request in one iteration."""
        return 1 + self.draft_tokens

    @property
    def accepted(self) -> float:
        """Tokens that a request gains in one iteration."""
        return 1 + sum(self.acceptance**depth for depth in range(1, self.draft_tokens + 1))


class DecodeKnobs(Knobs):
    """How many layers are simulated, and in how many micro-batches."""

    layers: int = Field(4, gt=1, description="layers that are simulated; the first one fills the pipeline")
    micro_batches: int = Field(1, gt=0, le=2)


Case = scenario.Case[Requests, scenario.Layout, DecodeKnobs]


def decode(npu: Rank, case: Case) -> None:
    """Layers of one iteration, as one captured graph."""
    npu.program.captured = True
    case.shapes.check_drafts(case.batch.draft_tokens)
    if case.batch.per_rank < case.knobs.micro_batches:
        raise ValueError(f"{case.knobs.micro_batches} micro-batches need as many requests on a rank; batch.per_rank is "
                         f"{case.batch.per_rank}: set it to 2 or more, or knobs.micro_batches to 1")
    if case.knobs.micro_batches == 1:
        for layer in range(case.knobs.layers):
            _one(npu, case, layer)
    else:
        _two(npu, case)


def _one(npu: Rank, case: Case, layer: int) -> None:
    """The shared expert runs between the send and the receive part of dispatch."""
    step, tokens = _step(case, npu.rank, layer), _tokens(case)
    with npu.scope(layer=layer):
        _attention(npu, case)
        stored = dispatch_send(npu, step, tokens)
        layers.launch(npu, layers.shared_expert(case.shapes, tokens))
        dispatch_receive(npu, step, stored)
        layers.launch(npu, layers.experts(case.shapes, _rows_of(case, npu.rank, layer)))
        combine_receive(npu, step, combine_send(npu, step), tokens)


def _two(npu: Rank, case: Case) -> None:
    """Attention of one micro-batch runs while the other's tokens are on the wire, and so do its experts."""
    stored: dict[int, Any] = {}
    combined: dict[int, Any] = {}
    tokens = _tokens(case)
    for layer in range(case.knobs.layers):
        for number in range(2):
            with npu.scope(layer=layer - 1, micro_batch=number):
                if layer:
                    combine_receive(npu, _step(case, npu.rank, layer - 1, number), combined[number], tokens)
            with npu.scope(layer=layer, micro_batch=number):
                _attention(npu, case)
                stored[number] = dispatch_send(npu, _step(case, npu.rank, layer, number), tokens)
                layers.launch(npu, layers.shared_expert(case.shapes, tokens))
        for number in range(2):
            step = _step(case, npu.rank, layer, number)
            with npu.scope(layer=layer, micro_batch=number):
                dispatch_receive(npu, step, stored[number])
                layers.launch(npu, layers.experts(case.shapes, _rows_of(case, npu.rank, layer, number)))
                combined[number] = combine_send(npu, step)
    for number in range(2):
        with npu.scope(layer=case.knobs.layers - 1, micro_batch=number):
            combine_receive(npu, _step(case, npu.rank, case.knobs.layers - 1, number), combined[number], tokens)


def proxy(host: Host, case: Case) -> HostProcess:
    """Dispatch and combine of every micro-batch in the order in which the GPU launches them."""
    barriers: dict[int, Any] = {}
    for what, layer, number in _order(case):
        step = _step(case, host.rank, layer, number)
        if what == "dispatch":
            yield from dispatch_proxy(host, step, barriers.get(number))
        else:
            barriers[number] = yield from combine_proxy(host, step)


def _order(case: Case) -> Iterator[tuple[str, int, int]]:
    numbers = range(2) if case.knobs.micro_batches == 2 else (-1,)
    for layer in range(case.knobs.layers):
        yield from (("dispatch", layer, number) for number in numbers)
        yield from (("combine", layer, number) for number in numbers)


def _attention(npu: Rank, case: Case) -> None:
    batch = case.batch
    requests = -(-batch.per_rank // case.knobs.micro_batches)
    layers.launch(npu, layers.decode_attention(case.shapes, requests, batch.queries, batch.cached_tokens))


def _tokens(case: Case) -> int:
    """Of one micro-batch on one rank."""
    return -(-int(case.batch.per_rank) // case.knobs.micro_batches) * int(case.batch.queries)


def _step(case: Case, rank: int, layer: int, number: int = -1) -> Step:
    return step_of(case, rank, layer, number, _tokens(case))


def _rows_of(case: Case, rank: int, layer: int, number: int = -1) -> tuple[int, ...]:
    s = case.shapes
    return _drawn(case.ranks, _tokens(case), s.routed_experts, s.experts_per_token, case.routing.skew or 0.0,
                  (case.seed, layer, number + 1)).rows(rank)


@cache
def _drawn(ranks: int, tokens: int, experts: int, per_token: int, skew: float, seed: tuple[int, ...]) -> Drawn:
    return Drawn((tokens,) * ranks, experts, per_token, skew, seed)


def memory(case: Case) -> list[MemoryItem]:
    """FP8 weights, attention on every rank, experts spread; BF16 cache of the rank's requests; buffers."""
    s, experts = case.shapes, shard_size(case.shapes.routed_experts, case.ranks, "experts")
    cached = case.batch.per_rank * (case.batch.cached_tokens + case.batch.queries) * s.kv_values * 2 * s.layers
    return [
        ("attention", "weights", s.layers * s.mla_parameters),
        ("shared expert", "weights", s.moe_layers * s.shared_experts * s.expert_parameters),
        ("routed experts", "weights", s.moe_layers * experts * s.expert_parameters),
        ("dense FFN", "weights", s.dense_layers * s.dense_parameters),
        ("embedding and head, BF16", "weights", 2 * 2 * s.embedding_parameters),
        ("multi-token prediction", "weights", s.mtp_parameters / case.ranks),
        ("latent cache, BF16", "KV", cached),
        *buffers(case),
    ]


def readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Time of a layer once the pipeline is full, and what an iteration of all layers makes of it."""
    ends = columns["name"] == "combine.sum"
    last = {layer: float(columns["end_ps"][ends & (columns["layer"] == layer)].mean()) / 1e12
            for layer in range(case.knobs.layers)}
    layer_s = (last[case.knobs.layers - 1] - last[0]) / (case.knobs.layers - 1)
    iteration_s = layer_s * (case.shapes.layers + case.batch.draft_tokens)
    rate = case.batch.per_rank * case.batch.accepted / iteration_s
    return {
        "layer_us": layer_s * 1e6,
        "iteration_ms": iteration_s * 1e3,
        "tpot_ms": iteration_s * 1e3 / case.batch.accepted,
        "throughput_tok_s_per_card": rate,
        "throughput_tok_s": rate * case.ranks,
    }


DECODE = Workload(decode, groups, coordinates, memory, measures, proxy, readings)
