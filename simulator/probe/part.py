"""What was measured as a part of a machine, in TOML: every number with its source. It is a whole machine where all
sections were measured."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from math import isfinite
from statistics import median
from typing import Any

from simulator.calibrate.collectives import Engine, engine_tables
from simulator.calibrate.library_toml import text_of
from simulator.calibrate.protocol_fit import Row, Way, fit
from simulator.errors import InputError
from simulator.probe.fit import FamilyFit, Reached
from simulator.probe.record import Record
from simulator.spec.machine import ChipSpec
from simulator.spec.typed_toml import validate

GENERATION = "vllm_probe"
"""Of the kernels: the name begins with that of the stack whose launches they can serve, as machine files have it."""
NCCL = Engine("nccl", "nccl", 20, "assumed", "NVIDIA NCCL documentation: 16 to 24 thread blocks by default, an SM each")
RINGS = Way("ring_ll", "ring"), Way("ring_simple", "ring")
WAYS = {"all_reduce": (*RINGS, Way("nvls", "nvls")), "all_gather": RINGS, "reduce_scatter": RINGS,
        "all_to_all": (Way("direct", "direct"),)}
LINK_LATENCY_S = 1e-6
_HEAD = """\
Measured by `braid probe`; made from probe.json, which lies beside this file. A whole machine where everything was
measured, as --set machine=./probe.toml takes it; other files can start from it: extends = "./probe.toml".
Peaks are what the fastest kernel reached, not those of a datasheet."""


def chip_text(record: Record, most: Reached) -> str:
    """The chip, in TOML."""
    about, source = record.about, record.source
    device = f"{source}: properties of the device"
    peak = max(about.hbm_bytes_per_s, most.hbm_bytes_per_s)
    published = about.hbm_bytes_per_s >= most.hbm_bytes_per_s
    peak_line = (number(peak / 1e12, "TB/s", "derived", device, expression="2 x memory clock x bus width")
                 if published else number(peak / 1e12, "TB/s", "fitted", source, on="the fastest kernel through HBM"))
    clock = (number(about.clock_hz / 1e9, "GHz", "published", device) if about.clock_hz
             else number(1, "GHz", "assumed", "the driver does not say"))
    share = most.hbm_bytes_per_s / peak
    rereads = "the faster of copies inside L2 and what products read again in tiles of 256 x 256"
    ports = "copies inside L2 by few thread blocks"
    bounded = number(most.l2_bytes_per_s / 1e12, "TB/s", "assumed", "bounded by HBM")
    flops = [f"{dtype} = {number(rate / 1e12, 'TFLOPS', 'fitted', source, on='the fastest product of the grid')}"
             for dtype, rate in most.flops_per_s.items()]  # fmt: skip
    piece = number(16, "KiB", "assumed", "published nowhere; only decides how many SMs a small kernel asks for")
    return "\n".join([
        "[chip]", f"name = {quoted(about.name)}", f"clock = {clock}", f"tile_bytes = {piece}", "",
        "[chip.cores]", f"sm = {number(about.sms, '1', 'published', device)}",
        f"copy_engine = {number(4, '1', 'assumed', 'published nowhere')}",
        f"sdma = {number(8, '1', 'assumed', 'published nowhere')}", "",
        "[chip.peak.sm]", *flops, "", "[chip.hbm]",
        f"capacity = {number(about.memory_bytes / 2**20, 'MiB', 'published', device)}",
        f"peak = {peak_line}",
        f"efficiency = {number(share, '1', 'fitted', source, on='the fastest kernel through HBM')}",
        f"usable = {number(0.95, '1', 'assumed', 'contexts, workspaces and graphs take the rest')}", "", "[chip.l2]",
        f"capacity = {number(about.l2_bytes / 2**20, 'MiB', 'published', device)}",
        f"rate = {number(most.l2_bytes_per_s / 1e12, 'TB/s', 'fitted', source, on=rereads)}",
        "", "[chip.l2.port_rate]",
        f"sm = {number(most.core_bytes_per_s / 1e9, 'GB/s', 'fitted', source, on=ports)}",
        f"copy_engine = {bounded}", f"sdma = {bounded}"]) + "\n"  # fmt: skip


def tables_of(text: str) -> dict[str, Any]:
    """The tables of a text of TOML."""
    return tomllib.loads(text)


def chip_of(text: str) -> ChipSpec:
    """The chip of a text that `chip_text` made."""
    return validate(ChipSpec, tables_of(text)["chip"], "probe")


def text(record: Record, chip: str, families: list[FamilyFit]) -> str:
    """The whole part. chip: of `chip_text`, or "" where too little was measured."""
    about = record.about
    many = f" x {about.gpus}" if about.gpus > 1 else ""
    title = f"title = {quoted(f'{about.name}{many}, as braid probe measured it')}"
    doc = f"doc = {quoted(record.source)}"
    head = [*(f"# {line}" for line in _HEAD.splitlines()), 'name = "probe"', title, doc,
            f"dies_per_card = {number(1, '1', 'derived', record.source, expression='a GPU is a rank')}", ""]
    tables = [family.table for family in families if family.table is not None]
    errors = "\n".join(["Kernels of PyTorch: laws fitted on what was measured, with their errors.",
                        *(f"  {family.name}: {family.why}" for family in families if family.why)])
    kernels = text_of(GENERATION, errors, tables) if tables else ""
    between = ("\n".join(lines(record)) for lines in (_host, _links, _collectives))
    return "\n".join(part for part in ("\n".join(head), chip, *between, kernels) if part)


def quoted(words: str) -> str:
    """As TOML has them between quotation marks."""
    return json.dumps(words, ensure_ascii=False)


def number(value: float, unit: str, kind: str, source: str, *, on: str = "", expression: str = "",
           digits: int = 4) -> str:
    """A quantity of TOML; on: what a fitted one was fitted on."""
    shown = f"{value:.0f}" if isfinite(value) and value == round(value) else f"{value:.{digits}g}"
    more = f', fitted_on = "{on}"' if on else f', expression = "{expression}"' if expression else ""
    confidence = "L" if kind == "assumed" else "M"
    said = f'kind = "{kind}", confidence = "{confidence}", source = {quoted(source)}{more}'
    return f'{{ value = {shown}, unit = "{unit}", {said} }}'


def _host(record: Record) -> Iterator[str]:
    names = {"launch_eager": "eager", "launch_graph": "graph_launch", "device_read": "device_read"}
    found = {name: record.launch_s(what) for name, what in names.items()}
    if any(seconds is None for seconds in found.values()):
        return
    yield "[host]"
    for name, seconds in found.items():
        assert seconds is not None
        yield f"{name} = {number(seconds * 1e6, 'us', 'fitted', record.source, on='the smallest operator of PyTorch')}"
    yield ""


def _links(record: Record) -> Iterator[str]:
    """The level of the fabric that the GPUs of this host are on."""
    count = record.about.gpus
    rates = [row["size_bytes"] / median(row["seconds"]) for row in record.measured("peers")]
    if count > 1 and not rates:
        return
    source = record.source if rates else "one GPU: no link is crossed"
    rate = number(max(rates) / 1e9, "GB/s", "fitted", source, on="copies between GPUs") if rates else number(
        1, "GB/s", "assumed", source)  # fmt: skip
    yield from ("[[fabric]]", 'name = "node"', 'kind = "switch"', 'ports = "die"',
                f"size = {number(count, '1', 'published', record.source)}", f"link_rate = {rate}",
                f"latency = {number(LINK_LATENCY_S * 1e6, 'us', 'assumed', 'only its sum with a start-up counts')}", "")


def _unused_engine() -> Iterator[str]:
    """What stacks launch collectives with, on a machine where none goes anywhere."""

    def said(value: float, unit: str) -> str:
        return number(value, unit, "assumed", "one GPU: no collective runs")

    yield from (f"[collectives.{NCCL.name}]", f"transfer_bytes = {said(2, '1')}", f"cores.sm = {said(1, '1')}",
                f"[[collectives.{NCCL.name}.ladder.default]]", f"rate = {said(1, 'GB/s')}", "")


def _collectives(record: Record) -> Iterator[str]:
    """NCCL as protocols, fitted on what was measured."""
    rows: dict[str, list[Row]] = {}
    for row in record.measured("collectives"):
        for one in row["results"]:
            rows.setdefault(one["kind"], []).append(Row(row["ranks"], one["size_bytes"], median(one["seconds"])))
    rates = [row["size_bytes"] / median(row["seconds"]) for row in record.measured("peers")]
    if record.about.gpus == 1:
        yield from _unused_engine()
    if not rows or not rates:
        return
    fastest = max(max(rates), max(row.size_bytes / row.seconds for own in rows.values() for row in own))
    kinds: dict[str, Any] = {}
    for kind, own in rows.items():
        ways = WAYS[kind]
        try:
            kinds[kind] = fit(own, kind, ways, LINK_LATENCY_S, fastest)
        except InputError:  # too few to tell them apart
            kinds[kind] = fit(own, kind, ways[:1], LINK_LATENCY_S, fastest)
    yield from engine_tables(NCCL, kinds, record.source)
