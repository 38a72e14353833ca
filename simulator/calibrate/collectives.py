"""Engines of collectives against public tables: how far a machine's are, what a fit finds, and a part of what it found.

Tables are those of ai-dynamo/aiconfigurator, systems/data: CHIP/comm/LIBRARY/VERSION/*.parquet, times of one node's
collectives in milliseconds, messages in elements of two bytes. Kernels of libraries are timed in CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from simulator.calibrate.kernel_tables import Finding, Misfit, TableMissing
from simulator.calibrate.protocol_fit import Numbers, Row, Way, fit
from simulator.collective.lowering import Lowering
from simulator.collective.transfer import CapacityKey, Phase
from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.paths import choose
from simulator.program.task import Collective
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec

CHIPS = {"dgx_a100": "a100_sxm", "dgx_h100": "h100_sxm", "dgx_h200": "h200_sxm", "dgx_b200": "b200_sxm",
         "gb200_nvl72": "gb200"}
"""The folder of tables of each machine."""
ELEMENT_BYTES = 2
KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
         "alltoall": "all_to_all"}
RINGS = (Way("ring_ll", "ring"), Way("ring_ll128", "ring"), Way("ring_simple", "ring"))
DIRECT = (Way("direct_ll", "direct"), Way("direct_simple", "direct"))
NVLS = Way("nvls", "nvls")
OWN = (Way("one_shot", "one_shot", "up_to"), Way("two_shot", "direct", "up_to"))
OWN_SUMS, NCCL_SUMS = Way("multimem", "nvls", "up_to"), Way("nccl_nvls", "nvls", "above")
BEYOND = (Way("nccl_ring_ll128", "ring", "above"), Way("nccl_ring_simple", "ring", "above"))
RANGES = (("up to 8 KiB", 0.0, 2.0**13), ("8 KiB to 4 MiB", 2.0**13, 2.0**22), ("4 to 64 MiB", 2.0**22, 2.0**26),
          ("beyond", 2.0**26, float("inf")))
Tables = dict[str, list[Row]]


class Engine(NamedTuple):
    """An engine, the folder of its tables, and the SMs that it holds, of which `source` says so (kind: how)."""

    name: str
    library: str
    sms: int
    kind: str
    source: str

    def ways(self, kind: str, chip: str) -> tuple[Way, ...]:
        """What is fitted for a kind on a chip: A100's switches do not sum."""
        sums = chip != "a100_sxm"
        if self.library != "nccl":
            return (*OWN, OWN_SUMS, BEYOND[-1], NCCL_SUMS) if sums else (*OWN, *BEYOND)
        return {"all_reduce": (*RINGS, NVLS) if sums else RINGS, "all_to_all": DIRECT}.get(kind, RINGS)


_BLOCKS = "csrc/custom_all_reduce.cuh: at most 36 thread blocks, an SM each"
ENGINES = (
    Engine("nccl", "nccl", 20, "assumed", "NVIDIA NCCL documentation: 16 to 24 thread blocks by default, an SM each"),
    Engine("custom_all_reduce_vllm", "vllm", 36, "published", f"vllm-project/vllm, {_BLOCKS}"),
    Engine("custom_all_reduce_sglang", "sglang", 36, "published", f"sgl-project/sglang, sgl-kernel, {_BLOCKS}"),
    Engine("custom_all_reduce_trtllm", "trtllm", 24, "assumed", "published nowhere; thread blocks of the kernel"))


def version_of(folder: Path, chip: str, library: str) -> str:
    """The version whose tables are there, the last by name of several; TableMissing without any."""
    versions = sorted(path.name for path in (folder / chip / "comm" / library).glob("*") if any(path.glob("*.parquet")))
    if not versions:
        raise TableMissing(f"no table in {folder / chip / 'comm' / library}")
    return versions[-1]


def tables_of(folder: Path, chip: str, library: str) -> Tables:
    """The rows of every kind that a library's table has: BF16 or FP16, in graphs where there are both."""
    import pyarrow.parquet as parquet

    name = "nccl_perf" if library == "nccl" else "custom_allreduce_perf"
    path = folder / chip / "comm" / library / version_of(folder, chip, library) / f"{name}.parquet"
    if not path.is_file():
        raise TableMissing(f"no table {path}")
    found: Tables = {}
    try:
        for row in parquet.read_table(path).to_pylist():
            dtype = row.get("nccl_dtype", row.get("allreduce_dtype"))
            if dtype in ("half", "bfloat16") and not str(row.get("backend", "")).endswith("eager"):
                size = float(row["message_size"] * ELEMENT_BYTES)
                found.setdefault(KINDS[row["op_name"]], []).append(Row(row["num_gpus"], size, row["latency"] / 1e3))
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error
    return found


def compare(folder: Path, machine: str, only: str | None = None) -> Iterator[Finding]:
    """How far each engine is from its table, by kind, number of GPUs and range of sizes."""
    spec = load_machine(machine)
    for engine in _chosen(only):
        if engine.name not in spec.collectives:
            yield Finding(engine.name, "left out: the machine has no such engine")
            continue
        for kind, rows in tables_of(folder, CHIPS[machine], engine.library).items():
            yield from _findings(engine.name, kind, rows, simulated(spec, engine.name, kind))


def fitted_part(folder: Path, machine: str, only: str | None = None) -> str:
    """The engines of a machine fitted on their tables, as a part of a machine in TOML."""
    chip, node = CHIPS[machine], load_machine(machine).fabric[0]
    found = [(engine, kind, fit(rows, kind, engine.ways(kind, chip), node.latency.si, node.link_rate.si))
             for engine in _chosen(only) for kind, rows in tables_of(folder, chip, engine.library).items()]
    return part_of(folder, chip, found)


def simulated(spec: MachineSpec, engine: str, kind: str) -> Callable[[Row], float]:
    """How long a collective takes alone on the first ranks of a machine, in seconds."""
    fabric = Fabric(spec, int(spec.fabric[0].size.si))
    lowering = Lowering(fabric, {engine: spec.collectives[engine]})

    def seconds(row: Row) -> float:
        per_pair = row.size_bytes / (1 if kind == "all_reduce" else row.ranks)
        one = Collective(kind, "ranks", engine, round(per_pair), algorithm="auto")
        return sum(_phase_s(phase, spec, fabric) for phase in lowering.lower(one, tuple(range(row.ranks))))

    return seconds


def _phase_s(phase: Phase, spec: MachineSpec, fabric: Fabric) -> float:
    """The latency, and what the busiest capacity needs."""
    loads: dict[CapacityKey, float] = {}
    for transfer in phase.transfers:
        for key, moved in transfer.loads:
            loads[key] = loads.get(key, 0.0) + moved
    memory = {"hbm": spec.chip.hbm.peak.si * spec.chip.hbm.efficiency.si, "l2": spec.chip.l2.rate.si}

    def rate(key: CapacityKey) -> float:
        if key[0] == "link":
            return fabric.link_rate(*key[1:])
        return memory[key[0]] if key[0] in memory else key[-1]

    return phase.latency_s + max((moved / rate(key) for key, moved in loads.items()), default=0.0)


def _findings(engine: str, kind: str, rows: list[Row], seconds: Callable[[Row], float]) -> Iterator[Finding]:
    errors = {row: seconds(row) / row.seconds - 1.0 for row in rows}

    def finding(what: str, chosen: list[Row]) -> Finding:
        off = Misfit(tuple(errors[row] for row in chosen))
        numbers = {"rows": len(chosen), "median_error": off.median, "p90_error": off.ninth_decile}
        return Finding(f"{engine} {kind}", f"{what:22s} {off}", numbers)

    yield finding("all", rows)
    for ranks in sorted({row.ranks for row in rows}):
        yield finding(f"{ranks} GPUs", [row for row in rows if row.ranks == ranks])
    for name, low, high in RANGES:
        inside = [row for row in rows if low < row.size_bytes <= high]
        if inside:
            yield finding(name, inside)


def _chosen(only: str | None) -> list[Engine]:
    names = choose(only, [engine.name for engine in ENGINES], "engine")
    return [engine for engine in ENGINES if engine.name in names]


def part_of(folder: Path, chip: str, found: list[tuple[Engine, str, list[Numbers]]]) -> str:
    """The fitted engines as a part of a machine, in TOML."""
    lines = [f"# Collectives of {chip} in one node: protocols fitted by `braid calibrate collectives`.\n"]
    for engine in dict.fromkeys(engine for engine, _, _ in found):
        table = f"{chip} {engine.library} {version_of(folder, chip, engine.library)}"
        source = f"ai-dynamo/aiconfigurator at 095f58a, {table}"
        lines += engine_tables(engine, {kind: numbers for one, kind, numbers in found if one is engine}, source)
    return "\n".join(lines)


def engine_tables(engine: Engine, kinds: dict[str, list[Numbers]], source: str) -> list[str]:
    """One engine in TOML: what it has beside its protocols, and a table for each of them. kinds: what was found."""
    kind = "all_gather" if "all_gather" in kinds else next(iter(kinds))
    return [_base(engine, kind, kinds[kind], source),
            *(_protocol(engine.name, kind, own, source) for kind, numbers in kinds.items() for own in numbers)]


def _fitted(value: float, unit: str, kind: str, source: str) -> str:
    said = f'kind = "fitted", confidence = "M", source = "{source}", fitted_on = "{kind} in one node, 256 B to 1 GiB"'
    return f'{{ value = {value:.4g}, unit = "{unit}", {said} }}'


def _assumed(value: float, unit: str, source: str, kind: str = "assumed") -> str:
    return f'{{ value = {value:g}, unit = "{unit}", kind = "{kind}", confidence = "M", source = "{source}" }}'


def _base(engine: Engine, kind: str, numbers: list[Numbers], source: str) -> str:
    """What an engine has beside its protocols: the start of the quickest to start, the rate of the fastest."""
    first = min(numbers, key=lambda own: own.startup_s)
    rate = max(own.rate_bytes_per_s for own in numbers if own.way.algorithm == first.way.algorithm)
    name = f"collectives.{engine.name}"
    return "\n".join([
        f"[{name}]", f"startup = {_fitted(first.startup_s * 1e6, 'us', kind, source)}",
        f"startup_per_peer = {_fitted(first.startup_per_peer_s * 1e6, 'us', kind, source)}",
        f"transfer_bytes = {_assumed(2, '1', 'one read where a byte leaves and one write where it arrives')}",
        f"cores.sm = {_assumed(engine.sms, '1', engine.source, engine.kind)}\n", f"[[{name}.ladder.default]]",
        f"rate = {_fitted(rate / 1e9, 'GB/s', kind, source)}"]) + "\n"  # fmt: skip


def _protocol(engine: str, kind: str, own: Numbers, source: str) -> str:
    """One protocol as a table of TOML."""
    lines = [f"[collectives.{engine}.protocols.{kind}_{own.way.name}]", f'kind = "{kind}"',
             f'algorithm = "{own.way.algorithm}"', f"startup = {_fitted(own.startup_s * 1e6, 'us', kind, source)}",
             f"startup_per_peer = {_fitted(own.startup_per_peer_s * 1e6, 'us', kind, source)}",
             f"rate = {_fitted(own.rate_bytes_per_s / 1e9, 'GB/s', kind, source)}"]
    if own.way.side:
        lines.append(f"{own.way.side} = {_fitted(own.limit_bytes / 2**20, 'MiB', kind, source)}")
    return "\n".join(lines) + "\n"
