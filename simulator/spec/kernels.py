"""The kernel families of a machine's file: a law each, and its numbers. What they cost is said in `die.kernels`.

Families come in software generations: a machine's own, and those that are another one with longer latencies. The
tables of measured kernels are those of one release. An older release of the same library moves bytes as fast, but its
kernels begin and end more slowly: every floor, every serial step along K and every step per row or group takes
`latency_factor` times as long, and so does the start-up of the library's own collectives. Kernels of other libraries
that have not changed since, and those that were measured in the older release itself, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import Field

from simulator.spec.typed_toml import TomlTable
from simulator.units import Bytes, BytesPerSecond, PositiveCount, PositiveShare, Quantity, Ratio, Seconds, Share

Kernel = TypeVar("Kernel", bound=TomlTable)
_RANGES = r"[a-z_]+ [0-9]+\.\.[0-9]+(, [a-z_]+ [0-9]+\.\.[0-9]+)*"
Covers: TypeAlias = Annotated[str, Field(pattern=rf"^{_RANGES}$")]
LATENCIES = ("floor", "serial_per_k", "per_row", "per_group", "per_slot", "startup", "startup_eager", "tile_latency",
             "combine", "per_query")  # fmt: skip


class _Kernel(TomlTable):
    """What every kernel family has.

    cores: per unit, the pool that computes first. floor: latency of a launch inside the device (left out: none, it is
    a phase of the kernel before it). unoverlapped: the share of the shorter of compute and memory time that a kernel
    of one wave of tiles does not overlap (left out: none, the ideal roofline; more waves share it). compute_share,
    hbm_share: how much of the peaks of its engine and of HBM such a kernel can ask for at most, with all cores (left
    out: all of it). prologue: the part of its floor that needs nothing from the kernel before it (left out: none).
    covers: sizes of the table that it was fitted on, as "m 1..32768, n 128..65536" (see `die.coverage`).
    """

    cores: dict[str, PositiveCount] = Field(min_length=1)
    floor: Seconds | None = None
    unoverlapped: Share | None = None
    compute_share: PositiveShare | None = None
    hbm_share: PositiveShare | None = None
    prologue: Seconds | None = None
    covers: Covers | None = None

    @property
    def floor_s(self) -> float:
        """Its floor in seconds; 0 where it has none."""
        return self.floor.si if self.floor else 0.0


class GemmKernel(_Kernel):
    """(Grouped) matrix products in output tiles of tile_m x tile_n; `serial_per_k` is latency per element of K
    (left out: none).

    granule: tiles are cut to multiples of it where there are few rows or few tiles (left out: whole tiles only).
    tile_ramp: elements of K that filling and draining a tile's loop takes as long as (left out: none).
    split_k: elements of K that `serial_per_k` counts at most, as longer loops are split over cores (left out: all).
    per_row, per_group, per_slot: latency for each row, each group that has rows, and each group at all, where a kernel
    also sorts rows by group and sums what comes back (left out: none).
    """

    law: Literal["gemm"]
    serial_per_k: Seconds | None = None
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

    score_bytes cross L2 per element of the score matrix (left out: none, scores stay in the core). tile_keys: keys are
    split over cores in pieces of so many. plan_keys: instead, keys are shared out over the cores before the kernel
    starts, in pieces of multiples of so many (`key_plan`).
    """

    law: Literal["attention"]
    tile_m: PositiveCount
    score_bytes: Ratio | None = None
    tile_keys: PositiveCount | None = None
    plan_keys: PositiveCount | None = None


class StreamGemmKernel(_Kernel):
    """(Grouped) products whose output tiles any number of cores share; `die.tiles` has the law and its numbers.

    port_share: of what its cores can read from L2. input_rate: input elements a second that a pass before the product
    quantises (left out: none). least_tile: tiles are as high as the mean rows of a group, in powers of two from here to
    tile_m (left out: tile_m, of which rows pay for multiples of granule). stream_k, tile_ramp, split_k: elements of K
    (left out: whole loops, none, all).
    """

    law: Literal["stream_gemm"]
    tile_m: PositiveCount
    tile_n: PositiveCount
    granule: PositiveCount
    least_tile: PositiveCount | None = None
    stream_k: PositiveCount | None = None
    tile_ramp: Ratio | None = None
    serial_per_k: Seconds | None = None
    split_k: PositiveCount | None = None
    input_rate: Ratio | None = None
    port_share: Ratio | None = None


class SplitAttentionKernel(_Kernel):
    """Attention in strips of tile_m rows whose keys are split over cores; `die.tiles` has the law and its numbers.

    sharing: query heads of one key head that one strip holds at most (left out: all). tile_keys: keys are read in
    multiples of it. split_keys: a piece has so many keys or more (left out: keys are not split). combine: latency where
    they are. tile_latency: of a piece. tile_ramp: keys that filling and draining a piece takes as long as.
    softmax_dims: elements of the head size that softmax takes as long as. per_query: latency of a query token.
    """

    law: Literal["split_attention"]
    tile_m: PositiveCount
    granule: PositiveCount
    sharing: PositiveCount | None = None
    tile_keys: PositiveCount | None = None
    split_keys: PositiveCount | None = None
    combine: Seconds | None = None
    tile_latency: Seconds | None = None
    tile_ramp: Ratio | None = None
    softmax_dims: Ratio | None = None
    per_query: Seconds | None = None
    port_share: Ratio | None = None


class VectorKernel(_Kernel):
    """Element-wise work, norms, sorting: bytes, and arithmetic of the vector cores, in pieces of `tile_bytes`
    (left out: those of the chip), which only decide how many cores a small kernel asks for.

    per_row, per_group, per_slot: as those of a GemmKernel, where it sorts rows by group.
    """

    law: Literal["vector"]
    tile_bytes: Bytes | None = None
    per_row: Seconds | None = None
    per_group: Seconds | None = None
    per_slot: Seconds | None = None


class LoopKernel(_Kernel):
    """Thread blocks that stay, and take rows in turns: the kernels that exchange tokens (see `die.kernels`).

    turn: of a row, in which a unit does nothing else. rate: what a unit passes on (left out: as fast as memory).
    chunk: rows of a unit that are passed on together, the first of which nothing overlaps (left out: none).
    serial_per_k: of an element of a row, which one warp works on. warps: of a unit, with a row each.
    """

    law: Literal["loop"]
    turn: Seconds
    rate: BytesPerSecond | None = None
    chunk: PositiveCount | None = None
    serial_per_k: Seconds | None = None
    warps: PositiveCount | None = None


class FusedKernel(_Kernel):
    """Several kernels in one launch: what they compute and move adds up, but there is one floor."""

    law: Literal["fused"]


KernelSpec: TypeAlias = Annotated[
    GemmKernel | AttentionKernel | StreamGemmKernel | SplitAttentionKernel | VectorKernel | LoopKernel | FusedKernel,
    Field(discriminator="law")]  # fmt: skip


class DerivedGeneration(TomlTable):
    """A generation whose kernels are those of `base`, but for their latencies.

    collectives: engines of the library, which start more slowly too. unchanged: families that stay as they are.
    """

    base: str
    latency_factor: Ratio
    collectives: list[str] = Field(default_factory=list)
    unchanged: list[str] = Field(default_factory=list)


def families_of(name: str, kernels: Mapping[str, dict[str, Kernel]],
                derived: Mapping[str, DerivedGeneration]) -> dict[str, Kernel]:
    """The kernel families of a generation by name; KeyError if there is none."""
    if name in kernels:
        return kernels[name]
    older = derived[name]
    factor, kept = older.latency_factor.si, older.unchanged
    return {family: kernel if family in kept else _slower(kernel, factor)
            for family, kernel in kernels[older.base].items()}  # fmt: skip


def engines_of(engines: Mapping[str, Kernel], older: DerivedGeneration) -> dict[str, Kernel]:
    """What drives collectives in a derived generation."""
    own, factor = older.collectives, older.latency_factor.si
    return {name: _slower(engine, factor) if name in own else engine for name, engine in engines.items()}


def base_of(name: str, derived: Mapping[str, DerivedGeneration]) -> str:
    """The generation whose families the machine's file lists."""
    return derived[name].base if name in derived else name


def _slower(kernel: Kernel, factor: float) -> Kernel:
    given = {field: getattr(kernel, field, None) for field in LATENCIES}
    return kernel.model_copy(update={field: _times(one, factor) for field, one in given.items() if one is not None})


def _times(quantity: Quantity, factor: float) -> Quantity:
    return Quantity(**{**quantity.model_dump(), "value": quantity.value * factor})
