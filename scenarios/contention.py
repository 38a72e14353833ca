"""Atlas A3: how much a saturating collective slows compute that shares nothing but memory with it.

The two published figures fit the memory traffic of collectives, which every other scenario then uses unchanged.
"""

from __future__ import annotations

from simulator.scenario import Expected, Layout, Scenario
from workloads.contention import GEMM_BESIDE_ALL_GATHER, Knobs, Operands

SOURCE = "STRATA, arXiv 2607.26444: compute beside a saturating collective"


def staging() -> Scenario:
    """A collective that copies through staging buffers (HCCL) beside GEMMs."""
    return Scenario(
        title="Atlas A3: GEMMs beside an AllGather with staging copies",
        machine="atlas_a3",
        model="deepseek_r1",
        kernels="cann_recipes_2025",
        cards=16,
        batch=Operands(),
        layout=Layout(),
        knobs=Knobs(engine="aiv"),
        workload=GEMM_BESIDE_ALL_GATHER,
        expected=(
            Expected(id="a3.contention.staging", metric="compute_stretch", value=1.25, role="fit",
                     note=f"{SOURCE} with staging copies is 25% slower"),
        ),
    )  # fmt: skip


def zero_copy() -> Scenario:
    """A zero-copy collective beside GEMMs."""
    return staging().variant(
        title="Atlas A3: GEMMs beside a zero-copy AllGather",
        knobs=Knobs(engine="aiv_zero_copy"),
        expected=(
            Expected(id="a3.contention.zero_copy", metric="compute_stretch", value=1.13, role="fit",
                     note=f"{SOURCE} with zero copy is 13% slower"),
        ),
    )  # fmt: skip
