"""KV cache layer by layer from a prefill group to a decode group, while prefill goes on (arXiv 2510.27656).

After every layer the GPU moves a progress counter in unified memory; a watcher on the host sees it, and the proxy
writes that layer's pages to its partner's (`simulator.live.cache_pages`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from simulator.errors import InputError
from simulator.live.cache_pages import CachePages
from simulator.live.host import Host
from simulator.live.thread import HostProcess
from simulator.model.layout import blocks, split
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import experts_of, kv_bytes_per_token, matrices
from simulator.program.rank import Rank
from simulator.stack import pplx
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload

STACK = replace(pplx.STACK, l2_bytes=-1.0)  # activations of prompts are larger than L2
GROUP = 8  # GPUs of a node; nodes are pairs: rank r of the first one sends to rank r + 8


class Prompt(Part):
    """A prompt on every rank of the prefill group."""

    prompt_tokens: int = Field(4096, gt=0)
    page_tokens: int = Field(64, gt=0)


class Knobs(Part):
    """How many layers are simulated."""

    layers: int = Field(8, gt=1)
    layer_by_layer: bool = Field(True, description="pages leave after every layer; otherwise after prefill")


Case = scenario.Case[Prompt, scenario.Layout, Knobs]


def prefill(npu: Rank, case: Case) -> None:
    """Layers of a prefill; every one ends with its progress. The decode group does nothing yet."""
    npu.program.captured = True
    if not _prefills(npu.rank):
        return
    model, tokens, node = case.model, case.batch.prompt_tokens, npu.group("node")
    experts, attention, prompt = experts_of(model, GROUP), model.layers[0].attention, MicroBatch(prompts=((tokens, 0),))
    rows, local = tokens * experts.per_token, experts.routed // GROUP
    before = [*STACK.norm(model, tokens, "attention"), *STACK.inputs(model, attention, tokens, 1, packed=False),
              *STACK.attend(model, attention, prompt, 1, 1), *STACK.output(model, attention, tokens, 1),
              *STACK.norm(model, tokens, "gate"), *STACK.route(model, experts, tokens)]  # fmt: skip
    computed = STACK.experts(model, experts, 0, split(rows, local), 1)
    for layer in range(case.knobs.layers):
        with npu.scope(layer=layer):
            for name, work in before:
                npu.launch(work, name)
            npu.set_flag("kv.progress", pages_of(case).flag(layer), watched=True)
            node.all_to_all("dispatch.tokens", rows * model.hidden // GROUP, "nvlink")
            for name, work in computed:
                npu.launch(work, name)
            node.all_to_all("combine.tokens", rows * model.hidden * 2 // GROUP, "nvlink")
    npu.set_flag("prefilled", "prefilled", watched=True)


def _prefills(rank: Any) -> Any:
    """Whether this rank, or each of these, is of a node that prefills; the node after it decodes."""
    return rank // GROUP % 2 == 0


def pages_of(case: Case) -> CachePages:
    """The latent cache of a rank's prompt, BF16."""
    page_bytes = case.batch.page_tokens * case.model.layers[0].attention.cached_values * 2
    return CachePages(case.knobs.layers, -(-case.batch.prompt_tokens // case.batch.page_tokens), page_bytes)


def proxy(host: Host, case: Case) -> HostProcess:
    """Prefill ranks write pages, decode ranks count them."""
    if not _prefills(host.rank):
        yield from pages_of(case).receive(host)
        return
    if not case.knobs.layer_by_layer:
        yield from host.until_flag("prefilled")
    yield from pages_of(case).send(host, host.rank + GROUP)


def readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Time of a layer's compute, of its transfer, and what is left of transfers once prefill has ended."""
    prefilling = _prefills(columns["rank"])
    gpu = prefilling & (columns["stream"] == "compute")
    layer_ends = [columns["end_ps"][gpu & (columns["layer"] == layer)].max() for layer in range(case.knobs.layers)]
    pages = columns["name"] == "kv.pages"
    transfers = []
    for layer in range(case.knobs.layers):
        of_layer = columns["layer"] == layer
        done = columns["end_ps"][pages & of_layer & (columns["kind"] == "poll") & ~prefilling].max()
        transfers.append(done - columns["end_ps"][of_layer & (columns["name"] == "kv.progress")].min())
    last = columns["end_ps"][pages & (columns["kind"] == "poll") & ~prefilling].max()
    compute_us = float(layer_ends[-1] - layer_ends[0]) / (case.knobs.layers - 1) / 1e6
    return {
        "layer_us": compute_us,
        "kv_transfer_us": float(max(transfers)) / 1e6,
        "kv_transfer_per_layer": float(max(transfers)) / 1e6 / compute_us,
        "kv_exposed_us": max(0.0, float(last - layer_ends[-1]) / 1e6),
    }


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """The GPUs of each node; nodes without a partner are refused."""
    if case.ranks % (2 * GROUP):
        raise InputError(f"cards is {case.cards}, which makes {case.ranks} ranks: nodes of {GROUP} prefill for another"
                         f" node each, so ranks must be a multiple of {2 * GROUP}")
    return {"node": blocks(case.ranks, GROUP)}


def memory(case: Case) -> list[MemoryItem]:
    """FP8 weights of attention and routed experts, the cache, and one layer's activations."""
    model, tokens = case.model, case.batch.prompt_tokens
    sizes, experts = matrices(model.layers, model.hidden), experts_of(model, GROUP)
    return [
        ("attention", "weights", sizes["attention"]),
        ("latent cache, BF16", "KV", tokens * kv_bytes_per_token(model, "bf16")),
        ("routed experts", "weights", sizes["experts"] / GROUP),
        ("dispatched rows", "communication", 3.0 * tokens * experts.per_token * model.hidden),
    ]


KV_TRANSFER = Workload(prefill, groups, memory=memory, live=proxy, readings=readings)
