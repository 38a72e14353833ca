"""Prefill of published systems on Ascend: what Atlas A2 and A3 have in common around their schedules.

Whatever the layers do, embedding and LM head are tensor parallel over all ranks, with as many tokens on each before and
behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simulator.model.layout import blocks, deal, shard_size
from simulator.model.passes import deal_prompts, prompt_batches
from simulator.model.transformer import Experts
from simulator.parallel.border import Engines
from simulator.parallel.exchange.task import ExchangeSettings
from simulator.parallel.forward import Forward
from simulator.parallel.ledger import cache_bytes, weights_of
from simulator.parallel.mesh import Mesh, coordinates_of, groups_of
from simulator.parallel.tokens import Tokens
from simulator.program.rank import Rank
from simulator.stack.cann import quantised
from simulator.stack.stacks import Stack
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Workload, prefill_measures

Case = scenario.Case[scenario.Prompts, scenario.Layout, Any]


def mesh_of(case: Case, data_parallel: bool, o_proj: int) -> Mesh:
    """All ranks as one: attention on own prompts, or with its heads split and its output projection on `o_proj` ranks;
    dense FFN and shared expert on own tokens. ValueError says what does not divide."""
    ranks, ep = case.ranks, case.layout.expert_parallel
    blocks(ranks, ep, "layout.expert_parallel")
    for layer in case.model.layers:
        if not data_parallel:
            shard_size(layer.attention.heads, ranks, "heads")
        if isinstance(layer.feed_forward, Experts):
            shard_size(layer.feed_forward.routed, ep, "experts")
    axes = {"dp": ranks} if data_parallel else {"tp": ranks, "o_proj": o_proj}
    return Mesh(**axes, ep=ep, replicas=ranks // ep, dense=1, shared=1, head=ranks, embedding=ranks)


def pass_of(npu: Rank, case: Case, mesh: Mesh, stack: Stack, engines: Engines, exchange: str, host_reads: int = 0,
            residual: str = "replicated", labelled: bool = True) -> Forward:
    """A pass through all layers. exchange, residual: words of `transformer.Knobs`. labelled: micro-batches are, too."""
    model, labels = quantised(case.model), ("layer", "micro_batch") if labelled else ("layer",)
    settings = ExchangeSettings(exchange, skew=case.routing.skew, seed=case.seed, host_reads=host_reads)
    return Forward(npu, model, mesh, stack, engines, settings, residual != "replicated", labels,
                   range(len(model.layers)), model.layers, gathers_latents=residual == "split_latents")


def one_stream(step: Forward, a: Tokens, *pieces: Callable[[Tokens], None]) -> None:
    """All layers in one stream. pieces: of one with experts behind attention, in order."""
    for layer in step.layers():
        step.attend(a)
        step.reduce(a)
        for verb in (step.dense,) if step.is_dense(layer) else pieces:
            verb(a)


# --- tokens -----------------------------------------------------------------------------------------------------------


def whole_prompts(npu: Rank, case: Case, parts: int) -> list[Tokens]:
    """Micro-batches of the prompts that fall on this data-parallel rank."""
    own = npu.coordinate("prompts")
    assert isinstance(own, tuple)
    hands = [deal_prompts(hand, parts) for hand in deal_prompts(case.batch.prompts, case.ranks)]
    return [Tokens(batch, tuple(sum(new for new, _ in hand[batch.number]) for hand in hands))
            for batch in prompt_batches(own, parts)]


# --- what a scenario needs to know ------------------------------------------------------------------------------------


def workload(program: Callable[[Rank, Case], None], mesh: Callable[[Case], Mesh],
             memory: Callable[[Case, Mesh, int], list[MemoryItem]]) -> Workload:
    """memory: what the fullest rank has beside weights and cache; the last argument is its tokens."""

    def items(case: Case) -> list[MemoryItem]:
        model, axes, lengths = quantised(case.model), mesh(case), case.batch.lengths
        tokens = max(map(sum, deal(lengths, case.ranks))) if axes.dp > 1 else -(-sum(lengths) // case.ranks)
        before = sum(case.batch.prefixes)
        reused = [("latents that prompts reuse, BF16", "KV", cache_bytes(model, axes, [before]))] if before else []
        return [*weights_of(model, axes, 0, drafts=False, absorbed=False),
                ("latent cache, BF16", "KV", cache_bytes(model, axes, [tokens])), *reused, *memory(case, axes, tokens)]

    def coordinates(case: Case, rank: int) -> Mapping[str, object]:
        axes = mesh(case)
        own = {"prompts": deal_prompts(case.batch.prompts, case.ranks)[rank]} if axes.dp > 1 else {}
        return {**coordinates_of(axes, rank), **own}

    return Workload(program, lambda case: groups_of(mesh(case)), coordinates, items, prefill_measures)

