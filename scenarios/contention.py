"""Atlas A3: how much a saturating collective slows compute that shares nothing but memory with it.

The two published figures fit the memory traffic of collectives, which every other scenario then uses unchanged.
"""

from __future__ import annotations

from simulator.study.scenario import Layout, Scenario, Source
from workloads.contention import GEMM_BESIDE_ALL_GATHER, Knobs, Operands

_expect = Source("STRATA, arXiv 2607.26444: compute beside a saturating collective").expects


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
            _expect("a3.contention.staging", "compute_stretch", 1.25, " with staging copies is 25% slower", "fit"),
        ),
    )  # fmt: skip


def zero_copy() -> Scenario:
    """A zero-copy collective beside GEMMs."""
    return staging().variant(
        title="Atlas A3: GEMMs beside a zero-copy AllGather",
        knobs=Knobs(engine="aiv_zero_copy"),
        expected=(
            _expect("a3.contention.zero_copy", "compute_stretch", 1.13, " with zero copy is 13% slower", "fit"),
        ),
    )  # fmt: skip
