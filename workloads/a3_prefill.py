"""Prefill of DeepSeek-R1 on Atlas A3 as in cann-recipes-infer, with data parallel MLA: two programs, in launch order.

* `data_parallel`: experts expert parallel, one stream.
* `micro_batch`: the same, as two micro-batches on a compute stream and a communication stream.
"""

from __future__ import annotations

from simulator.model import moe
from simulator.model.layout import deal
from simulator.program.rank import Event, Rank
from simulator.study.scenario import Workload
from workloads.a3_parts import (
    COMM,
    Case,
    Exchange,
    attend,
    coordinates,
    embed,
    end_of,
    groups,
    head,
    launch,
    measures,
    route,
)
from workloads.a3_prefill_memory import data_parallel_memory

# --- one stream -------------------------------------------------------------------------------------------------------


def data_parallel(npu: Rank, case: Case) -> None:
    """Every step of a layer after the other, compute and communication in one stream."""
    prompts = _prompts(npu)
    embed(npu, case)
    for layer in range(case.shapes.layers):
        with npu.scope(layer=layer):
            attend(npu, case, prompts)
            if layer < case.shapes.dense_layers:
                launch(npu, moe.dense(case.shapes, sum(prompts)))
                continue
            route(npu, case, sum(prompts))
            exchange = Exchange(npu, case, layer, 0, 1)
            launch(npu, moe.shared_expert(case.shapes, sum(prompts)))
            exchange.dispatch()
            exchange.experts()
            exchange.combine()
            launch(npu, moe.finalize_routing(case.shapes, sum(prompts)))
    head(npu, case)


# --- two micro-batches on two streams ---------------------------------------------------------------------------------


def micro_batch(npu: Rank, case: Case) -> None:
    """dispatch 0 under attention 1 and shared experts, dispatch 1 under experts 0, combine 0 under experts 1,
    combine 1 under the next layer's attention 0."""
    prompts = deal(_prompts(npu), 2)
    embed(npu, case)
    combined: Event | None = None  # combine of micro-batch 1 of the layer before
    for layer in range(case.shapes.layers):
        with npu.scope(layer=layer):
            if layer < case.shapes.dense_layers:
                dense_layer(npu, case, prompts)
            elif case.knobs.enqueue == "interleaved":
                combined = moe_layer(npu, case, layer, prompts, combined)
            else:
                combined = moe_layer_in_order(npu, case, layer, prompts, combined)
    finalize(npu, case, case.shapes.layers - 1, 1, sum(prompts[1]), combined)
    npu.wait(end_of(npu, COMM))
    head(npu, case)


def dense_layer(npu: Rank, case: Case, prompts: list[tuple[int, ...]]) -> None:
    """Both micro-batches one after the other on C."""
    for number in (0, 1):
        with npu.scope(micro_batch=number):
            attend(npu, case, prompts[number])
            launch(npu, moe.dense(case.shapes, sum(prompts[number])))


def moe_layer(npu: Rank, case: Case, layer: int, prompts: list[tuple[int, ...]], combined: Event | None) -> Event:
    """One layer in the published order of launches."""
    tokens = [sum(prompts[0]), sum(prompts[1])]
    exchange = [Exchange(npu, case, layer, number, 2) for number in (0, 1)]

    with npu.scope(micro_batch=0):  # 1
        attend(npu, case, prompts[0])
    finalize(npu, case, layer - 1, 1, tokens[1], combined)
    with npu.scope(micro_batch=0):
        route(npu, case, tokens[0])
        routed_0 = npu.record()
    with npu.scope(micro_batch=1):  # 2
        attend(npu, case, prompts[1])
        route(npu, case, tokens[1])
        routed_1 = npu.record()
    for number in (0, 1):
        with npu.scope(micro_batch=number):
            launch(npu, moe.shared_expert(case.shapes, tokens[number]))

    dispatched_0 = exchange[0].on_comm(exchange[0].dispatch, routed_0)  # 3
    worked_0 = _experts(npu, case, exchange[0], dispatched_0)  # 4
    dispatched_1 = exchange[1].on_comm(exchange[1].dispatch, routed_1)  # 5
    combined_0 = exchange[0].on_comm(exchange[0].combine, worked_0)  # 6
    worked_1 = _experts(npu, case, exchange[1], dispatched_1)
    combined_1 = exchange[1].on_comm(exchange[1].combine, worked_1)
    finalize(npu, case, layer, 0, tokens[0], combined_0)  # 7
    return combined_1


def moe_layer_in_order(
    npu: Rank, case: Case, layer: int, prompts: list[tuple[int, ...]], combined: Event | None
) -> Event:
    """For comparison: the communication stream gets each micro-batch's dispatch and combine one after the other."""
    finalize(npu, case, layer - 1, 1, sum(prompts[1]), combined)
    done = []
    for number in (0, 1):
        exchange = Exchange(npu, case, layer, number, 2)
        with npu.scope(micro_batch=number):
            attend(npu, case, prompts[number])
            route(npu, case, sum(prompts[number]))
            routed = npu.record()
            launch(npu, moe.shared_expert(case.shapes, sum(prompts[number])))
        dispatched = exchange.on_comm(exchange.dispatch, routed)
        worked = _experts(npu, case, exchange, dispatched)
        done.append(exchange.on_comm(exchange.combine, worked))
    finalize(npu, case, layer, 0, sum(prompts[0]), done[0])
    return done[1]


def _experts(npu: Rank, case: Case, exchange: Exchange, dispatched: Event) -> Event:
    npu.wait(dispatched)
    with npu.scope(micro_batch=exchange.number):
        exchange.experts()
    return npu.record()


def finalize(npu: Rank, case: Case, layer: int, number: int, tokens: int, combined: Event | None) -> None:
    """C waits for a combine and adds its experts' rows; nothing to do before the first MoE layer."""
    if combined is not None:
        npu.wait(combined)
        with npu.scope(layer=layer, micro_batch=number):
            launch(npu, moe.finalize_routing(case.shapes, tokens))


def _prompts(npu: Rank) -> tuple[int, ...]:
    """Those of this rank."""
    prompts = npu.coordinate("prompts")
    assert isinstance(prompts, tuple)
    return prompts


DATA_PARALLEL = Workload(data_parallel, groups, coordinates, data_parallel_memory, measures)
MICRO_BATCH = Workload(micro_batch, groups, coordinates, data_parallel_memory, measures)
