"""The kernel families of a machine's file: a law each, and its numbers. What they cost is said in `kernels`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from simulator.spec.typed_toml import TomlTable
from simulator.units import Bytes, PositiveCount, Ratio, Seconds, Share


class _Kernel(TomlTable):
    """What every kernel family has.

    cores: per unit, the pool that computes first. unoverlapped: the share of the shorter of compute and memory time
    that a kernel of one wave of tiles does not overlap (0 is the ideal roofline; more waves share it). compute_share,
    hbm_share: how much of the peaks of its engine and of HBM such a kernel can ask for at most, with all cores (left
    out: all of it). prologue: the part of its floor that needs nothing from the kernel before it (left out: none).
    """

    cores: dict[str, PositiveCount] = Field(min_length=1)
    floor: Seconds
    unoverlapped: Share
    compute_share: Share | None = None
    hbm_share: Share | None = None
    prologue: Seconds | None = None


class GemmKernel(_Kernel):
    """(Grouped) matrix products in output tiles of tile_m x tile_n; `serial_per_k` is latency per element of K.

    granule: tiles are cut to multiples of it where there are few rows or few tiles (left out: whole tiles only).
    tile_ramp: elements of K that filling and draining a tile's loop takes as long as (left out: none).
    split_k: elements of K that `serial_per_k` counts at most, as longer loops are split over cores (left out: all).
    per_row, per_group, per_slot: latency for each row, each group that has rows, and each group at all, where a kernel
    also sorts rows by group and sums what comes back (left out: none).
    """

    law: Literal["gemm"]
    serial_per_k: Seconds
    tile_m: PositiveCount
    tile_n: PositiveCount
    granule: PositiveCount | None = None
    tile_ramp: PositiveCount | None = None
    split_k: PositiveCount | None = None
    per_row: Seconds | None = None
    per_group: Seconds | None = None
    per_slot: Seconds | None = None


class AttentionKernel(_Kernel):
    """Attention in strips of tile_m rows (queries, or queries x heads that share their keys).

    score_bytes cross L2 per element of the score matrix. tile_keys: keys are split over cores in pieces of so many.
    split_waves: instead, the keys of every strip are split in as many pieces as fit this many waves of all cores, at
    least one, and a wave lasts as long as its longest piece. plan_keys: instead, keys are shared out over the cores
    before the kernel starts, in pieces of multiples of so many (`key_plan`).
    """

    law: Literal["attention"]
    tile_m: PositiveCount
    score_bytes: Ratio
    tile_keys: PositiveCount | None = None
    split_waves: PositiveCount | None = None
    plan_keys: PositiveCount | None = None


class VectorKernel(_Kernel):
    """Element-wise work, norms, sorting: bytes, and arithmetic of the vector cores, in pieces of `tile_bytes`.

    per_row, per_group, per_slot: as those of a GemmKernel, where it sorts rows by group.
    """

    law: Literal["vector"]
    tile_bytes: Bytes
    per_row: Seconds | None = None
    per_group: Seconds | None = None
    per_slot: Seconds | None = None


class FusedKernel(_Kernel):
    """Several kernels in one launch: what they compute and move adds up, but there is one floor."""

    law: Literal["fused"]


KernelSpec: TypeAlias = Annotated[
    GemmKernel | AttentionKernel | VectorKernel | FusedKernel, Field(discriminator="law")
]
