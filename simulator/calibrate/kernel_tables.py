"""Public tables of measured kernels as lists of (work, seconds), and how far a kernel family is from them.

The tables are those of alibaba/InferSim (bench_data/*.csv) and ai-dynamo/aiconfigurator (*.parquet). They are read from
a folder that the caller names; nothing of them is kept here but the numbers that were fitted.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from simulator.die.kernels import Cost, Work, cost_of
from simulator.errors import InputError
from simulator.model import ops
from simulator.spec.kernels import KernelSpec
from simulator.spec.machine import ChipSpec

KernelTable = list[tuple[Work, float]]
FEW_EXPERTS = 16


class TableMissing(InputError):  # noqa: N818
    """A table that is not in the folder."""


@dataclass(frozen=True)
class Finding:
    """A line of what was found on tables: what, in words, and its numbers by name, in SI units."""

    what: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


class Fit(NamedTuple):
    """What is found about one kernel family, or engine, of a machine in a folder; whether to fit, or only compare."""

    machine: str
    family: str
    find: Callable[[Path, bool], Iterator[Finding]]


@dataclass(frozen=True)
class Misfit:
    """Relative errors of a family over a table."""

    errors: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the absolute values."""
        return median(map(abs, self.errors))

    @property
    def ninth_decile(self) -> float:
        """Nine in ten are nearer."""
        return sorted(map(abs, self.errors))[int(0.9 * (len(self.errors) - 1))]

    @property
    def loss(self) -> float:
        """What a fit makes small: the mean of |log(simulated / measured)|, which outliers do not rule."""
        return sum(abs(log(max(1.0 + error, 1e-9))) for error in self.errors) / len(self.errors)

    def __str__(self) -> str:
        return f"{len(self.errors)} rows, median {self.median:.1%}, 90% within {self.ninth_decile:.1%}"


def misfit(chip: ChipSpec, kernel: KernelSpec, table: KernelTable) -> Misfit:
    """How far a kernel family is from a table."""
    families = {work.family: kernel for work, _ in table}
    return Misfit(tuple(solo_s(cost_of(work, chip, families), chip) / seconds - 1.0 for work, seconds in table))


def solo_s(cost: Cost, chip: ChipSpec) -> float:
    """How long a kernel takes with the chip to itself and nothing in L2, in seconds."""
    units = cost.want
    if not cost.onchip_bytes:
        return cost.latency_s + cost.compute_s(units)
    hbm = cost.hbm_bytes / cost.onchip_bytes
    memory = min(chip.l2.rate.si, chip.hbm.peak.si * chip.hbm.efficiency.si / hbm if hbm else chip.l2.rate.si)
    together = cost.onchip_bytes * (1.0 - cost.unoverlapped) / min(cost.limit_bytes_per_s(units, hbm), memory)
    core_rate = cost.memory_limit_bytes_per_s(units, hbm)
    apart = cost.onchip_bytes / min(core_rate, memory) + cost.compute_s(units)
    return cost.latency_s + together + cost.unoverlapped * apart


def _there(path: Path) -> Path:
    """The path of a table; TableMissing if it is not there."""
    if not path.is_file():
        raise TableMissing(f"no table {path}")
    return path


def rows(folder: Path, name: str) -> Iterator[dict[str, str]]:
    """Of a CSV table of InferSim; TableMissing if it is not there."""
    with _there(folder / "infersim" / f"{name}.csv").open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def infersim_gemm(folder: Path, chip: str, dtype: str = "fp8") -> KernelTable:
    """bench_data/gemm/CHIP/data.csv: dense GEMMs."""
    return [
        (ops.gemm(int(row["m"]), int(row["n"]), int(row["k"]), dtype), float(row["latency_us"]) / 1e6)
        for row in rows(folder, f"gemm.{chip}.data")
    ]


def infersim_grouped(folder: Path, chip: str, phase: str, dtype: str = "fp8") -> KernelTable:
    """bench_data/grouped_gemm/PHASE/CHIP/data.csv: both products of many experts, as many rows each in the mean.

    Times step where experts of 1.3 times the mean fill one more tile, and reach the next step at 0.7 times: the rows of
    experts are uniform between, as in DeepGEMM's own benchmark (deepseek-ai/DeepGEMM, tests, `random.uniform`).
    Rows with less than two tokens per expert are left out: the table rounds them down, so some experts had none; so
    are those of few experts, whose draw is unknown.
    """
    table: KernelTable = []
    for row in rows(folder, f"grouped_gemm.{phase}.{chip}.data"):
        each, experts = int(row["tokens_per_expert"]), int(row["num_local_experts"])
        hidden, inner = int(row["hidden_size"]), int(row["intermediate_size"])
        if each < 2 or experts < FEW_EXPERTS:
            continue
        drawn = tuple(round(each * (0.7 + 0.6 * (place + 0.5) / experts)) for place in range(experts))
        up, down = float(row["up_proj_us"]) / 1e6, float(row["down_proj_us"]) / 1e6
        table.append((ops.grouped_gemm(drawn, 2 * inner, hidden, dtype), up))
        table.append((ops.grouped_gemm(drawn, hidden, inner, dtype), down))
    return table


def infersim_mla_decode(folder: Path, chip: str, family: str) -> KernelTable:
    """bench_data/mla/decode/CHIP/128-512-64.csv: absorbed MLA with 128 heads, BF16."""
    return [
        (ops.latent_attention(((1, int(row["kv_len"])),) * int(row["batch_size"]), 128, 512, 64, family),
         float(row["latency_us"]) / 1e6)
        for row in rows(folder, f"mla.decode.{chip}.128-512-64")
    ]  # fmt: skip


def infersim_mla_prefill(folder: Path, chip: str, family: str) -> KernelTable:
    """bench_data/mla/prefill/CHIP/128-128-64.csv: causal attention of one prompt, 128 heads of 192 and 128, BF16."""
    return [
        (ops.flash_attention(((int(row["seq_len"]), int(row["seq_len"]), True),), 128, 192, 128, family),
         float(row["latency_us"]) / 1e6)
        for row in rows(folder, f"mla.prefill.{chip}.128-128-64")
    ]  # fmt: skip


def aiconfigurator(folder: Path, name: str, **only: object) -> list[dict]:
    """Rows of a Parquet table whose columns have these values; latency in milliseconds. TableMissing without it."""
    import pyarrow
    import pyarrow.parquet as parquet

    path = _there(folder / "aiconfigurator" / name)
    try:
        every = parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path}: no Parquet file: {error}") from None
    return [row for row in every if all(row[key] == value for key, value in only.items())]
