"""From measurements to the numbers of a machine: what the chip reaches, and the laws of its kernel families.

The laws and the search are those of `calibrate`; here they get one table each, measured on this device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from statistics import median
from typing import Any, NamedTuple

from simulator import np
from simulator.calibrate.library import covered
from simulator.calibrate.library_families import attention_family, product_family
from simulator.calibrate.library_fit import Family, Found, Numbers, fit
from simulator.calibrate.library_tables import Columns
from simulator.calibrate.library_toml import Table
from simulator.die.kernels import ELEMENT_BYTES
from simulator.model.library_kernels import QUANTISATIONS
from simulator.probe.kernel import Kernel
from simulator.probe.record import Record
from simulator.spec.machine import ChipSpec

FEWEST_ROWS = 8  # of a family that is fitted
WIDEST_TILE = 256
FROM_HBM = 2.0  # times L2: what moves more than that comes from HBM
DECODE_BYTES = 4 * 2**20
VECTOR_START = {"floor": 2e-6, "hbm_share": 0.8}


class Timed(NamedTuple):
    """A kernel, and how long it took with the device to itself."""

    kernel: Kernel
    seconds: float


class Reached(NamedTuple):
    """The most that any kernel reached. flops_per_s: by data type. core_bytes_per_s: one SM through L2."""

    flops_per_s: dict[str, float]
    hbm_bytes_per_s: float
    l2_bytes_per_s: float
    core_bytes_per_s: float


@dataclass(frozen=True)
class FamilyFit:
    """A kernel family: what was found and how it is written, or why nothing was."""

    name: str
    found: Found | None = None
    table: Table | None = None
    why: str = ""


def timed(record: Record) -> list[Timed]:
    """Every kernel that was measured alone in a captured graph: the median of its repeats."""
    rows = record.measured("gemm", "attention", "copy")
    return [Timed(Kernel.of(row["kernel"]), median(row["seconds"])) for row in rows]


def in_streams(record: Record) -> list[Timed]:
    """Every kernel of a stream that had the device to itself: the median of all but the first."""
    found = []
    for row in record.measured("streams"):
        for kernels, repeats in zip(row["streams"], row["alone"], strict=True):
            times = [end - start for timeline in repeats for start, end in timeline[1:] or timeline]
            found.append(Timed(Kernel.of(kernels[0]), median(times)))
    return found


def reached(record: Record) -> Reached | None:
    """The most that kernels reached, alone; None where no product and nothing that streams through HBM was measured."""
    l2_bytes, evidence = record.about.l2_bytes, [*timed(record), *in_streams(record)]
    flops: dict[str, float] = {}
    for kernel, seconds in evidence:
        if kernel.is_product:
            flops[kernel.dtype] = max(flops.get(kernel.dtype, 0.0), kernel.flops / seconds)
    cold = [kernel.hbm_bytes(l2_bytes) / seconds for kernel, seconds in evidence
            if kernel.hbm_bytes(l2_bytes) >= FROM_HBM * l2_bytes]  # fmt: skip
    if not flops or not cold:
        return None
    loops = [(kernel, kernel.moved_bytes / seconds) for kernel, seconds in evidence
             if kernel.family == "copy_loop" and kernel.hbm_bytes(l2_bytes) < kernel.moved_bytes]  # fmt: skip
    rereads = [_reread_bytes(kernel) / seconds for kernel, seconds in evidence if kernel.is_product]
    l2_rate = max(*rereads, *cold, *(rate for _, rate in loops))
    core_rate = max((rate / kernel["blocks"] for kernel, rate in loops), default=l2_rate / record.about.sms)
    return Reached(flops, max(cold), l2_rate, core_rate)


def _reread_bytes(kernel: Kernel) -> float:
    """What a product reads and writes through L2 in the widest tiles."""
    m, n, k = kernel.sizes
    element = ELEMENT_BYTES[kernel.dtype]
    return element * k * (m * ceil(n / WIDEST_TILE) + n * ceil(m / WIDEST_TILE)) + 2.0 * m * n


def families(record: Record, chip: ChipSpec) -> Iterator[FamilyFit]:
    """Every kernel family that enough of was measured."""
    kernels = timed(record)
    for name in ("vector", "gemm_bf16", "gemm_fp8", "context_attention", "generation_attention"):
        own = [one for one in kernels if one.kernel.family == ("elementwise" if name == "vector" else name)]
        least = FEWEST_ROWS if name != "vector" else 3
        if len(own) < least:
            yield FamilyFit(name, why=f"left out: {len(own)} measurements, {least} are needed")
            continue
        family = _family(name, own, chip)
        found = fit(family)
        yield FamilyFit(name, found, _table(name, family, found, record.source))


def _family(name: str, own: list[Timed], chip: ChipSpec) -> Family:
    seconds = np.array([one.seconds for one in own])
    sizes = np.array([one.kernel.sizes for one in own], dtype=float).T
    if name == "vector":
        moved = np.array([one.kernel.moved_bytes for one in own])
        law = partial(_vector_s, chip)
        return Family(name, {"bytes": moved, "seconds": seconds}, law, VECTOR_START, ("floor", "hbm_share"), (), moved,
                      moved <= DECODE_BYTES)  # fmt: skip
    if name.startswith("gemm_"):
        columns = dict(zip(("m", "n", "k"), sizes, strict=True))
        return _cold(product_family({**columns, "seconds": seconds}, chip, QUANTISATIONS[own[0].kernel.dtype]))
    prompt = name == "context_attention"
    batch, tokens, heads, kv_heads, head_dim = sizes
    queries = tokens if prompt else np.ones_like(tokens)
    columns = {"batch_size": batch, "isl": queries, "step": tokens - queries, "num_heads": heads,
               "kv_heads": kv_heads, "head_dim": head_dim, "window_size": np.zeros_like(batch),
               "seconds": seconds}  # fmt: skip
    return _cold(attention_family(columns, chip, "bf16", prompt))


def _cold(family: Family) -> Family:
    """Without the alternatives in which operands lie in L2: they were kept out of it. Nothing but tiles is tried."""
    tried = tuple(one for one in family.alternatives if not one.get("warm"))
    free = tuple(name for name in family.free if name != "input_rate")
    return replace(family, alternatives=tried, free=free,
                   start={name: value for name, value in family.start.items() if name != "input_rate"})  # fmt: skip


def _vector_s(chip: ChipSpec, columns: Columns, v: Numbers) -> Any:
    rate = min(chip.l2.rate.si, chip.hbm.peak.si * chip.hbm.efficiency.si, chip.hbm.peak.si * v["hbm_share"])
    return v["floor"] + columns["bytes"] / rate


def _table(name: str, family: Family, found: Found, source: str) -> Table:
    law = {"vector": "vector", "gemm": "stream_gemm"}.get(name.partition("_")[0], "split_attention")
    comment = "; ".join(f"{key} {error}" for key, error in found.errors.items())
    rows = len(family.columns["seconds"])
    covers = "" if law == "vector" else covered(family.columns)
    return Table(name, law, found.numbers, source, f"{rows} measurements, operands not in L2", covers, comment)
