"""DeepEP's kernels against public tables of one node: how far a machine's are, and what a fit finds.

Tables are those of ai-dynamo/aiconfigurator, systems/data: CHIP/comm/sglang/VERSION/wideep_deepep_{ll,normal}_perf
.parquet, dispatch (FP8) and combine (BF16) on 8 GPUs whose tokens choose any expert, in microseconds. Two numbers are
fitted on each: what does not grow with tokens, and the rate of NVLink (low latency) or of a channel (normal).

Kernels and stores over NVLink are put together as the exchanges do it (`parallel.exchange.deepep_ll`, `deepep_normal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import exp
from pathlib import Path
from typing import Any, Literal, NamedTuple

from simulator.calibrate.collectives import CHIPS
from simulator.calibrate.kernel_tables import Finding, Misfit, TableMissing, solo_s
from simulator.die.kernels import Work, cost_of
from simulator.errors import InputError
from simulator.model import ops
from simulator.model.transformer import Experts
from simulator.parallel.exchange.copies import even_copies
from simulator.parallel.exchange.rows import SOURCE_BYTES, copy_out
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec

RANKS = 8
TOKENS = ((1, 16), (17, 128), (129, 1024), (1025, 131072))
Kind = Literal["ll", "normal"]
FITTED: dict[Kind, tuple[tuple[str, ...], str]] = {
    "ll": (("deepep_ll_dispatch", "deepep_ll_combine"), "GB/s on NVLink"),
    "normal": (("deepep_notify",), "GB/s of a channel"),
}
"""Families whose floor is fitted, and what the fitted rate is of."""


class Row(NamedTuple):
    """One measurement. sms: of the normal kernels, 0 of the others."""

    tokens: int
    hidden: int
    chosen: int
    experts: int
    sms: int
    dispatch_s: float
    combine_s: float


def table_of(folder: Path, chip: str, kind: Kind) -> list[Row]:
    """The rows of a table; TableMissing without it, InputError if it has other columns."""
    import pyarrow.parquet as parquet

    name = f"wideep_deepep_{kind}_perf.parquet"
    paths = sorted((folder / chip / "comm" / "sglang").glob(f"*/{name}"))
    if not paths:
        raise TableMissing(f"no table {folder / chip / 'comm' / 'sglang' / '*' / name}")
    path, time = paths[-1], "avg_t_us" if kind == "ll" else "transmit_us"
    try:
        return [Row(row["num_token"], row["hidden_size"], row["num_topk"], row["num_experts"],
                    row.get("dispatch_sms", 0), row[f"dispatch_{time}"] / 1e6, row[f"combine_{time}"] / 1e6)
                for row in parquet.read_table(path).to_pylist() if row["node_num"] == 1]  # fmt: skip
    except KeyError as error:
        raise InputError(f"{path}: no column {error}") from error


def compare(folder: Path, machine: str, fit: bool = False) -> Iterator[Finding]:
    """How far a machine is from its tables, by block, tokens and SMs; fit: with the numbers that are nearest.

    InputError: no tables are of its chip, or it has none of DeepEP's kernels.
    """
    spec = load_machine(machine)
    if machine not in CHIPS or not {"deepep_ll_send", "deepep_notify"} <= spec.exchange_kernels.keys():
        there = ", ".join(CHIPS)
        raise InputError(f"machine {machine} has no kernels of DeepEP, or no tables are read for it (those of {there})")
    for kind in FITTED:
        rows = table_of(folder, CHIPS[machine], kind)
        if fit:
            spec, numbers = fitted(spec, kind, rows)
            floor, rate = FITTED[kind]
            text = f"{', '.join(floor)}: floor {numbers[0] * 1e6:.4g} us; {numbers[1] / 1e9:.4g} {rate}"
            yield Finding(f"deepep {kind}", text, {"floor_s": numbers[0], "rate_bytes_per_s": numbers[1]})
        yield from _findings(spec, kind, rows)


def _findings(spec: MachineSpec, kind: Kind, rows: Sequence[Row]) -> Iterator[Finding]:
    errors = {row: errors_of(spec, kind, row) for row in rows}
    ranges = [(f"{low} to {high} tokens", [row for row in rows if low <= row.tokens <= high])
              for low, high in TOKENS]  # fmt: skip
    sms = [(f"{count} SMs", [row for row in rows if row.sms == count]) for count in sorted({row.sms for row in rows})]
    for block, name in enumerate(("dispatch", "combine")):
        for what, chosen in [("all", list(rows)), *ranges, *(sms if kind == "normal" else [])]:
            if chosen:
                off = Misfit(tuple(errors[row][block] for row in chosen))
                within = sum(abs(error) <= 0.2 for error in off.errors) / len(chosen)
                numbers = {"rows": len(chosen), "median_error": off.median, "within_20": within}
                yield Finding(f"deepep {kind} {name}", f"{what:22s} {off}, {within:.1%} within 20%", numbers)


# --- what the exchanges say -------------------------------------------------------------------------------------------


def errors_of(spec: MachineSpec, kind: Kind, row: Row) -> tuple[float, float]:
    """Of dispatch and combine, relative to what was measured."""
    found = (low_latency_s if kind == "ll" else normal_s)(spec, row)
    return found[0] / row.dispatch_s - 1.0, found[1] / row.combine_s - 1.0


def low_latency_s(spec: MachineSpec, row: Row) -> tuple[float, float]:
    """Dispatch and combine of the low-latency kernels in one node."""
    there, back = row_bytes(row)
    rows, tokens, experts = row.tokens * row.chosen, row.tokens, row.experts
    blocks = (0,) * experts

    def sent_s(size: int) -> float:
        return stored_s(spec, "deepep_ll", rows * size)

    send = ops.loop("deepep_ll_send", experts, tokens, 2.0 * tokens * row.hidden, 1.0 * tokens * there)
    sums = ops.loop("deepep_ll_sum", experts, tokens, 1.0 * rows * back, 1.0 * tokens * back)
    begins = [_alone_s(spec, Work(f"deepep_ll_{block}", kind="vector", dtype="fp32", rows=blocks))
              for block in ("dispatch", "combine")]  # fmt: skip
    dispatch = begins[0] + max(sent_s(there), _alone_s(spec, send)) + _alone_s(spec, copy_out(rows * there))
    return dispatch, begins[1] + sent_s(back) + _alone_s(spec, sums)


def normal_s(spec: MachineSpec, row: Row) -> tuple[float, float]:
    """Dispatch and combine of the normal kernels in one node."""
    experts = Experts(routed=row.experts, per_token=row.chosen, intermediate=1)
    copies = even_copies(experts, row.tokens, RANKS, RANKS, 0, 1, 0).inside.leaving
    notified = _alone_s(spec, Work("deepep_notify", kind="vector", dtype="fp32"))
    found = []
    for block, size, out, width in zip(("dispatch", "combine"), row_bytes(row), (copies, row.tokens), (0, row.hidden),
                                       strict=True):
        loop = ops.loop(f"deepep_normal_{block}", row.sms // 2, row.tokens, copies * size, out * size, width)
        found.append(notified + max(stored_s(spec, "deepep_normal", copies * size), _alone_s(spec, loop)))
    return found[0], found[1]


def row_bytes(row: Row) -> tuple[int, int]:
    """Of a dispatched row, FP8 with a scale for 128 values, and of a combined one."""
    return row.hidden + row.hidden // 32 + SOURCE_BYTES, 2 * row.hidden


def stored_s(spec: MachineSpec, engine: str, size: float) -> float:
    """Stores of so many bytes to all ranks of a node evenly, the own one among them."""
    level, own = spec.fabric[0], spec.collectives[engine]
    rate = min(level.link_rate.si, own.rate_bytes_per_s("all_to_all", size / RANKS))
    return own.startup_s(members=1) + level.latency.si + size * (RANKS - 1) / RANKS / rate


def _alone_s(spec: MachineSpec, work: Work) -> float:
    generation = next(iter(spec.kernels))
    return solo_s(cost_of(work, spec.chip, spec.kernels_of(generation)), spec.chip)


# --- fits -------------------------------------------------------------------------------------------------------------


def fitted(spec: MachineSpec, kind: Kind, rows: Sequence[Row]) -> tuple[MachineSpec, tuple[float, float]]:
    """The machine with the floor (s) and rate (bytes/s) that are nearest to the rows, and these."""
    start = _numbers(spec, kind)

    def loss(numbers: tuple[float, float]) -> float:
        changed = with_numbers(spec, kind, *numbers)
        return Misfit(tuple(error for row in rows for error in errors_of(changed, kind, row))).loss

    found = _nearest(start, loss)
    return with_numbers(spec, kind, *found), found


def _numbers(spec: MachineSpec, kind: Kind) -> tuple[float, float]:
    floor = spec.exchange_kernels[FITTED[kind][0][0]].floor_s
    if kind == "ll":
        return floor, spec.collectives["deepep_ll"].ladder.default[0].rate.si
    loop: Any = spec.exchange_kernels["deepep_normal_dispatch"]
    return floor, loop.rate.si


def with_numbers(spec: MachineSpec, kind: Kind, floor_s: float, rate: float) -> MachineSpec:
    """A machine with another floor (s) and rate (bytes/s) of one kind of kernels."""
    tables = spec.model_dump()
    for family in FITTED[kind][0]:
        tables["exchange_kernels"][family]["floor"].update(value=floor_s * 1e6, unit="us")
    if kind == "ll":
        tables["collectives"]["deepep_ll"]["ladder"]["default"][0]["rate"].update(value=rate / 1e9, unit="GB/s")
    for block in ("dispatch", "combine") if kind == "normal" else ():
        tables["exchange_kernels"][f"deepep_normal_{block}"]["rate"].update(value=rate / 1e9, unit="GB/s")
    return MachineSpec.model_validate(tables)


def _nearest(start: tuple[float, float], loss: Callable[[tuple[float, float]], float]) -> tuple[float, float]:
    """Along each number in turn, by steps that halve: the loss is nearly convex in their logarithms."""
    best, least, step = list(start), loss(start), 0.3
    while step > 0.004:
        moved = False
        for at in range(len(best)):
            for way in (step, -step):
                tried = [one * exp(way) if place == at else one for place, one in enumerate(best)]
                found = loss((tried[0], tried[1]))
                if found < least:
                    best, least, moved = tried, found, True
                    break
        step = step if moved else step / 2.0
    return best[0], best[1]
