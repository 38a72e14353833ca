"""Fits the kernel families of topologies/dgx_b200.toml on the public tables of ai-dynamo/aiconfigurator.

They are read as aiconfigurator/b200_sxm.*.parquet. Nothing else in Braid needs them: the machine's file keeps the
numbers that came out, with the table as their source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import quantiles

from simulator.calibrate.kernel_tables import Finding, Fit, Misfit, aiconfigurator, solo_s
from simulator.die.kernels import Work, cost_of
from simulator.model import choices, ops
from simulator.spec.kernels import KernelSpec
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec
from simulator.spec.model import ModelShapes, load_model, shapes_of
from simulator.stack.trtllm_min_latency import touched_experts
from simulator.units import Quantity

MACHINE, GENERATION = "dgx_b200", "trtllm_1_3"
SHAPES = shapes_of(load_model("deepseek_r1"))
RELEASE = "b200_sxm.{}.trtllm.1.3.0rc20.{}.parquet"
DECODE_ROWS = (1, 2, 4, 8, 16)
EVEN_TOKENS = 2  # tables of skewed routing: rows of so few tokens take as long as those of even routing
Chains = list[tuple[tuple[Work, ...], float]]  # kernels one after the other, and how long they took together
L2_BYTES = 126e6
WARM_BYTES = L2_BYTES / 2  # routed experts: each of the two dies keeps a copy of what both read
OWN_WARM_BYTES = 80e6  # own backend, whole MLA module: up to here times do not grow, from L2_BYTES on they follow HBM
GROUPS, KEPT_GROUPS = 8, 4  # of DeepSeek's routing: a token takes its experts from four of eight groups


def gemm(folder: Path, table_dtype: str, dtype: str, largest: int) -> Chains:
    """Products of up to 16 rows with matrices of 256 to `largest`, as decode of few tokens has them.

    The table jumps where six matrices no longer fit into L2 (a product was repeated with that many): smaller ones were
    found there and not in HBM.
    """
    every = aiconfigurator(folder, RELEASE.format("gemm", "gemm_perf"), gemm_dtype=table_dtype)
    sizes = [row for row in every if row["m"] in DECODE_ROWS and all(256 <= row[side] <= largest for side in "nk")]
    table: Chains = []
    for row in sizes:
        work = ops.gemm(row["m"], row["n"], row["k"], dtype, "bf16")
        work = warm(work) if 6 * work.weight_bytes < L2_BYTES else work
        quantise = (ops.cached(ops.quantise(row["m"], row["k"])),) if dtype == "nvfp4" else ()
        table.append(((*quantise, work), row["latency"] / 1e3))
    return table


def warm(work: Work) -> Work:
    """The same product with its weights in L2."""
    return replace(work, weight_bytes=0.0)


def batched_gemm(folder: Path) -> Chains:
    """The absorbed up-projections of MLA, BF16, up to 256 tokens."""
    widths = {"mla_gen_pre": (SHAPES.kv_lora, SHAPES.nope_dim), "mla_gen_post": (SHAPES.v_dim, SHAPES.kv_lora)}
    every = aiconfigurator(folder, RELEASE.format("mla_bmm", "mla_bmm_perf"), bmm_dtype="bfloat16")
    return [
        ((ops.batched_gemm(row["num_tokens"], row["num_heads"], *widths[row["op_name"]]),), row["latency"] / 1e3)
        for row in every
        if row["num_tokens"] <= 256
    ]


def attention(folder: Path) -> Chains:
    """The MLA kernel over a BF16 cache of up to 16K keys, 16 heads or more, up to 256 heads in all requests.

    A rank of TP8 has 16 heads; each further query token of a request is 16 rows more that meet the same keys, as
    further heads are. Several query tokens themselves are in no table.
    """
    every = aiconfigurator(folder, RELEASE.format("mla", "generation_mla_perf"), kv_cache_dtype="bfloat16")
    return [
        ((core(row["batch_size"], row["step"] + 1, row["num_heads"]),), row["latency"] / 1e3)
        for row in every
        if row["num_heads"] >= 16 and row["num_heads"] * row["batch_size"] <= 256 and row["step"] < 16384
    ]


def core(requests: int, keys: int, heads: int) -> Work:
    """Attention of one query token of each request."""
    return ops.latent_attention(((1, keys),) * requests, heads, SHAPES.kv_lora, SHAPES.rope_dim, "mla")


def experts(folder: Path, family: str, distribution: str = "power_law_1.01") -> Chains:
    """Routed experts of CUTLASS over 8 GPUs in every split, up to 16 tokens, on the rank that touches most experts.

    The table repeats one routing, so that experts which fit into L2 were found there and not in HBM. Experts in BF16
    were measured at a hidden size of 6144, those in NVFP4 at 7168.
    """
    dtype, hidden = ("bf16", 6144) if family == "experts_bf16" else ("nvfp4", SHAPES.hidden)
    every = _routed(folder, "cutlass", {"bf16": "bfloat16"}.get(dtype, dtype), distribution, hidden)
    shapes = replace(SHAPES, hidden=hidden)
    table: Chains = []
    for row in every:
        if row["moe_tp_size"] * row["moe_ep_size"] == 8:
            rows = _busiest(row["num_tokens"], row["moe_ep_size"], distribution)
            chain = operator(family, shapes, row["num_tokens"], rows, row["moe_tp_size"])
            fits = sum(work.weight_bytes for work in chain) < WARM_BYTES
            table.append((tuple(map(warm, chain)) if fits else chain, row["latency"] / 1e3))
    return table


def own_backend(folder: Path) -> Chains:
    """Routed experts of the TensorRT-LLM backend with even routing, up to 16 tokens, TP and EP of 1 to 8.

    With the experts that its routing leaves (`limited_rows`) all splits lie on one curve. Left out is where L2 holds a
    part of the experts.
    """
    table: Chains = []
    for row in _routed(folder, "min_latency", "nvfp4", "balanced", SHAPES.hidden):
        if row["moe_tp_size"] > 8 or row["moe_ep_size"] > 8:
            continue
        rows = choices.blocks_of(limited_rows(row["num_tokens"]), row["moe_ep_size"])[0]
        chain = operator("grouped_gemm_trtllm", SHAPES, row["num_tokens"], rows, row["moe_tp_size"])
        size = sum(work.weight_bytes for work in chain)
        if size < OWN_WARM_BYTES:
            chain = tuple(map(warm, chain))
        elif size < L2_BYTES:
            continue
        table.append((chain, row["latency"] / 1e3))
    return table


def _routed(folder: Path, source: str, dtype: str, distribution: str, hidden: int) -> list[dict]:
    """Rows of up to 16 tokens of the table of routed experts, of DeepSeek-R1's number and intermediate size."""
    every = aiconfigurator(folder, RELEASE.format("moe", "moe_perf"), kernel_source=f"moe_torch_flow_{source}",
                           num_experts=256, topk=8, moe_dtype=dtype, distribution=distribution, hidden_size=hidden,
                           inter_size=SHAPES.expert_intermediate)  # fmt: skip
    return [row for row in every if row["num_tokens"] <= 16]


def limited_rows(tokens: int) -> tuple[int, ...]:
    """Rows of every expert where each token was meant to take one expert of every group.

    It keeps to four groups, of equal ones the first, and fills up with their first experts. The table shows it: two
    groups of ranks take as long as one, which would have twice the experts.
    """
    size, rows = 256 // GROUPS, [0] * 256
    for token in range(tokens):
        meant = {group * size + token * size // tokens for group in range(KEPT_GROUPS)}
        others = (expert for expert in range(KEPT_GROUPS * size) if expert not in meant)
        for expert in (*meant, *islice(others, 8 - len(meant))):
            rows[expert] += 1
    return tuple(rows)


def operator(family: str, s: ModelShapes, tokens: int, rows: tuple[int, ...], shards: int) -> tuple[Work, ...]:
    """The kernels of the table's operator, which takes logits and BF16: choose, quantise, sort, products, sum up."""
    small, width = ops.cached(ops.copy(tokens * s.hidden)), s.expert_intermediate // shards
    if family == "experts_bf16":
        chain: tuple[Work, ...] = (small, touched_experts(rows, s.hidden, width, family, "bf16"))
    else:
        name = "grouped_gemm_trtllm" if family == "grouped_gemm_trtllm" else "grouped_gemm_nvfp4"
        up, down = (replace(ops.grouped_gemm(rows, n, k, "nvfp4"), family=name)
                    for n, k in ((2 * width, s.hidden), (s.hidden, width)))  # fmt: skip
        around = (ops.sort_rows(sum(rows), rows, s.hidden), small, small) if family == "experts_sort" else ()
        chain = (small, small, up, down, *around)
    return tuple(ops.cached(work) for work in chain)


def _busiest(tokens: int, groups: int, distribution: str) -> tuple[int, ...]:
    """Rows of the group of experts that is touched most: the median of nine draws."""
    def most(rows: tuple[int, ...]) -> tuple[int, ...]:
        return max(choices.blocks_of(rows, groups), key=lambda block: sum(map(bool, block)))

    if distribution == "balanced" or tokens <= EVEN_TOKENS:
        return most(choices.even_rows(tokens, 256, 8))
    skew = float(distribution.rpartition("_")[2])
    drawn = [most(choices.power_law_rows(tokens, 256, 8, skew, (seed, tokens))) for seed in range(9)]
    return sorted(drawn, key=lambda block: sum(map(bool, block)))[4]


CUTLASS = ("experts_sort", "experts_bf16")
FITTED: dict[str, tuple[Callable[[Path], Chains], tuple[str, ...]]] = {
    "gemm_bf16": (lambda f: gemm(f, "bfloat16", "bf16", 16384), ("floor", "serial_per_k", "split_k", "hbm_share")),
    "gemm_nvfp4": (lambda f: gemm(f, "nvfp4", "nvfp4", 65536), ("floor", "compute_share", "hbm_share", "unoverlapped")),
    "batched_gemm_bf16": (batched_gemm, ("floor", "serial_per_k", "hbm_share", "compute_share")),
    "mla": (attention, ("floor", "hbm_share", "compute_share", "unoverlapped")),
    "experts_sort": (lambda f: experts(f, "experts_sort"), ("floor", "per_group", "per_slot")),
    "grouped_gemm_nvfp4": (lambda f: experts(f, "experts_sort"), ("hbm_share", "unoverlapped")),
    "experts_bf16": (lambda f: experts(f, "experts_bf16"), ("floor", "per_group", "hbm_share")),
    "grouped_gemm_trtllm": (own_backend, ("floor", "per_group", "compute_share", "hbm_share", "unoverlapped")),
}  # fmt: skip


def off(machine: MachineSpec, family: str, kernel: KernelSpec, table: Chains) -> Misfit:
    """How far chains of kernels are from a table with this kernel as the family's."""
    families = {**machine.kernels[GENERATION], family: kernel}
    return Misfit(tuple(sum(solo_s(cost_of(work, machine.chip, families), machine.chip) for work in chain) / seconds
                        - 1.0 for chain, seconds in table))  # fmt: skip


def fit(machine: MachineSpec, family: str, table: Chains, names: tuple[str, ...]) -> KernelSpec:
    """Coordinate search: each number a step up or down as long as that helps, then smaller steps."""
    kernel = machine.kernels[GENERATION][family]
    best, step = off(machine, family, kernel, table).loss, 1.5
    while step > 1.01:
        improved = False
        for candidate in _neighbours(kernel, names, step):
            loss = off(machine, family, candidate, table).loss
            if loss < best - 1e-6:
                best, kernel, improved = loss, candidate, True
                break
        if not improved:
            step = step**0.5
    return kernel


def _neighbours(kernel: KernelSpec, names: tuple[str, ...], step: float) -> Iterator[KernelSpec]:
    for name in names:
        quantity: Quantity | None = getattr(kernel, name)
        if quantity is None:  # a term that the family does not have
            continue
        for factor in (step, 1.0 / step):
            value = quantity.value * factor
            if name in ("hbm_share", "compute_share", "unoverlapped") and value > 1.0:
                continue
            yield kernel.model_copy(update={name: Quantity(**{**quantity.model_dump(), "value": value})})


def module(folder: Path, machine: MachineSpec, heads: int) -> Misfit:
    """The whole MLA module of a decode layer (BF16) against its kernels, launched dependently one after the other.

    The table repeats one module: its weights are in L2 if they fit.
    """
    errors = []
    for row in module_table(folder, heads, keys=8192):
        parts = module_kernels(row["batch_size"], row["step"], heads)
        fits = sum(part.weight_bytes for part in parts) < OWN_WARM_BYTES
        total = sum(launched_s(warm(work) if fits else work, machine) for work in parts)
        errors.append(total / (row["latency"] / 1e3) - 1.0)
    return Misfit(tuple(errors))


def module_table(folder: Path, heads: int, keys: int) -> list[dict]:
    """The whole MLA module of a layer, one to four requests of up to so many keys."""
    every = aiconfigurator(folder, RELEASE.format("mla", "mla_generation_module_perf"), kv_cache_dtype="bfloat16",
                           gemm_type="bfloat16", num_heads=heads)  # fmt: skip
    return [row for row in every if row["batch_size"] <= 4 and row["step"] <= keys]


def module_kernels(requests: int, keys: int, heads: int) -> list[Work]:
    """What follows each other in the module: Fuse_A, norm, up projection, absorption, attention, absorption, o_proj.

    Its second norm, RoPE and its cache run beside them.
    """
    s = SHAPES
    down = ops.gemm(requests, s.q_lora + s.kv_lora + s.rope_dim, s.hidden, "bf16")
    return [ops.cached(work) for work in (
        replace(down, family="fuse_a_gemm"),
        ops.rms_norm(requests, s.q_lora),
        ops.gemm(requests, heads * s.qk_dim, s.q_lora, "bf16"),
        ops.batched_gemm(requests, heads, s.kv_lora, s.nope_dim),
        core(requests, keys, heads),
        ops.batched_gemm(requests, heads, s.v_dim, s.kv_lora),
        ops.gemm(requests, s.hidden, heads * s.v_dim, "bf16"),
    )]  # fmt: skip


def launched_s(work: Work, machine: MachineSpec) -> float:
    """How long this kernel takes alone, its prologue beside the kernel before it, in seconds."""
    cost = cost_of(work, machine.chip, machine.kernels_of(GENERATION))
    return solo_s(cost, machine.chip) - cost.prologue_s


def prologues_us(folder: Path, machine: MachineSpec, heads: int) -> list[float]:
    """What the module takes less than its kernels' own tables, by launch of the library's own that it hides.

    Such launches are Fuse_A, norm and attention. Fuse_A's published time is without its prologue already, so that two
    are left. In no table are Fuse_A and the norm: they are as the machine's file has them.
    """
    kinds = (("gemm", "gemm_perf", {"gemm_dtype": "bfloat16"}, ("m", "n", "k")),
             ("mla_bmm", "mla_bmm_perf", {"bmm_dtype": "bfloat16"}, ("op_name", "num_heads", "num_tokens")),
             ("mla", "generation_mla_perf", {"kv_cache_dtype": "bfloat16"}, ("num_heads", "batch_size", "step")))
    products, absorbed, attended = (
        {tuple(row[key] for key in keys): 1e3 * row["latency"]
         for row in aiconfigurator(folder, RELEASE.format(kind, name), **only)}
        for kind, name, only, keys in kinds
    )  # fmt: skip
    found = []
    for row in module_table(folder, heads, keys=2048):
        requests, step = row["batch_size"], row["step"]
        down, norm, *_ = (warm(work) for work in module_kernels(requests, step, heads))
        measured = (
            products[requests, heads * SHAPES.qk_dim, SHAPES.q_lora], absorbed["mla_gen_pre", heads, requests],
            attended[heads, requests, step - 1], absorbed["mla_gen_post", heads, requests],
            products[requests, SHAPES.hidden, heads * SHAPES.v_dim])  # fmt: skip
        solo_us = 1e6 * solo_s(cost_of(norm, machine.chip, machine.kernels_of(GENERATION)), machine.chip)
        total = 1e6 * launched_s(down, machine) + solo_us + sum(measured)
        found.append((total - 1e3 * row["latency"]) / 2)
    return found


def all_reduce(folder: Path, machine: MachineSpec, name: str, engine: str, steps: int) -> Misfit:
    """An AllReduce of 8 GPUs up to 1 MiB; steps: 1 where each GPU sends its whole buffer, 2 with a scatter first."""
    only = {"op_name": "all_reduce", "num_gpus": 8}
    spec, errors = machine.collectives[engine], []
    for row in aiconfigurator(folder, name, **only):
        size = 2 * row["message_size"]
        if size > 2**20 or row.get("nccl_dtype", "half") != "half":
            continue
        each = size / (1 if steps == 1 else 8)
        kind = "all_reduce" if steps == 1 else "all_gather"
        wire_s = 7 * each / spec.rate_bytes_per_s(kind, each)
        latency_s = spec.startup_s(members=1) + machine.fabric[0].latency.si
        errors.append(steps * (latency_s + wire_s) / (row["latency"] / 1e3) - 1.0)
    return Misfit(tuple(errors))


def _family(family: str, folder: Path, fits: bool) -> Iterator[Finding]:
    """How far the machine's file is from the table; with a fit, how far what it finds is."""
    machine, (read, names) = load_machine(MACHINE), FITTED[family]
    table, kernel = read(folder), machine.kernels[GENERATION][family]
    yield Finding(family, str(off(machine, family, kernel, table)))
    if fits:
        kernel = fit(machine, family, table, names)
        numbers = {name: one for name in names if (one := getattr(kernel, name)) is not None}
        found = ", ".join(f"{name} = {one.value:.4g} {one.unit}" for name, one in numbers.items())
        yield Finding(f"{family}, fitted", f"{off(machine, family, kernel, table)}: {found}",
                      {name: one.si for name, one in numbers.items()})
    if family in CUTLASS:
        even = experts(folder, family, "balanced")
        yield Finding(f"{family}, even", str(off(machine, family, machine.kernels[GENERATION][family], even)))


def _module(folder: Path, fits: bool) -> Iterator[Finding]:
    """What no family says alone: the whole MLA module, and how much of a launch is its prologue."""
    machine = load_machine(MACHINE)
    for heads in (16, 64, 128):
        yield Finding(f"MLA module, {heads} heads", str(module(folder, machine, heads)))
    for group in ((4,), (8,), (16,), (4, 8)):
        times_us = [one for heads in group for one in prologues_us(folder, machine, heads)]
        low, middle, high = quantiles(times_us, n=4)
        yield Finding(f"prologue, {' and '.join(map(str, group))} heads",
                      f"median {middle:.2f} us, half between {low:.2f} and {high:.2f}", {"prologue": middle * 1e-6})


def _all_reduce(folder: Path, fits: bool) -> Iterator[Finding]:
    """The engines of AllReduce as the machine's file has them."""
    machine = load_machine(MACHINE)
    custom, nccl = RELEASE.format("comm", "custom_allreduce_perf"), "b200_sxm.comm.nccl.2.27.3.nccl_perf.parquet"
    yield Finding("AllReduce one_shot", str(all_reduce(folder, machine, custom, "one_shot", 1)))
    yield Finding("AllReduce nccl", str(all_reduce(folder, machine, nccl, "nccl", 2)))


PARTS = (*(Fit(MACHINE, family, partial(_family, family)) for family in FITTED),
         Fit(MACHINE, "mla_module", _module), Fit(MACHINE, "all_reduce", _all_reduce))  # fmt: skip
"""In the order of the machine's file."""
