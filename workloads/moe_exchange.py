"""Dispatch and combine step after step, with nothing in between: what a benchmark of MoE kernels runs.

Any exchange that works on rows of network cards (`simulator/parallel/exchange`); every rank has as many tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import Field

from simulator.live.host import Host
from simulator.live.thread import HostProcess
from simulator.model.layout import blocks
from simulator.model.transformer import experts_of
from simulator.parallel.border import Engines
from simulator.parallel.exchange.copies import Copies, copies_of
from simulator.parallel.exchange.deepep_normal import NormalSettings, check_sms
from simulator.parallel.exchange.generic_proxy import GenericSettings
from simulator.parallel.exchange.proxy import ProxySettings
from simulator.parallel.exchange.rows import buffers
from simulator.parallel.exchange.task import ExchangeSettings, ExpertTask
from simulator.parallel.exchange.ways import EXCHANGES, HOSTS
from simulator.parallel.mesh import Mesh
from simulator.parallel.routed import drawn_by_step
from simulator.program.rank import Rank
from simulator.stack.pplx import STACK
from simulator.study import scenario
from simulator.study.readings import between_us, hops, span_us
from simulator.study.scenario import MemoryItem, Part, Workload

FP8 = 1.0 + 4.0 / 128  # bytes of an element with its share of a scale


class Tokens(Part):
    """Tokens of every rank in one step, and how many steps follow each other."""

    per_rank: int = Field(128, gt=0)
    steps: int = Field(1, gt=0)


Knobs = ProxySettings
GenericKnobs = GenericSettings
ReducingKnobs = NormalSettings
Case = scenario.Case[Tokens, scenario.Layout, Any]


def task_of(npu: Rank, case: Case, name: str, step: int) -> ExpertTask:
    """One step of an exchange on one rank. Where all experts are as popular, copies per node go by expectation."""
    ranks, skew = case.ranks, case.routing.skew
    skew = (skew or None) if name == "deepep_normal" else skew
    settings = ExchangeSettings(name, "" if name.startswith("deepep") else "nvlink", skew, case.seed,
                                draw=drawn_by_step, own=case.knobs, node=case.node_ranks)
    return ExpertTask(npu, STACK, case.model, experts_of(case.model, ranks), Mesh(dp=ranks, ep=ranks),
                      Engines("nvlink"), settings, step, 0, (case.batch.per_rank,) * ranks)


def program(npu: Rank, case: Case, name: str) -> None:
    """Step after step, as one captured graph."""
    npu.program.captured = True
    for step in range(case.batch.steps):
        with npu.scope(layer=step):
            exchange = EXCHANGES[name](task_of(npu, case, name, step))
            exchange.dispatch()
            exchange.arrive()
            exchange.combine()
            exchange.collect()


def hosts(host: Host, case: Any, name: str) -> HostProcess:
    """What posts the writes."""
    yield from HOSTS[name](host)


def nodes(case: Any) -> Mapping[str, list[tuple[int, ...]]]:
    """The GPUs of each node."""
    return {"node": blocks(case.ranks, min(case.node_ranks, case.ranks), "cards: GPUs of whole nodes")}


# --- rows -------------------------------------------------------------------------------------------------------------


def row_memory(case: Case) -> list[MemoryItem]:
    """Buffers of the exchange: private ones per sender, and one for everything that may come."""
    experts = experts_of(case.model, case.ranks)
    return buffers(experts, case.model.hidden, case.ranks, case.batch.per_rank, case.knobs.private_tokens)


def row_readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Latency of dispatch and combine on an average rank, and where that of the slowest rank went, hop by hop."""
    dispatch = span_us(columns, "dispatch.count", "dispatch.shuffle")
    combine = span_us(columns, "combine.pack", "combine.sum")
    node, tasks = case.node_ranks, [task_of(Rank({}, {}), case, "", step) for step in range(case.batch.steps)]
    rows = [task.routed(task.own).sizes(1.0) for task in tasks]
    inside = sum(count for table in rows for source, row in enumerate(table) for target, count in enumerate(row)
                 if source // node == target // node)
    return {
        "dispatch_us": dispatch, "combine_us": combine, "dispatch_combine_us": dispatch + combine,
        "nvlink_share": inside / sum(sum(row) for table in rows for row in table),
        **{f"dispatch_hop_{name}_us": time for name, time in hops(columns, "dispatch.shuffle").items()},
        **{f"combine_hop_{name}_us": time for name, time in hops(columns, "combine.sum").items()},
    }  # fmt: skip


def _rows_by(name: str) -> Workload:
    return Workload(partial(program, name=name), nodes, memory=row_memory,
                    live=partial(hosts, name=name), readings=row_readings)


DISPATCH_COMBINE = _rows_by("proxy")
GENERIC = _rows_by("generic_proxy")
GPU_INITIATED = _rows_by("deepep_ll")


# --- copies per node, and sums ----------------------------------------------------------------------------------------


def copy_groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """The GPUs of each node, whose chips have more SMs than a kernel holds."""
    check_sms("knobs.sms", case.knobs, case.machine, case.cores)
    return nodes(case)


def copies(case: Case) -> Copies:
    """Of the first rank."""
    task = task_of(Rank({}, {}), case, "deepep_normal", 0)
    return copies_of(task.routed(task.own), task, 0, case.knobs)


def copy_memory(case: Case) -> list[MemoryItem]:
    """What leaves in one exchange, and what has come to be passed on: whole, the chunks' buffers are smaller."""
    found, row_bytes = copies(case), 2 * case.model.hidden
    return [("send buffer", "communication", found.returning * row_bytes),
            ("receive buffer", "communication", found.inside.leaving * row_bytes)]


def copy_readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Both times on an average rank, and DeepEP's bandwidth: copies to nodes, their own too, with scales, over time."""
    dispatch_us = between_us(columns, "dispatch.count", "dispatch.copy", "dispatch.nvlink")
    combine_us = between_us(columns, "combine.count", "combine.reduce", "combine.nvlink", "combine.sum")
    elements = copies(case).returning * case.model.hidden
    return {
        "dispatch_us": dispatch_us, "combine_us": combine_us, "dispatch_combine_us": dispatch_us + combine_us,
        "dispatch_rdma_gb_s": elements * FP8 / dispatch_us / 1e3,
        "combine_rdma_gb_s": elements * 2 / combine_us / 1e3,
    }  # fmt: skip


REDUCING = Workload(partial(program, name="deepep_normal"), copy_groups, memory=copy_memory,
                    live=partial(hosts, name="deepep_normal"), readings=copy_readings)
