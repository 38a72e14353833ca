"""Prefill of DeepSeek-R1 on Atlas A3 as in cann-recipes-infer, for few or uneven prompts: SP, TP, SP.

MLA has its sequence split for the projections and its heads split for attention; one micro-batch, or two that run whole
layers on a stream each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from simulator.model import mla, moe, ops
from simulator.model.layout import shard_size, split
from simulator.program.rank import Rank
from simulator.study.scenario import Workload
from workloads.a3_parts import Case, Exchange, coordinates, embed, end_of, groups, head, launch, measures, route
from workloads.a3_prefill_memory import sequence_parallel_memory


def sp_tp_sp(npu: Rank, case: Case) -> None:
    """Tokens split over ranks but for attention, where heads are; micro-batches run whole layers on own streams."""
    embed(npu, case)
    streams = [f"micro_batch_{number}" for number in range(case.knobs.micro_batches)]
    start = npu.record()
    for stream in streams:
        with npu.stream(stream):
            npu.wait(start)
    for layer in range(case.shapes.layers):
        blocks_of = [_sp_layer(npu, case, layer, number) for number in range(len(streams))]
        for together in zip(*blocks_of, strict=True):  # launches alternate per sub-block
            assert len(together) == len(streams)
    for stream in streams:
        npu.wait(end_of(npu, stream))
    head(npu, case)


def _sp_layer(npu: Rank, case: Case, layer: int, number: int) -> Iterator[str]:
    """One layer of one micro-batch on its own stream; yields after each sub-block."""
    batch = case.micro_batch_lengths(number, case.knobs.micro_batches)
    own = split(sum(batch), case.ranks)[0]
    with _inside(npu, layer, number):
        sp_attention(npu, case, batch, own)
    yield "attention"
    if layer < case.shapes.dense_layers:
        with _inside(npu, layer, number):
            launch(npu, moe.dense(case.shapes, own))
        yield "dense"
        return
    exchange = Exchange(npu, case, layer, number, case.knobs.micro_batches, sequence_parallel=True)
    with _inside(npu, layer, number):
        route(npu, case, own)
        launch(npu, moe.shared_expert(case.shapes, own))
        exchange.dispatch()
    yield "dispatch"
    with _inside(npu, layer, number):
        exchange.experts()
        exchange.combine()
        launch(npu, moe.finalize_routing(case.shapes, own))
    yield "experts"


def sp_attention(npu: Rank, case: Case, batch: tuple[int, ...], own: int) -> None:
    """Down projections of own tokens, AllGather of the latents, attention of 1/ranks of the heads, All2All back."""
    s, world = case.shapes, npu.group("world")
    heads = shard_size(s.heads, world.size, "heads")
    launch(npu, [("attention.norm", ops.add_rms_norm(own, s.hidden)), *mla.down_projections(s, own)])
    world.all_gather("attention.gather_q", 2 * own * s.q_lora, case.knobs.engine)
    world.all_gather("attention.gather_kv", 2 * own * (s.kv_lora + s.rope_dim), case.knobs.engine)
    launch(npu, mla.up_projections(s, sum(batch), heads))
    launch(npu, mla.attention(s, mla.causal(batch), heads, f"flash_attention_{case.knobs.attention}"))
    world.all_to_all("attention.heads_to_tokens", 2 * own * heads * s.v_dim, case.knobs.engine)
    launch(npu, mla.output_projection(s, own))


@contextmanager
def _inside(npu: Rank, layer: int, number: int) -> Iterator[None]:
    """Into a micro-batch's own stream, labelled with its layer and number."""
    with npu.stream(f"micro_batch_{number}"), npu.scope(layer=layer, micro_batch=number):
        yield


SP_TP_SP = Workload(sp_tp_sp, groups, coordinates, sequence_parallel_memory, measures)
