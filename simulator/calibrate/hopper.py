"""Fits the kernel families and NCCL bandwidth curves of H20 and H800 on public tables.

They are read as infersim/KIND.CHIP.*.csv (alibaba/InferSim at f2293da, bench_data) and aiconfigurator/CHIP.KIND.*
.parquet (ai-dynamo/aiconfigurator at 095f58a, systems/data). A family is fitted by coordinate descent on the mean of
|log(simulated / measured)| over its own law (ideal roofline); tiles are tried one after the other. The machine files
`topologies/h20_node.toml` and `topologies/h800_cluster.toml` keep what came out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, log
from pathlib import Path
from statistics import mean
from typing import Any

from simulator.calibrate.kernel_tables import (
    Finding,
    Fit,
    KernelTable,
    Misfit,
    aiconfigurator,
    infersim_gemm,
    infersim_grouped,
    infersim_mla_decode,
    infersim_mla_prefill,
    misfit,
    solo_s,
)
from simulator.die.kernels import Work, cost_of
from simulator.model import ops
from simulator.model.choices import chosen_rows
from simulator.model.layout import split
from simulator.model.library import load_transformer
from simulator.model.transformer import Experts, with_precision
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec
from simulator.stack.sglang_2025 import STACK
from simulator.units import Quantity

GENERATION = "sglang_2025"
Numbers = dict[str, Any]
L2_BYTES = 50e6  # of H100 and H800
MOE = "h100_sxm.moe.trtllm.1.3.0rc20.moe_perf.parquet"
OF_R1 = {"hidden_size": 7168, "inter_size": 2048, "num_experts": 256, "topk": 8, "moe_dtype": "fp8_block"}
SLICES, WHOLE = ((8, 1),), ((1, 8), (1, 16), (1, 32))  # how many ways experts are cut, and shared out
STEPS = (0.7, 0.8, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.2, 1.4)
TILES = ((64, 32, None), (64, 64, None), (64, 128, None), (128, 128, 64), (64, 128, 64), (128, 128, 16), (128, 256, 64))


FIELDS = {
    "floor": "floor", "sk": "serial_per_k", "un": "unoverlapped", "cs": "compute_share", "hs": "hbm_share",
    "tm": "tile_m", "tn": "tile_n", "gr": "granule", "ramp": "tile_ramp", "pk": "plan_keys",
}  # fmt: skip
"""Of a kernel family in a machine's file, by the short names of numbers; granule and ramp may be left out."""


@dataclass(frozen=True)
class KernelFamily:
    """A kernel family to fit: of which machine, how its table is read, where to start, which numbers are free and which
    tiles to try."""

    machine: str
    name: str
    read: Callable[[Path], KernelTable]
    start: Numbers
    free: tuple[str, ...]
    tiles: tuple[tuple[int, int, int | None], ...] = ()

    @cached_property
    def spec(self) -> MachineSpec:
        """The machine as its file has it."""
        return load_machine(self.machine)

    def misfit(self, numbers: Numbers, table: KernelTable) -> Misfit:
        """How far the family is from its table with these numbers in place of the file's."""
        kernel = self.spec.kernels[GENERATION][self.name]
        given = {FIELDS[name]: Quantity.model_construct(value=value, unit="1", kind="fitted", source="this search")
                 if value or name == "un" else None for name, value in numbers.items()}  # fmt: skip
        return misfit(self.spec.chip, kernel.model_copy(update=given), table)


def fit(family: KernelFamily, table: KernelTable) -> tuple[Numbers, Misfit]:
    """The best numbers over all tiles."""
    starts = [{**family.start, "tm": m, "tn": n, "gr": granule} for m, n, granule in family.tiles] or [family.start]
    return min((_descend(family, table, start) for start in starts), key=lambda found: found[1].loss)


def _descend(family: KernelFamily, table: KernelTable, best: Numbers) -> tuple[Numbers, Misfit]:
    found = family.misfit(best, table)
    for _ in range(8):
        before = found.loss
        for name in family.free:
            for value in _around(name, best[name]):
                other = family.misfit({**best, name: value}, table)
                if other.loss < found.loss:
                    best, found = {**best, name: value}, other
        if before - found.loss < 1e-5:
            break
    return best, found


def _around(name: str, value: float) -> list[float]:
    if name == "ramp":
        return [64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 1024, 0]
    near = [value * step for step in STEPS]
    return [min(each, 1.0) for each in near] if name in ("cs", "hs") else near


def grouped(folder: Path, chip: str) -> KernelTable:
    """Products of many experts, in decode and in prefill."""
    return infersim_grouped(folder, chip, "decode") + infersim_grouped(folder, chip, "prefill")


def families() -> tuple[KernelFamily, ...]:
    """All that is fitted."""
    gemm = {"floor": 3e-6, "sk": 2e-10, "cs": 0.8, "hs": 0.8, "un": 0.0, "ramp": 256}
    free = ("floor", "sk", "cs", "hs", "ramp")
    bound = ("floor", "sk", "cs", "ramp")  # H20: on 64-row tiles compute binds at every size; HBM's share shows nowhere
    planned = {"floor": 17e-6, "cs": 0.9, "hs": 0.7, "un": 0.0, "tm": 64, "pk": 256}
    flash = {"floor": 20e-6, "cs": 0.6, "hs": 1.0, "un": 0.0, "tm": 128}
    attention, bare = ("floor", "cs", "hs"), ("floor", "cs")  # compute binds everywhere on H20
    decode, prefill = (partial(infersim_mla_decode, family="m"), partial(infersim_mla_prefill, family="f"))
    small, large = "h20_node", "h800_cluster"
    return (
        KernelFamily(small, "gemm_fp8", partial(infersim_gemm, chip="h20"), gemm, bound, TILES[:3]),
        KernelFamily(small, "grouped_gemm_fp8", partial(grouped, chip="h20"), gemm, bound, TILES[:3]),
        KernelFamily(small, "mla_decode", partial(decode, chip="h20"), planned, bare),
        KernelFamily(large, "gemm_fp8", partial(infersim_gemm, chip="h800"), gemm, free, TILES[2:]),
        KernelFamily(large, "gemm_bf16", dense_bf16, gemm, free, TILES[2:]),
        KernelFamily(large, "batched_gemm_bf16", absorbed, gemm, free, TILES[1:]),
        KernelFamily(large, "grouped_gemm_fp8", partial(grouped, chip="h800"), gemm, free, TILES[2:]),
        KernelFamily(large, "mla_decode", partial(decode, chip="h800"), planned, attention),
        KernelFamily(large, "flash_attention", partial(prefill, chip="h800"), flash, bare),
    )


def dense_bf16(folder: Path) -> KernelTable:
    """BF16 GEMMs on H100, the H800's chip: sizes from 512 on, every seventh row (as many as tell the same)."""
    every = aiconfigurator(folder, "h100_sxm.gemm.trtllm.1.3.0rc20.gemm_perf.parquet", gemm_dtype="bfloat16")
    large = [row for row in every if min(row["n"], row["k"]) >= 512 and row["m"] <= 4096]
    return [(ops.gemm(row["m"], row["n"], row["k"], "bf16"), row["latency"] / 1e3) for row in large[::67]]


def absorbed(folder: Path) -> KernelTable:
    """The two absorbed up-projections of MLA, 128 heads, BF16, on H100.

    The table runs a product again and again: what fits L2 lies there (16.8 MB of weights take less than HBM's time).
    """
    table = "h100_sxm.mla_bmm.trtllm.1.3.0rc20.mla_bmm_perf.parquet"
    return [
        (left_in_l2(ops.batched_gemm(
            row["num_tokens"], 128, *((512, 128) if row["op_name"] == "mla_gen_pre" else (128, 512)))),
         row["latency"] / 1e3)
        for row in aiconfigurator(folder, table, bmm_dtype="bfloat16", num_heads=128) if row["num_tokens"] <= 2048
    ]  # fmt: skip


def left_in_l2(work: Work) -> Work:
    """A product that ran before, and left all that it reads and writes in L2 if there was room."""
    if work.hbm_bytes > 0.8 * L2_BYTES:
        return work
    return replace(ops.cached(work), weight_bytes=0.0, cached_bytes=work.hbm_bytes)


def bandwidth_curve(points: dict[int, float], startup_s: float) -> list[tuple[float, float]]:
    """(bytes per peer, bytes/s) from whole-message bytes and seconds on 8 GPUs; sizes within the start-up left out."""
    curve: list[tuple[float, float]] = []
    for size, seconds in sorted(points.items()):
        if seconds > 1.3 * startup_s:
            rate = 7 / 8 * size / (seconds - startup_s)
            curve.append((size / 8, max(rate, curve[-1][1] if curve else 0.0)))
    return curve


def nccl(folder: Path, kind: str, startup_s: float) -> list[tuple[float, float]]:
    """NCCL on 8 H200, FP16: the table counts elements of the whole message, 2 bytes each."""
    table = "h200_sxm.comm.nccl.2.26.2.nccl_perf.parquet"
    found = aiconfigurator(folder, table, op_name=kind, num_gpus=8, nccl_dtype="half")
    return bandwidth_curve({2 * row["message_size"]: row["latency"] / 1e3 for row in found}, startup_s)


def custom_all_reduce(folder: Path, startup_s: float) -> list[tuple[float, float]]:
    """AllReduce kernels on 8 H200, as two halves that take the same time."""
    table = "h200_sxm.comm.trtllm.1.3.0rc20.custom_allreduce_perf.parquet"
    found = aiconfigurator(folder, table, num_gpus=8)
    return bandwidth_curve({2 * row["message_size"]: row["latency"] / 2e3 for row in found}, startup_s)


@dataclass(frozen=True)
class Layer:
    """A measured layer of routed experts: how long it takes, and its products and passes by themselves, in seconds."""

    measured_s: float
    parts_s: float
    slots: int
    rows: int


def moe_layers(folder: Path, splits: tuple[tuple[int, int], ...]) -> list[Layer]:
    """Layers of DeepSeek-R1's experts on H100, FP8, evenly routed."""
    machine, model = load_machine("h800_cluster"), with_precision(load_transformer("deepseek_r1"), {"experts": "fp8"})
    experts = model.layers[-1].feed_forward
    assert isinstance(experts, Experts)
    kernels = dict(machine.kernels["sglang_2025"])
    kernels["experts_sort"] = kernels["experts_sort"].model_copy(update={"per_row": None, "per_slot": None})
    layers = []
    for row in aiconfigurator(folder, MOE, distribution="balanced", **OF_R1):
        tokens, tp, ep = row["num_tokens"], row["moe_tp_size"], row["moe_ep_size"]
        if (tp, ep) not in splits or tokens * 8 < ep:
            continue
        rows = tuple(split(8 * tokens // ep, 256 // ep))
        stack = replace(STACK, l2_bytes=inf if 2 * sum(rows) * model.hidden < L2_BYTES else 0.0)
        works = stack.experts(model, experts, tokens, rows, tp)
        parts_s = sum(solo_s(cost_of(work, machine.chip, kernels), machine.chip) for _, work in works)
        layers.append(Layer(row["latency"] / 1e3, parts_s, len(rows), sum(rows)))
    return layers


def sorting_misfit(layers: list[Layer], slot_s: float, row_s: float) -> Misfit:
    """Where every local expert and every row takes so long beyond products and passes."""
    return Misfit(tuple(
        (one.parts_s + slot_s * one.slots + row_s * one.rows) / one.measured_s - 1.0 for one in layers
    ))  # fmt: skip


def fit_sorting(layers: list[Layer]) -> tuple[float, float, Misfit]:
    """Seconds per local expert and per row, to the nanosecond."""
    costs = [(slot * 1e-9, row * 1e-9) for slot in range(0, 401, 5) for row in range(20, 81)]
    found = [(slot, row, sorting_misfit(layers, slot, row)) for slot, row in costs]
    return min(found, key=lambda one: one[2].loss)


def touched_experts(folder: Path) -> dict[int, float]:
    """How many of 256 experts so many tokens touch in the table's power law of 1.01 (H100, FP8, TP8 slices), as time
    tells: with even routing, tokens touch 8 experts each as long as there are that many left, and all take as long."""
    us: dict[str, dict[int, float]] = {}
    for row in aiconfigurator(folder, MOE, moe_ep_size=1, moe_tp_size=8, **OF_R1):
        us.setdefault(row["distribution"], {})[row["num_tokens"]] = row["latency"] * 1e3
    even, drawn = us["balanced"], us["power_law_1.01"]
    each = (even[32] - even[8]) / (256 - 64)
    some = (16, 32, 48, 64, 96, 128, 192)
    return {tokens: min(8 * tokens, 256) - (even[tokens] - drawn[tokens]) / each for tokens in some}


def popularity_skew(touched: dict[int, float]) -> float:
    """The power of places in `choices.chosen_rows` that touches as many, in steps of 0.05."""
    def drawn(tokens: int, skew: float) -> float:
        return mean(sum(map(bool, chosen_rows(tokens, 256, 8, skew, (seed,)))) for seed in range(10))

    def off(skew: float) -> float:
        return sum(abs(log(drawn(tokens, skew) / many)) for tokens, many in touched.items())

    return min((step / 20 for step in range(30)), key=off)


def _family(family: KernelFamily, folder: Path, fits: bool) -> Iterator[Finding]:
    """How far the machine's file is from the table; with a fit, how far what it finds is."""
    table = family.read(folder)
    yield Finding(family.name, str(family.misfit({}, table)))
    if fits:
        numbers, error = fit(family, table)
        shown = ", ".join(f"{name} {value:.3g}" for name, value in numbers.items() if value)
        yield Finding(f"{family.name}, fitted", f"{error}: {shown}", numbers)


def _bandwidth_curves(folder: Path, fits: bool) -> Iterator[Finding]:
    """What NCCL and the AllReduce kernels achieve on eight GPUs, by size."""
    for name, found in (
        ("nccl all_gather", nccl(folder, "all_gather", 11.4e-6)),
        ("nccl reduce_scatter", nccl(folder, "reduce_scatter", 11.4e-6)),
        ("custom_all_reduce", custom_all_reduce(folder, 1.4e-6)),
    ):
        shown = ", ".join(f"{size / 1024:.0f} KiB {rate / 1e9:.0f} GB/s" for size, rate in found)
        yield Finding(name, shown, {f"{size:.0f} B": rate for size, rate in found})


def _sorting(folder: Path, fits: bool) -> Iterator[Finding]:
    """What a layer of routed experts takes beyond its products and passes."""
    slices = moe_layers(folder, SLICES)
    slot_s, row_s, error = fit_sorting(slices)
    yield Finding("slices of experts", f"{sorting_misfit(slices, 0.0, 0.0)} with products and passes alone")
    yield Finding("slices, fitted", f"{error} with {slot_s * 1e9:.0f} ns for each local expert and "
                  f"{row_s * 1e9:.0f} ns a row more", {"per_slot": slot_s, "per_row": row_s})
    whole = sorting_misfit(moe_layers(folder, WHOLE), slot_s, row_s)
    yield Finding("whole experts", f"{whole} with the same, not fitted")


def _skew(folder: Path, fits: bool) -> Iterator[Finding]:
    """How many experts the skewed routing of the tables touches."""
    touched = touched_experts(folder)
    shown = ", ".join(f"{tokens}: {many:.0f}" for tokens, many in touched.items())
    skew = popularity_skew(touched)
    yield Finding("experts touched", f"by so many tokens: {shown}; as many as with skew {skew:.2f}", {"skew": skew})


PARTS = (*(Fit(family.machine, family.name, partial(_family, family)) for family in families()),
         Fit("h800_cluster", "ladders", _bandwidth_curves), Fit("h800_cluster", "experts_sort", _sorting),
         Fit("h800_cluster", "routing", _skew))  # fmt: skip
"""In the order of the machines' files."""
