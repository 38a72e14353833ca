"""Parts of CloudMatrix384's decode alone.

* `exchanges`: dispatch and combine of one layer, over and over, for the latency of the fused kernels.
* `attentions`: nothing but the attention kernels on the attention stream's cores: the theoretical bound in which
  MLA hides everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulator.parallel.exchange.put_collect import PutCollect
from simulator.program.rank import Rank
from simulator.study.scenario import MemoryItem, Workload
from workloads.ascend_decode import experts_of, model_of, passes
from workloads.cm384_decode import (
    ATTENTION,
    Case,
    coordinates,
    die,
    groups,
    measures,
    memory,
    partition,
    stack_of,
    whole,
)
from workloads.readings import span_us

EXCHANGES = 20


def exchanges(npu: Rank, case: Case) -> None:
    """Dispatches and combines of whole iterations' tokens, one after the other: with drawn routing, or each die getting
    as much as it sends."""
    npu.program.captured = True
    model, tokens = model_of(case), whole(case, case.batch.queries)
    step = die(npu, case, stack_of(case), range(len(model.layers)), model.layers)
    experts, tokens.batch = experts_of(model), replace(tokens.batch, number=0)
    if case.routing.skew is None:
        even = replace(experts, routed=step.mesh.ep, per_token=experts.per_token + 1)
        experts, step.mesh = even, step.mesh.model_copy(update={"shared_places": 0})
    for layer in range(EXCHANGES):
        exchange = PutCollect(step.task(tokens, experts, layer))
        with npu.scope(layer=layer):
            exchange.dispatch()
            exchange.combine()


def attentions(npu: Rank, case: Case) -> None:
    """Every layer's attention kernel, MTP layer included."""
    npu.program.captured = True
    partition(npu, case)
    model, stack = model_of(case), stack_of(case)
    batch = whole(case, case.batch.queries).batch
    with npu.stream(ATTENTION):
        for numbers, layers, _ in passes(case, model):
            for number, layer in zip(numbers, layers, strict=True):
                kernels = stack.attend(model, layer.attention, batch, 1, 1)
                with npu.scope(layer=number):
                    npu.launch(dict(kernels)["attention.core"], "attention.core")


def exchange_memory(case: Case) -> list[MemoryItem]:
    """Nothing but the buffers of dispatch and combine."""
    return [item for item in memory(case) if item[1] == "communication"]


def exchange_readings(_: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Each of the two, from its start to the last arrival."""
    return {f"{name}_us": span_us(columns, f"{name}.write", f"{name}.arrive") for name in ("dispatch", "combine")}


def exchange_measures(_: Case, seconds: float) -> Mapping[str, float]:
    """Latency of a dispatch and a combine together."""
    return {"dispatch_combine_us": seconds / EXCHANGES * 1e6}


EXCHANGE = Workload(exchanges, groups, coordinates, exchange_memory, exchange_measures, readings=exchange_readings)
BOUND = Workload(attentions, groups, coordinates, memory, measures)
