"""Fits the kernel families and NCCL bandwidth curves of H20 and H800 on public tables.

They are read as infersim/KIND.CHIP.*.csv (alibaba/InferSim at f2293da, bench_data) and aiconfigurator/CHIP.KIND.*
.parquet (ai-dynamo/aiconfigurator at 095f58a, systems/data). A family is fitted by coordinate descent on the mean of
|log(simulated / measured)| over its own law (ideal roofline); tiles are tried one after the other. The machine files
`topologies/h20_node.toml` and `topologies/h800_cluster.toml` keep what came out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import log
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

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
from simulator.calibrate.library_tables import Library, where
from simulator.calibrate.library_tables import attention as attention_of_table
from simulator.calibrate.library_tables import experts as experts_of_table
from simulator.die.kernels import Work, cost_of
from simulator.model import ops
from simulator.model.choices import chosen_rows
from simulator.model.library import load_transformer
from simulator.model.transformer import experts_of, with_precision
from simulator.spec.kernels import KernelSpec
from simulator.spec.load import load_machine
from simulator.spec.machine import ChipSpec, MachineSpec
from simulator.stack.sglang_2025 import STACK
from simulator.units import Quantity

GENERATION = "sglang_2025"
Numbers = dict[str, Any]
L2_BYTES = 50e6  # of H100 and H800
MOE = "h100_sxm.moe.trtllm.1.3.0rc20.moe_perf.parquet"
OF_R1 = {"hidden_size": 7168, "inter_size": 2048, "num_experts": 256, "topk": 8, "moe_dtype": "fp8_block"}
SHORTEST = 255  # cached tokens before the one that is decoded
FEW = 64  # experts of a model; with fewer the routing of a table decides
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
    tiles to try; compare: how far it is from what was read."""

    machine: str
    name: str
    read: Callable[[Path], Any]
    start: Numbers
    free: tuple[str, ...]
    tiles: tuple[tuple[int, int, int | None], ...] = ()
    compare: Callable[[ChipSpec, KernelSpec, Any], Misfit] = misfit

    @cached_property
    def spec(self) -> MachineSpec:
        """The machine as its file has it."""
        return load_machine(self.machine)

    def misfit(self, numbers: Numbers, table: Any) -> Misfit:
        """How far the family is from its table with these numbers in place of the file's."""
        kernel = self.spec.kernels[GENERATION][self.name]
        given = {FIELDS[name]: Quantity.model_construct(value=value, unit="1", kind="fitted", source="this search")
                 if value else None for name, value in numbers.items()}  # fmt: skip
        return self.compare(self.spec.chip, kernel.model_copy(update=given), table)


def fit(family: KernelFamily, table: Any) -> tuple[Numbers, Misfit]:
    """The best numbers over all tiles."""
    starts = [{**family.start, "tm": m, "tn": n, "gr": granule} for m, n, granule in family.tiles] or [family.start]
    return min((_descend(family, table, start) for start in starts), key=lambda found: found[1].loss)


def _descend(family: KernelFamily, table: Any, best: Numbers) -> tuple[Numbers, Misfit]:
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
    sliced = {"floor": 5e-6, "sk": 5e-10, "cs": 0.354, "hs": 0.86, "un": 0.144, "tm": 64, "tn": 128, "ramp": 64}
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
        *(KernelFamily(large, f"fused_gemm_{name}", partial(sliced_experts, dtype=dtype), sliced, (*free, "un"),
                       compare=layers_misfit) for name, dtype in (("fp8", "fp8_block"), ("bf16", "bf16"))),
        KernelFamily(large, "mla_decode", partial(decode, chip="h800"), planned, attention),
        KernelFamily(large, "gqa_decode", grouped_decode, flash | {"tm": 64}, attention),
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


def grouped_decode(folder: Path) -> KernelTable:
    """Grouped-query attention in decode by FlashAttention 3 in SGLang on H100, heads of 128, BF16, every 20th row.

    Contexts of less than 256 tokens are left out: there what a request takes by itself decides, not what it reads.
    """
    columns = attention_of_table(Library(folder, "h100_sxm", "sglang"), "generation", "bfloat16")
    chosen = (columns["head_dim"] == 128) & (columns["window_size"] == 0) & (columns["isl"] == 1)
    kept = where(columns, chosen & (columns["step"] >= SHORTEST))
    table: KernelTable = []
    for row in _rows(kept)[::20]:
        heads, kv_heads, batch = (int(row[name]) for name in ("num_heads", "kv_heads", "batch_size"))
        seen = ((1, int(row["step"]) + 1),) * batch
        work = ops.grouped_attention(seen, heads, kv_heads, 128, 128, "gqa_decode")
        table.append((left_in_l2(work), float(row["seconds"])))
    return table


def left_in_l2(work: Work) -> Work:
    """A product that ran before, and left all that it reads and writes in L2 if there was room."""
    if work.hbm_bytes > 0.8 * L2_BYTES:
        return work
    return replace(ops.cached(work), weight_bytes=0.0, streamed_bytes=0.0, cached_bytes=work.hbm_bytes)


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


class Layer(NamedTuple):
    """A measured layer of routed experts, in seconds: what all but its products take, these, and what it took."""

    rest_s: float
    products: tuple[Work, ...]
    measured_s: float


def sliced_experts(folder: Path, dtype: str) -> list[Layer]:
    """Layers of slices of experts by SGLang on H100, in BF16 or in blocks of FP8, every 20th row of its models.

    Evenly routed ones are left out: their weights could not be read in the time that they take.
    """
    machine, model = load_machine("h800_cluster"), with_precision(load_transformer("deepseek_r1"), {"experts": dtype})
    kernels, layers = machine.kernels[GENERATION], []
    table = experts_of_table(Library(folder, "h100_sxm", "sglang"), dtype)
    skewed = (table["moe_ep_size"] == 1) & (table["distribution"] != "balanced") & (table["up"] == 2.0)
    for row in _rows(where(table, skewed & (table["num_experts"] >= FEW)))[::20]:
        experts = replace(experts_of(model), routed=int(row["num_experts"]), per_token=int(row["topk"]),
                          intermediate=int(row["inter_size"]))  # fmt: skip
        sized, tokens = replace(model, hidden=int(row["hidden_size"])), int(row["num_tokens"])
        rows = tuple(int(each) for each in row["local"].each)
        works = [*STACK.route(sized, experts, tokens)[-1:],
                 *STACK.experts(sized, experts, tokens, rows, int(row["moe_tp_size"]))]  # fmt: skip
        products = tuple(work for _, work in works if work.kind == "grouped_gemm")
        rest = (work for _, work in works if work.kind != "grouped_gemm")
        rest_s = sum(solo_s(cost_of(work, machine.chip, kernels), machine.chip) for work in rest)
        layers.append(Layer(rest_s, products, float(row["seconds"])))
    return layers


def _rows(columns: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def layers_misfit(chip: ChipSpec, kernel: KernelSpec, layers: Sequence[Layer]) -> Misfit:
    """How far whole layers are with this family of products."""
    def simulated_s(layer: Layer) -> float:
        costs = (cost_of(work, chip, {work.family: kernel}) for work in layer.products)
        return layer.rest_s + sum(solo_s(cost, chip) for cost in costs)

    return Misfit(tuple(simulated_s(layer) / layer.measured_s - 1.0 for layer in layers))


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


def _skew(folder: Path, fits: bool) -> Iterator[Finding]:
    """How many experts the skewed routing of the tables touches."""
    touched = touched_experts(folder)
    shown = ", ".join(f"{tokens}: {many:.0f}" for tokens, many in touched.items())
    skew = popularity_skew(touched)
    yield Finding("experts touched", f"by so many tokens: {shown}; as many as with skew {skew:.2f}", {"skew": skew})


PARTS = (*(Fit(family.machine, family.name, partial(_family, family)) for family in families()),
         Fit("h800_cluster", "ladders", _bandwidth_curves),
         Fit("h800_cluster", "routing", _skew))  # fmt: skip
"""In the order of the machines' files."""
