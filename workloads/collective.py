"""One collective after the other and nothing else: what benchmarks of collectives run."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from simulator.errors import InputError
from simulator.program.rank import Rank
from simulator.program.task import ALGORITHMS, Collective
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload


class Buffer(Part):
    """Bytes of the whole buffer of a rank: what it sends (All2All, ReduceScatter, AllReduce) or gathers."""

    kib: int = Field(64, gt=0)
    repeats: int = Field(4, gt=0)


class Knobs(Part):
    """Which collective, what drives it, and how it goes about it."""

    kind: str = Field("all_gather", description="all_to_all, all_gather, reduce_scatter or all_reduce")
    engine: str = Field("aiv", description="what drives the collective: an engine of the machine")
    algorithm: str = Field("direct", description="direct, ring, hierarchical, pairwise, one_shot, nvls or auto")


Case = scenario.Case[Buffer, scenario.Layout, Knobs]


def again_and_again(npu: Rank, case: Case) -> None:
    """Each begins when the one before has ended."""
    npu.program.captured = True
    kinds = [kind for kind in ALGORITHMS if kind in ("all_to_all", "all_gather", "reduce_scatter", "all_reduce")]
    if case.knobs.kind not in kinds:
        raise InputError(f"knobs.kind is '{case.knobs.kind}': it is one of {', '.join(kinds)}")
    for number in range(case.batch.repeats):
        npu.launch(collective_of(case), f"collective {number}")


def collective_of(case: Case) -> Collective:
    """Among all ranks; a shard of the buffer for each, but for an AllReduce."""
    size = case.batch.kib * 1024
    each = size if case.knobs.kind == "all_reduce" else -(-size // case.ranks)
    return Collective(case.knobs.kind, "world", case.knobs.engine, each, algorithm=case.knobs.algorithm)


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Latency of one, and the bus bandwidth of NCCL's tests: what a rank puts on the wire at least, by time."""
    rounds = 2 if case.knobs.kind == "all_reduce" else 1
    each_s, wire_bytes = seconds / case.batch.repeats, rounds * case.batch.kib * 1024 * (case.ranks - 1) / case.ranks
    return {"latency_us": each_s * 1e6, "bus_gb_s": wire_bytes / each_s / 1e9}


def memory(case: Case) -> list[MemoryItem]:
    """What is sent and what has come."""
    return [("buffers", "communication", 2 * 1024.0 * case.batch.kib)]


COLLECTIVES = Workload(again_and_again, memory=memory, measures=measures)
