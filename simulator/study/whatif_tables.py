"""What-ifs as tables that a person reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from simulator.observe.tables import Cell, Titled, number, show
from simulator.observe.tables import console as terminal_of
from simulator.study.whatif_band import Band
from simulator.study.whatif_elasticity import DELTA, Elasticity
from simulator.study.whatif_faster import REMARKS, FasterRow
from simulator.study.whatif_knobs import Fall, Flip
from simulator.study.whatif_parts import Found
from simulator.units import alike

if TYPE_CHECKING:
    from rich.console import RenderableType

LEAST = 0.0005  # of the run: what neither promises nor saves as much is named below the table
LEAST_VARIANCE = 0.005  # of all: what makes less of the band is left out of the table
MOST_REASONS = 3  # of draws: each has numbers of its own in it
_NOT_RUN = "did not run"


def print_found(found: Found) -> None:
    """Prints all tables, and why what-ifs could not run."""
    base = found.base
    changes = (f"changed: {key} = {text}" for key, text in base.scenario.changes.items())
    head = (f"{base.scenario.name}: {base.scenario.full_title}", f"seed {base.seed}", *changes,
            f"{base.metric}: {number(base.value)}")
    show(terminal_of(), "\n".join(head), "", *_tables(found))


def _tables(found: Found) -> Iterator[RenderableType]:
    metric = found.base.metric
    for title, rows, part in (("free", found.free, "free"), ("twice as fast", found.faster, "faster")):
        if part in found.parts:
            yield from _faster(title, rows, metric)
    if "elasticity" in found.parts:
        yield from _elasticity(found.elasticity, metric)
    if "knobs" in found.parts:
        yield from _knobs(found, metric)
    if found.band:
        yield from _band(found.band, metric)


def _faster(title: str, rows: Sequence[FasterRow], metric: str) -> Iterator[RenderableType]:
    shown = [row for row in rows if row.reason or max(row.promised, abs(row.saved or 0.0)) >= LEAST]
    cells: list[Sequence[Cell]] = [
        (row.what, f"{row.share:.1%}", f"{row.promised:.1%}", _share(row.saved),
         "-" if row.speed_up is None else f"{row.speed_up:.3f}", row.value, row.remark or (row.reason and _NOT_RUN))
        for row in rows if row in shown]
    if cells:
        head = ("<what if", ">of the path", ">promised", ">saved", ">speed-up", f">{metric}", "~remark")
        yield Titled(f"what if it were {title}", head, cells, "of the length of the run")
    idle = [row.what for row in rows if row not in shown]
    notes = [f"{remark}: {text}" for remark, text in REMARKS.items() if any(row.remark == remark for row in shown)]
    if idle:
        notes.append(f"Less than {LEAST:.2%} promised and saved: {', '.join(idle)}.")
    yield from _below([*notes, *_reasons((row.what, row.reason) for row in rows)])


def _elasticity(rows: Sequence[Elasticity], metric: str) -> Iterator[RenderableType]:
    cells: list[Sequence[Cell]] = [
        (row.parameter, row.value, " ".join(filter(None, (row.kind, row.confidence))), f"{row.share:.1%}",
         "-" if row.elasticity is None else f"{row.elasticity:+.3f}")
        for row in rows if row.elasticity is None or abs(row.elasticity) >= LEAST]
    if rows:
        yield Titled(f"elasticity of {metric}", ("<parameter", ">value", "<kind", ">of the path", ">elasticity"), cells,
                     f"percent for each percent of the parameter, by runs {DELTA:.0%} below and above")  # fmt: skip
    else:
        yield from _below(["No number of the machine bounds more than 1% of the critical path."])
    yield from _below([*_left_out(len(rows) - len(cells)), *_reasons((row.parameter, row.reason) for row in rows)])


def _knobs(found: Found, metric: str) -> Iterator[RenderableType]:
    for fall in found.falls:
        yield from _fall(fall, metric)
    if found.off:
        yield from _flips(found.off, metric)
    if not found.falls and not found.off:
        yield from _below(["This scenario has no knobs that are on or off, and no ladder."])


def _fall(fall: Fall, metric: str) -> Iterator[RenderableType]:
    together = None if fall.start is None or fall.end is None else fall.end - fall.start
    alone = _signed([None, *(step.alone for step in fall.steps), fall.alone, None])
    in_order = _signed([None, *(step.in_order for step in fall.steps), together, fall.remainder])
    last = _signed([None, *(step.last for step in fall.steps), None, None])
    names = ["none of them", *(step.switch for step in fall.steps), "all", "remainder: together - alone"]
    values = [fall.start, *(step.value for step in fall.steps), fall.end, "-"]
    rows: list[Sequence[Cell] | None] = [*zip(names, alone, in_order, last, values, strict=True)]
    rows.insert(-2, None)
    yield Titled(fall.title, ("<switched on", ">alone", ">in order", ">as the last", f">{metric}"), rows,
                 f"what changes in {metric}")  # fmt: skip
    reasons = dict.fromkeys(step.reason for step in fall.steps if step.reason)
    yield from _below([f"{_NOT_RUN}: {reason}" for reason in reasons])


def _flips(rows: Sequence[Flip], metric: str) -> Iterator[RenderableType]:
    changes = _signed([row.change for row in rows])
    yield Titled("knobs that are off, each switched on", ("<knob", ">changes by", f">{metric}"),
                 [(row.knob, change, row.value) for row, change in zip(rows, changes, strict=True)])  # fmt: skip
    yield from _below(_reasons((row.knob, row.reason) for row in rows))


def _band(band: Band, metric: str) -> Iterator[RenderableType]:
    if band.metrics:
        rows: list[Sequence[Cell]] = [(one.metric, *(number(value) for value in (one.point, one.p10, one.p50, one.p90)),
                                       f"{(one.p90 - one.p10) / one.point:.1%}" if one.point else "-")
                                      for one in band.metrics]  # fmt: skip
        yield Titled("band of uncertainty", ("<metric", ">as it is", ">p10", ">p50", ">p90", ">p90 - p10"), rows,
                     f"{band.draws} draws of {band.drawn} numbers, each evenly within 3%, 10% or 30% by its confidence")
    if band.causes:
        causes: list[Sequence[Cell]] = [
            (one.parameter, f"+-{one.range:.0%}", f"{one.moves:+.1%}", f"{one.variance:.0%}",
             "-" if one.rank is None else f"{one.rank:+.2f}")
            for one in band.causes if one.variance >= LEAST_VARIANCE or one is band.causes[0]]
        yield Titled(f"what makes the band of {metric} wide",
                     ("<parameter", ">known to", ">moves it by", ">of the variance", ">rank correlation"), causes,
                     "to first order, of numbers that bound more than 1% of the path; --all: of all")  # fmt: skip
        yield from _below(_left_out(len(band.causes) - len(causes)))
    reasons = [f"{_NOT_RUN}: {reason}" for reason in band.reasons[:MOST_REASONS]]
    more = len(band.reasons) - len(reasons)
    yield from _below([*reasons, *([f"... and {more} more reasons"] if more else [])])


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}".replace("-0.0%", "0.0%")


def _signed(values: Sequence[float | None]) -> list[str]:
    """A column of changes, with their signs."""
    return [f"+{text}" if value and value > 0 and text.strip("0.,") else text
            for value, text in zip(values, alike(values), strict=True)]


def _left_out(count: int) -> list[str]:
    return [f"Next to nothing: {count} more."] if count else []


def _reasons(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{what} {_NOT_RUN}: {reason}" for what, reason in rows if reason]


def _below(lines: Sequence[str]) -> Iterator[RenderableType]:
    """Text below a table."""
    if lines:
        yield "\n".join(lines) + "\n"
