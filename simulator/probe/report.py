"""What was measured, for people: the chip, laws and launches, and two streams measured beside two streams simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from simulator.observe.tables import markdown_table
from simulator.probe import part
from simulator.probe.device import LAUNCHES
from simulator.probe.fit import FamilyFit, Reached, families, reached
from simulator.probe.record import Record
from simulator.probe.streams import PairTimes, compare
from simulator.spec.kernels import KernelSpec
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import TomlTable, validate
from simulator.units import format_si

CELLS = 90  # of a picture of two streams
CHECK_HEAD = ("two streams", "stream", "alone", "beside", "spread", "stretch", "simulated", "error")
_CHECK = """\
How long each kernel takes alone is given; what it costs it to run beside another one is predicted: cores are held from
start to end, L2 and HBM are shared max-min. The first stream is launched ahead. *Stretch* is the time of a stream
beside the other over its time alone, measured and simulated; *spread* is half of what the middle of the repeats spans.
Cores that a loop or a product holds are counted as one for each thread block or tile; the driver's copy as none.
*Cores alone* is the same with HBM and L2 that two streams cannot exhaust, so that they share nothing but SMs."""


@dataclass(frozen=True)
class Findings:
    """All that a record gives. part: the text of probe.toml. reached: None where too little was measured."""

    record: Record
    reached: Reached | None
    families: list[FamilyFit]
    pairs: list[PairTimes]
    part: str

    @property
    def errors(self) -> dict[str, float]:
        """Medians over the streams of |predicted / measured - 1|: as simulated, if they shared cores alone, and if they
        shared nothing; and over pairs, of when both have ended, as simulated and if streams ran one after the other."""
        streams = [one for pair in self.pairs for one in pair.streams]
        if not streams:
            return {}
        return {"max-min": median(abs(one.error) for one in streams),
                "cores alone": median(abs((one.uncontended_s - one.start_s) / one.alone_s[-1] / one.stretch - 1.0)
                                      for one in streams),
                "no contention": median(abs(1.0 / one.stretch - 1.0) for one in streams),
                "both ended, max-min": median(abs(pair.simulated_s / pair.measured_s - 1.0) for pair in self.pairs),
                "both ended, one after the other": median(abs(pair.serial_s / pair.measured_s - 1.0)
                                                          for pair in self.pairs)}


class _Kernels(TomlTable):
    kernels: dict[str, dict[str, KernelSpec]]


def findings(record: Record) -> Findings:
    """The numbers of a machine from a record, and the simulation of its streams on them."""
    most = reached(record)
    if most is None:
        return Findings(record, None, [], [], part.text(record, "", []))
    text = part.chip_text(record, most)
    chip = part.chip_of(text)
    fits = list(families(record, chip))
    whole = part.text(record, text, fits)
    tables = {"kernels": part.tables_of(whole).get("kernels", {})}
    laws = validate(_Kernels, tables, "probe").kernels.get(part.GENERATION, {})
    return Findings(record, most, fits, list(compare(record, chip, laws)), whole)


def check_rows(pairs: Sequence[PairTimes]) -> Iterator[tuple[str, ...]]:
    """A row for each stream of each pair, as `CHECK_HEAD` heads them."""
    for pair in pairs:
        for place, one in enumerate(pair.streams):
            yield (pair.title if not place else "", str(one.kernel), format_si(one.alone_s[-1], "s"),
                   format_si(one.measured_s[-1] - one.start_s, "s"), f"{one.spread:.1%}", f"{one.stretch:.2f}",
                   f"{one.simulated_stretch:.2f}", f"{one.error:+.1%}")  # fmt: skip


def markdown(found: Findings) -> str:
    """The report as a file."""
    record = found.record
    blocks = [f"# braid probe: {record.about.name}", record.source + ". Made from probe.json by `braid probe --from`.",
              *_reached(found), *_laws(found), *_launches(record), *_between_gpus(record), *_check(found)]  # fmt: skip
    if out := [f"* {row['key']}: {row['left_out']}" for row in record.rows if "left_out" in row]:
        blocks += ["## Left out", "\n".join(out)]
    return "\n\n".join(blocks) + "\n"


def _reached(found: Findings) -> Iterator[str]:
    most, about = found.reached, found.record.about
    yield "## What the chip reaches"
    if most is None:
        yield "Too little was measured: sections gemm and copy say it."
        return
    rows = [[f"products in {dtype.upper()}", format_si(rate, "FLOP/s")] for dtype, rate in most.flops_per_s.items()]
    peak = f" of {format_si(about.hbm_bytes_per_s, 'B/s')}" if about.hbm_bytes_per_s else ""
    rows += [["HBM", format_si(most.hbm_bytes_per_s, "B/s") + peak], ["L2", format_si(most.l2_bytes_per_s, "B/s")],
             ["one SM through L2", format_si(most.core_bytes_per_s, "B/s")]]  # fmt: skip
    yield markdown_table(("what", "reached"), rows)


def _laws(found: Findings) -> Iterator[str]:
    yield "## Kernel families"
    rows = [[one.name, *([one.table.law, "; ".join(f"{name} {error}" for name, error in one.found.errors.items())]
                         if one.found and one.table else ["", one.why])] for one in found.families]  # fmt: skip
    yield markdown_table(("family", "law", "errors of the fit"), rows)


def _launches(record: Record) -> Iterator[str]:
    times = {what: record.launch_s(what) for what in LAUNCHES}
    rows = [[LAUNCHES[what], format_si(seconds, "s")] for what, seconds in times.items() if seconds is not None]
    if not rows:
        return
    yield "## Launches"
    hop_s, kernel_s = times["dependent_graph"], times["graph"]
    if hop_s is not None and kernel_s is not None:
        rows.append(["of it, waiting for the other stream in a graph", format_si(max(hop_s - kernel_s, 0.0), "s")])
    yield markdown_table(("what", "time"), rows)


def _between_gpus(record: Record) -> Iterator[str]:
    rows = [[row["key"], format_si(row["size_bytes"] / median(row["seconds"]), "B/s")]
            for row in record.measured("peers")]
    rows += [[f"{one['kind']} of {one['size_bytes']} B, {row['ranks']} GPUs", format_si(median(one["seconds"]), "s")]
             for row in record.measured("collectives") for one in row["results"]]  # fmt: skip
    if rows:
        yield "## Between GPUs"
        yield markdown_table(("what", "measured"), rows)


def _check(found: Findings) -> Iterator[str]:
    if not found.pairs:
        return
    yield "## Two streams, measured and simulated"
    yield _CHECK
    yield markdown_table(CHECK_HEAD, [list(row) for row in check_rows(found.pairs)])
    errors = [[name, f"{error:.1%}"] for name, error in found.errors.items()]
    yield markdown_table(("prediction", "median error"), errors)
    yield "### Timelines"
    yield "A letter is a kernel, capital and small in turn; both pictures of a pair have one scale."
    for pair in found.pairs:
        yield f"{pair.title}, {format_si(pair.measured_s, 's')} measured, {format_si(pair.simulated_s, 's')} simulated:"
        yield "```text\n" + "\n".join(picture(pair)) + "\n```"


def picture(pair: PairTimes) -> Iterator[str]:
    """Both streams as measured and as simulated."""
    begin = min(one.start_s for one in pair.streams)
    whole = max(pair.measured_s, pair.simulated_s)
    for what in ("measured", "simulated"):
        for one in pair.streams:
            ends = one.measured_s if what == "measured" else one.simulated_s
            places = [round(CELLS * (time - begin) / whole) for time in (one.start_s, *ends)]
            letter = one.kernel.family[0]
            drawn = "".join((letter.upper() if number % 2 == 0 else letter) * (end - start)
                            for number, (start, end) in enumerate(pairwise(places)))  # fmt: skip
            yield f"{what:9s} {one.kernel.family:20s} |{' ' * places[0]}{drawn}".ljust(33 + CELLS) + "|"


def is_whole(found: Findings) -> bool:
    """Whether the part is a machine by itself."""
    needed = ("chip", "host", "fabric", "collectives", "kernels")
    return set(needed) <= set(part.tables_of(found.part)) <= set(MachineSpec.model_fields)
