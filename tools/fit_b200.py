"""Fits the kernel families of topologies/dgx_b200.toml on the public tables of ai-dynamo/aiconfigurator.

    python -m tools.fit_b200 FOLDER            # errors of the families as they are in the file
    python -m tools.fit_b200 FOLDER --fit      # search better numbers, print them with their errors

FOLDER holds the tables as aiconfigurator/b200_sxm.*.parquet (README there says which release). Nothing in Braid needs
them: the machine's file keeps the numbers that came out, with the table as their source.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from simulator.library import load_scenario
from simulator.machine.spec import KernelSpec, MachineSpec, load_machine
from simulator.model import choices, ops, sparse
from simulator.model.shapes import load_model, shapes_of
from simulator.simulation import simulate
from simulator.units import Quantity
from tools.kernel_tables import Misfit, Table, aiconfigurator, misfit

GENERATION = "trtllm_1_3"
SHAPES = shapes_of(load_model("deepseek_r1"))
RELEASE = "b200_sxm.{}.trtllm.1.3.0rc20.{}.parquet"
DECODE_ROWS = (1, 2, 4, 8, 16)
WARM_BYTES = 63e6  # half of L2: each of the two dies keeps a copy of what both read


def gemm(folder: Path, table_dtype: str, dtype: str) -> Table:
    """Products of up to 16 rows with matrices of 256 to 16384, as decode of few tokens has them; half of the table."""
    every = aiconfigurator(folder, RELEASE.format("gemm", "gemm_perf"), gemm_dtype=table_dtype)
    sizes = [row for row in every if row["m"] in DECODE_ROWS and all(256 <= row[side] <= 16384 for side in "nk")]
    return [
        (ops.gemm(row["m"], row["n"], row["k"], dtype, "bf16"), row["latency"] / 1e3)
        for number, row in enumerate(sizes)
        if number % 2 == 0
    ]


def batched_gemm(folder: Path) -> Table:
    """The absorbed up-projections of MLA, BF16, up to 256 tokens."""
    widths = {"mla_gen_pre": (SHAPES.kv_lora, SHAPES.nope_dim), "mla_gen_post": (SHAPES.v_dim, SHAPES.kv_lora)}
    every = aiconfigurator(folder, RELEASE.format("mla_bmm", "mla_bmm_perf"), bmm_dtype="bfloat16")
    return [
        (ops.batched_gemm(row["num_tokens"], row["num_heads"], *widths[row["op_name"]]), row["latency"] / 1e3)
        for row in every
        if row["num_tokens"] <= 256
    ]


def attention(folder: Path) -> Table:
    """The MLA kernel over a BF16 cache with 16 heads, as a rank of TP8 has them."""
    name = RELEASE.format("mla", "generation_mla_perf")
    every = aiconfigurator(folder, name, kv_cache_dtype="bfloat16", num_heads=16)
    return [
        (ops.latent_attention(((1, row["step"] + 1),) * row["batch_size"], 16, SHAPES.kv_lora, SHAPES.rope_dim, "mla"),
         row["latency"] / 1e3)
        for row in every
        if row["batch_size"] <= 16
    ]  # fmt: skip


def experts(folder: Path, backend: str, family: str, distribution: str = "power_law_1.01") -> Table:
    """Routed experts over 8 GPUs in every split, up to 16 tokens, on the rank that touches most experts.

    The table repeats one routing, so that experts which fit into L2 were found there and not in HBM.
    """
    every = aiconfigurator(folder, RELEASE.format("moe", "moe_perf"), kernel_source=backend, moe_dtype="nvfp4",
                           num_experts=256, hidden_size=7168, topk=8, distribution=distribution)  # fmt: skip
    table: Table = []
    for row in every:
        if row["num_tokens"] > 16 or row["moe_tp_size"] * row["moe_ep_size"] != 8:
            continue
        rows = _busiest(row["num_tokens"], row["moe_ep_size"], distribution)
        work = sparse.experts(SHAPES, rows, row["moe_tp_size"], family)
        if work.weight_bytes < WARM_BYTES:
            work = replace(work, weight_bytes=0.0)
        table.append((work, row["latency"] / 1e3))
    return table


def _busiest(tokens: int, groups: int, distribution: str) -> tuple[int, ...]:
    """Rows of the group of experts that is touched most: the median of nine draws."""
    def most(rows: tuple[int, ...]) -> tuple[int, ...]:
        return max(choices.blocks_of(rows, groups), key=lambda block: sum(map(bool, block)))

    if distribution == "balanced":
        return most(choices.even_rows(tokens, 256, 8))
    skew = float(distribution.rpartition("_")[2])
    drawn = [most(choices.chosen_rows(tokens, 256, 8, skew, (seed, tokens))) for seed in range(9)]
    return sorted(drawn, key=lambda block: sum(map(bool, block)))[4]


BACKENDS = {"experts_cutlass": "moe_torch_flow_cutlass", "experts_trtllm": "moe_torch_flow_min_latency"}
FITTED: dict[str, tuple[Callable[[Path], Table], tuple[str, ...]]] = {
    "gemm_bf16": (lambda f: gemm(f, "bfloat16", "bf16"), ("floor", "serial_per_k", "hbm_share", "compute_share")),
    "gemm_nvfp4": (lambda f: gemm(f, "nvfp4", "nvfp4"), ("floor", "serial_per_k", "hbm_share", "compute_share")),
    "batched_gemm_bf16": (batched_gemm, ("floor", "serial_per_k", "hbm_share", "compute_share")),
    "mla": (attention, ("floor", "hbm_share", "compute_share")),
    "experts_cutlass": (lambda f: experts(f, BACKENDS["experts_cutlass"], "experts_cutlass"),
                        ("floor", "per_group", "per_slot", "hbm_share")),
    "experts_trtllm": (lambda f: experts(f, BACKENDS["experts_trtllm"], "experts_trtllm"),
                       ("floor", "hbm_share")),
}  # fmt: skip


def fit(machine: MachineSpec, kernel: KernelSpec, table: Table, names: tuple[str, ...]) -> KernelSpec:
    """Coordinate search: each number a step up or down as long as that helps, then smaller steps."""
    best, step = misfit(machine.chip, kernel, table).loss, 1.5
    while step > 1.01:
        improved = False
        for candidate in _neighbours(kernel, names, step):
            loss = misfit(machine.chip, candidate, table).loss
            if loss < best - 1e-6:
                best, kernel, improved = loss, candidate, True
                break
        if not improved:
            step = step**0.5
    return kernel


def _neighbours(kernel: KernelSpec, names: tuple[str, ...], step: float) -> Iterator[KernelSpec]:
    for name in names:
        quantity: Quantity = getattr(kernel, name)
        for factor in (step, 1.0 / step):
            value = quantity.value * factor
            if name.endswith("share") and value > 1.0:
                continue
            yield kernel.model_copy(update={name: Quantity(**{**quantity.model_dump(), "value": value})})


def module(folder: Path, machine: MachineSpec) -> Misfit:
    """The whole MLA module of a decode layer (16 heads, BF16) against the sum of its kernels, fitted on nothing."""
    every = aiconfigurator(folder, RELEASE.format("mla", "mla_generation_module_perf"), kv_cache_dtype="bfloat16",
                           gemm_type="bfloat16", num_heads=16)  # fmt: skip
    errors = []
    for row in every:
        if row["batch_size"] > 16:
            continue
        parts = module_kernels(row["batch_size"], row["step"], 16)
        total = sum(alone_s_of(work, machine) for work in parts)
        errors.append(total / (row["latency"] / 1e3) - 1.0)
    return Misfit(tuple(errors))


def module_simulated(folder: Path) -> Misfit:
    """The same module for one request as the simulator runs it: programmatic launch, second norm and cache beside."""
    every = aiconfigurator(folder, RELEASE.format("mla", "mla_generation_module_perf"), kv_cache_dtype="bfloat16",
                           gemm_type="bfloat16", num_heads=16, batch_size=1)  # fmt: skip
    return Misfit(tuple(_span_s(row["step"]) / (row["latency"] / 1e3) - 1.0 for row in every if row["step"] >= 4))


def _span_s(cached_tokens: int) -> float:
    """From Fuse_A's start to o_proj's end in a layer that has warmed up."""
    settings = {"kernels": GENERATION, "batch.prompt_tokens": str(cached_tokens - 1), "batch.output_tokens": "2",
                "batch.draft_tokens": "0", "model.shapes.layers": "4"}  # fmt: skip
    columns = simulate(load_scenario("trt_min_latency:gtc").replace(settings)).columns
    layer = (columns["layer"] == 2) & (columns["rank"] == columns["rank"][0])
    begin = columns["start_ps"][layer & (columns["name"] == "attention.fuse_a")][0]
    return float(columns["end_ps"][layer & (columns["name"] == "attention.o")][0] - begin) / 1e12


def module_kernels(requests: int, keys: int, heads: int) -> list:
    """What the module runs: down projection, norms, up projection, absorption, RoPE and cache, attention, o_proj."""
    s = SHAPES
    return [ops.cached(work) for work in (
        ops.gemm(requests, s.q_lora + s.kv_lora + s.rope_dim, s.hidden, "bf16"),
        ops.rms_norm(requests, s.q_lora), ops.rms_norm(requests, s.kv_lora),
        ops.gemm(requests, heads * s.qk_dim, s.q_lora, "bf16"),
        ops.batched_gemm(requests, heads, s.kv_lora, s.nope_dim),
        ops.copy(requests * (s.kv_lora + s.rope_dim)),
        ops.latent_attention(((1, keys),) * requests, heads, s.kv_lora, s.rope_dim, "mla"),
        ops.batched_gemm(requests, heads, s.v_dim, s.kv_lora),
        ops.gemm(requests, s.hidden, heads * s.v_dim, "bf16"),
    )]  # fmt: skip


def alone_s_of(work: object, machine: MachineSpec) -> float:
    """How long this kernel takes alone, in seconds."""
    from simulator.machine.kernels import cost_of
    from tools.kernel_tables import alone_s

    return alone_s(cost_of(work, machine.chip, machine.kernels_of(GENERATION)), machine.chip)  # type: ignore[arg-type]


def all_reduce(folder: Path, machine: MachineSpec, name: str, engine: str, steps: int) -> Misfit:
    """An AllReduce of 8 GPUs up to 1 MiB; steps: 1 where everybody sends its whole buffer, 2 with a scatter first."""
    only = {"op_name": "all_reduce", "num_gpus": 8}
    spec, errors = machine.collectives[engine], []
    for row in aiconfigurator(folder, name, **only):
        size = 2 * row["message_size"]
        if size > 2**20 or row.get("nccl_dtype", "half") != "half":
            continue
        each = size / (1 if steps == 1 else 8)
        kind = "all_reduce" if steps == 1 else "all_gather"
        wire_s = 7 * each / spec.rate_bytes_per_s(kind, each)
        latency_s = spec.startup.si + machine.fabric[0].latency.si
        errors.append(steps * (latency_s + wire_s) / (row["latency"] / 1e3) - 1.0)
    return Misfit(tuple(errors))


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    machine = load_machine("dgx_b200")
    for family, (read, names) in FITTED.items():
        if arguments.only not in family:
            continue
        table, kernel = read(arguments.folder), machine.kernels[GENERATION][family]
        print(f"{family:20s} {misfit(machine.chip, kernel, table)}")
        if arguments.fit:
            kernel = fit(machine, kernel, table, names)
            numbers = {name: getattr(kernel, name) for name in names}
            found = ", ".join(f"{name} = {one.value:.4g} {one.unit}" for name, one in numbers.items())
            print(f"{'':20s} {misfit(machine.chip, kernel, table)}: {found}")
    for family, backend in BACKENDS.items():
        if arguments.only not in family:
            continue
        even = experts(arguments.folder, backend, family, "balanced")
        print(f"{family + ', even':20s} {misfit(machine.chip, machine.kernels[GENERATION][family], even)}")
    print(f"{'MLA module, summed':20s} {module(arguments.folder, machine)}")
    print(f"{'MLA module, run':20s} {module_simulated(arguments.folder)}")
    custom, nccl = RELEASE.format("comm", "custom_allreduce_perf"), "b200_sxm.comm.nccl.2.27.3.nccl_perf.parquet"
    print(f"{'AllReduce one_shot':20s} {all_reduce(arguments.folder, machine, custom, 'one_shot', 1)}")
    print(f"{'AllReduce nccl':20s} {all_reduce(arguments.folder, machine, nccl, 'nccl', 2)}")


if __name__ == "__main__":
    main()
