"""A GEMM beside a collective that saturates the bus: the kernel-level figure that contention is fitted on.

The collective is launched first and lasts longer than the GEMMs, which run on cube cores alone, so that nothing but
memory is shared: how much longer they take is how much of L2 and HBM the collective takes from them.
"""

from __future__ import annotations

from pydantic import Field

from simulator.model import ops
from simulator.program.rank import Rank
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload


class Operands(Part):
    """Square GEMMs in BF16 of `size` rows, columns and depth."""

    size: int = Field(4096, gt=0)
    gemms: int = Field(8, gt=0)


class Knobs(Part):
    """What runs beside the GEMMs."""

    engine: str = Field("aiv", description="what drives the collective: an engine of the machine")
    collective_mib: int = Field(1024, gt=0, description="size of the gathered buffer")


Case = scenario.Case[Operands, scenario.Layout, Knobs]


def gemm_beside_all_gather(npu: Rank, case: Case) -> None:
    """An AllGather on its own stream; GEMMs start once it is under way."""
    size, world = case.batch.size, npu.group("world")
    with npu.stream("comm"):
        world.all_gather("all_gather", case.knobs.collective_mib * 2**20 // world.size, case.knobs.engine)
    for number in range(case.batch.gemms):
        npu.launch(ops.gemm(size, size, size, dtype="bf16"), f"gemm {number}")


def memory(case: Case) -> list[MemoryItem]:
    """Operands and buffers."""
    square = 2 * case.batch.size**2
    return [
        ("operands", "activations", 3 * square),
        ("gathered buffer", "communication", case.knobs.collective_mib * 2**20),
    ]


GEMM_BESIDE_ALL_GATHER = Workload(gemm_beside_all_gather, memory=memory)
