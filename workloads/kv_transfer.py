"""KV cache, layer by layer from an instance that prefills to one that decodes (arXiv 2510.27656).

A pass of `workloads.transformer` prefills, whole or in chunks. After the output projection of every layer the GPU moves
a progress counter in unified memory; a watcher on the host sees it, and the proxy submits that layer's pages, which the
engine posts one by one (`simulator.live.cache_pages`). Once all are counted, and the last token's hidden state has
come, the decoding rank takes its first step.

Ranks are those of the mesh twice: the first ones prefill, each for the one as far behind it as the mesh has ranks. A
rank of a tensor-parallel group sends the heads that it has; latents, which all of them have, go from each to its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from pydantic import Field

from simulator.errors import InputError
from simulator.live.cache_pages import COMPLETE, PREFILLED, CachePages, CachePart
from simulator.live.host import Host
from simulator.live.thread import HostProcess
from simulator.model.passes import decode_batches
from simulator.model.transformer import Grouped, kv_bytes_per_token
from simulator.parallel.mesh import Mesh, check, coordinates_of, groups_of
from simulator.parallel.tokens import group_of, tokens_of
from simulator.program.rank import Rank
from simulator.study import scenario
from simulator.study.scenario import Workload
from workloads import transformer


class Prompts(transformer.Step):
    """Prompts of the prefilling instances, and the pages that their cache lies in."""

    phase: Any = Field("prefill", pattern="^prefill$", description="prompts are prefilled")
    page_tokens: int = Field(64, gt=0, description="tokens of a page, which has one tensor of one layer")


class Knobs(transformer.Knobs):
    """As those of a transformer; when pages leave, and how many layers there are."""

    layers: int = Field(0, ge=0, description="the first layers, of which alone the run is (0: all)")
    layer_by_layer: bool = Field(True, description="pages leave after every layer; otherwise after prefill")


Case = scenario.Case[Prompts, Mesh, Knobs]


class Progress:
    """Tells the host behind each output projection (a technique of `parallel.pieces`)."""

    def __init__(self, npu: Rank, flags: Iterator[str]) -> None:
        self._npu, self._flags = npu, flags

    def before(self, name: str) -> None:
        """Nothing."""

    def after(self, name: str) -> None:
        """The cache of this layer is written."""
        if name == "attention.o":
            self._npu.set_flag("kv.progress", next(self._flags), watched=True)


def program(npu: Rank, case: Case) -> None:
    """Passes of a prefill, layer by layer; or, once the cache is there, one decode step of its prompts."""
    if npu.coordinate("decodes"):
        npu.program.captured = True
        npu.wait_flag("kv.wait", COMPLETE)
        step(npu, decoding(case), decode_batches([[case.batch.prefix + case.batch.context] * case.batch.requests], 1))
        return
    progress = Progress(npu, (part.flag for part in pages_of(case).parts))
    for groups in transformer.batches_of(case):
        step(npu, case, groups, (progress,))
    npu.set_flag("prefilled", PREFILLED, watched=True)


def step(npu: Rank, case: Any, groups: Sequence[Any], techniques: Sequence[Any] = ()) -> None:
    """One pass through the layers, from embedding to sampling."""
    (tokens,) = tokens_of(groups, 1, group_of(npu, groups))
    numbers = layers_of(case)
    forward = transformer.forward(npu, case, numbers, [case.model.layers[number] for number in numbers], techniques)
    forward.embed(tokens)
    transformer.order_of(case)(forward, tokens)
    forward.head(tokens)


def decoding(case: Case) -> Any:
    """The same case, as the stack runs it in decode."""
    return replace(case, batch=case.batch.model_copy(update={"phase": "decode"}))


def layers_of(case: Case) -> range:
    """Their numbers."""
    return range(case.knobs.layers or len(case.model.layers))


def pages_of(case: Case) -> CachePages:
    """What a rank's prompts add to the cache, pass by pass and layer by layer."""
    attention = case.model.layers[0].attention
    value_bytes = kv_bytes_per_token(case.knobs.model_of(case.model)) // sum(
        layer.attention.cached_values for layer in case.model.layers)
    if isinstance(attention, Grouped):
        tensors, values = 2, max(attention.kv_heads // case.layout.tp, 1) * attention.head_dim
    else:
        tensors, values = 1, attention.cached_values
    numbers = count()
    parts = [CachePart(f"part {next(numbers)}", layer, sum(-(-new // case.batch.page_tokens) for new, _ in one.prompts))
             for one, *_ in transformer.batches_of(case) for layer in layers_of(case)]
    return CachePages(parts, tensors, case.batch.page_tokens * values * value_bytes, 2 * case.model.hidden)


def proxy(host: Host, case: Case) -> HostProcess:
    """Prefilling ranks write pages, decoding ranks count them."""
    peer = host.rank + case.layout.ranks
    if peer >= case.ranks:
        yield from pages_of(case).receive(host)
        return
    if not case.knobs.layer_by_layer:
        yield from host.until_flag(PREFILLED)
    yield from pages_of(case).send(host, peer)


def readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Time of a layer's compute and of its transfer, in the last pass; what is left of transfers when prefill ends;
    TTFT where the prefilling instance samples (colocated), and where the decoding one takes a step (split)."""
    ends, prefills = columns["end_ps"] / 1e6, columns["rank"] < case.layout.ranks
    counted = (columns["name"] == "kv.pages") & (columns["kind"] == "poll") & ~prefills
    layers = layers_of(case)
    told = {layer: ends[(columns["name"] == "kv.progress") & (columns["layer"] == layer)].max() for layer in layers}
    transfers = [ends[counted & (columns["layer"] == layer)].max() - told[layer] for layer in layers]
    layer_us = float(told[layers[-1]] - told[layers[-1] - 1])
    sampled = {phase: float(ends[mask & (columns["name"] == "head.sample")].max())
               for phase, mask in (("colocated", prefills), ("split", ~prefills))}
    return {
        "layer_us": layer_us,
        "kv_transfer_us": float(sum(transfers)) / len(transfers),
        "kv_transfer_per_layer": float(max(transfers)) / layer_us,
        "kv_exposed_us": max(0.0, float(ends[counted].max()) - sampled["colocated"]),
        "ttft_colocated_ms": sampled["colocated"] / 1e3,
        "ttft_split_ms": sampled["split"] / 1e3,
    }


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Those of the mesh, once for either half of the ranks; InputError where they are not twice the mesh."""
    mesh, dp = case.layout, case.layout.dp
    check(mesh, case.knobs.model_of(case.model))
    if case.ranks != 2 * mesh.ranks or mesh.pp > 1 or mesh.apart:
        raise InputError(f"cards is {case.cards}, which makes {case.ranks} ranks; mesh {mesh.words()} prefills for as"
                         f" many others: set cards so that there are {2 * mesh.ranks} ranks, without pp and apart")
    if case.knobs.layers == 1 or case.knobs.layers > len(case.model.layers):
        raise InputError(f"knobs.layers is {case.knobs.layers}: must be 0 (all), or 2 to {len(case.model.layers)}")
    if case.batch.requests != dp:
        raise InputError(f"batch.requests is {case.batch.requests}: every data-parallel group has a prompt, so {dp}")
    halves = (0, mesh.ranks)
    return {name: [tuple(first + rank for rank in members) for first in halves for members in found]
            for name, found in groups_of(transformer.placed(case)).items()}


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """Where it is in the mesh of its half, and which that is."""
    return {**coordinates_of(case.layout, rank % case.layout.ranks), "decodes": rank >= case.layout.ranks}


KV_TRANSFER = Workload(program, groups, coordinates, transformer.memory, live=proxy, readings=readings)
