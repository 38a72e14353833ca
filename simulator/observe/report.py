"""What a person reads after a run: a table against what was expected, where the time went, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import IO, TYPE_CHECKING, Any

from simulator.observe.columns import Columns
from simulator.observe.critical import CriticalPath
from simulator.observe.kernel_times import KernelTimes
from simulator.observe.layer_budget import LayerBudget
from simulator.observe.metrics import CommunicationTimes, Metrics
from simulator.observe.tables import Cell, SideBySide, Titled, console, number, percent, show, time_unit
from simulator.units import alike

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

PS_PER_MS = 10**9


@dataclass(frozen=True)
class ExpectedRow:
    """A published or measured value beside the simulated one, if there is one; role: fit or predict.

    error: relative to what was expected. band: what was published instead of one value, in words ("above 1"); inside it
    there is no error. scenario: whose value it is. note: its source. missing: why nothing is simulated beside it.
    """

    id: str
    metric: str
    value: float | None
    simulated: float | None
    error: float | None
    role: str
    band: str = ""
    scenario: str = ""
    note: str = ""
    missing: str = ""

    def cells(self, number: Callable[[Any], str], absent: str = "-") -> tuple[str, str, str]:
        """What was expected, what is simulated (or the text `absent`) and the error, as a table has them."""
        simulated = absent if self.simulated is None else number(self.simulated)
        error = "-" if self.error is None else "none" if self.band and not self.error else percent(self.error)
        return self.band or number(self.value), simulated, error


@dataclass(frozen=True)
class Footnote:
    """Where a parameter comes from: `value` as text with its unit, `kind` published | derived | fitted | assumed.
    saves: of the run's length, as text, if it were twice as good."""

    parameter: str
    saves: str
    value: str
    kind: str
    source: str


@dataclass(frozen=True)
class ReportInput:
    """All that a report shows; what is empty or None is left out.

    facts: lines below the title. numbers: headline metrics as (name, text), `meanings` of whose names are said beside
    them. columns: drawn for the middle layer of rank 0.
    """

    title: str
    facts: Sequence[str] = ()
    numbers: Sequence[tuple[str, str]] = ()
    expected: Sequence[ExpectedRow] = ()
    metrics: Metrics | None = None
    path: CriticalPath | None = None
    columns: Columns | None = None
    footnotes: Sequence[Footnote] = ()
    meanings: Mapping[str, str] = field(default_factory=dict)


def print_report(report: ReportInput, file: IO[str] | None = None, width: int | None = None) -> None:
    """Prints a report to a terminal, or as plain text to anything else (see `tables`)."""
    terminal = console(file, width)
    show(terminal, *parts(report, terminal.width))


def print_kernels(columns: Columns, file: IO[str] | None = None, width: int | None = None) -> None:
    """Prints the table of all kernels and collectives."""
    from simulator.observe.kernel_times import kernel_times

    show(console(file, width), kernel_table(kernel_times(columns)))


def parts(report: ReportInput, width: int) -> list[RenderableType]:
    """The pieces of a report from top to bottom; the picture is as wide as the console."""
    from rich.text import Text

    header = Text.assemble((report.title, "bold"), *(f"\n{fact}" for fact in report.facts))
    made: list[RenderableType] = [header, *([_numbers(report)] if report.numbers else ()), ""]
    if report.expected:
        made.append(expected_table(report.expected))
    if report.metrics is not None and report.metrics.makespan_ps:
        made += _times(report.metrics)
    if report.path is not None and report.path.segments:
        made.append(critical_table(report.path))
    if report.columns is not None and len(report.columns["rank"]):
        from simulator.observe.layer_budget import layer_budget
        from simulator.observe.layer_picture import layer_picture

        budget = layer_budget(report.columns, rank=0)
        if budget is not None:
            made.append(budget_table(budget))
        made += [layer_picture(report.columns, rank=0, width=width), ""]
    if report.footnotes:
        made.append(footnote_table(report.footnotes))
    return made


def expected_table(rows: Sequence[ExpectedRow]) -> Titled:
    """Expected against simulated; a fitted value is no evidence, hence the role beside every error."""
    headings = ("<id", "<metric", ">expected", ">simulated", ">error", "<role")
    return Titled("expected against simulated", headings,
                  [(row.id, row.metric, *row.cells(number), row.role) for row in rows])


def share_table(title: str, what: str, times_ps: Mapping[str, float], metrics: Metrics, caption: str) -> Titled:
    """Times and their shares of the run."""
    rows = [(name, length / PS_PER_MS, percent_of_run(length, metrics)) for name, length in times_ps.items()]
    return Titled(title, (f"<{what}", ">ms", ">of the run"), rows, caption)


def communication_table(metrics: Metrics) -> Titled:
    """Communication by name: at work, hidden under compute, exposed, waiting for peers or cores."""
    headings = ("<name", ">busy", ">hidden", ">exposed", ">waiting", ">of it exposed")
    times = {name: one for name, one in metrics.communication.items() if one.busy_ps or one.waiting_ps}
    if len(metrics.communication) > 1:
        times["all (overlaps once)"] = metrics.all_communication
    rows: list[Sequence[Cell] | None] = [*zip(times, *_communication([*times.values()], metrics), strict=True)]
    if len(metrics.communication) > 1:
        rows.insert(-1, None)
    return Titled("communication", headings, rows, "ms of an average rank, share of the run")


def critical_table(path: CriticalPath, least: float = 0.01) -> Titled:
    """What bounded more than a share `least` of the critical path."""
    rows = [(kind, bound, part * path.makespan_ps / PS_PER_MS, f"{part:.1%}")
            for (kind, bound), part in path.by_kind_and_bound(least).items()]
    return Titled("critical path", ("<kind", "<bound by", ">ms", ">of the path"), rows, f"more than {least:.0%} of it")


def budget_table(budget: LayerBudget) -> Titled:
    """One layer, block by block: at work, hidden under other streams (and which), exposed, waiting."""
    name, unit_ps = time_unit(budget.span_ps)

    def time(time_ps: float) -> str:
        return number(time_ps / unit_ps)

    step = "" if budget.step_ps is None else f"; the next one starts {time(budget.step_ps)} {name} after it started"
    caption = f"{name} of rank {budget.rank}, layer {budget.layer}, {time(budget.span_ps)} {name} long{step}"
    headings = ("<block", ">tasks", ">work", ">beside others", ">alone", ">waiting", "<bound by", "~runs beside")
    rows: list[Sequence[Cell]] = []
    for block in budget.blocks:
        beside = ", ".join(f"{name} {time(its_ps)}" for name, its_ps in list(block.beside_ps.items())[:3])
        times = (block.work_ps, block.accompanied_ps, block.alone_ps, block.waiting_ps)
        rows.append((block.block, block.tasks, *(one / unit_ps for one in times), block.bound_by, beside or "-"))
    return Titled("budget of one layer", headings, rows, caption)


def kernel_table(kernels: Sequence[KernelTimes]) -> Titled:
    """Kernels and collectives by name: at work, and waiting for cores or peers before it."""
    rows: list[Sequence[Cell]] = [
        (one.name, one.kind, one.per_rank, *(time / 1e6 for time in (*one.work, *one.waiting)), one.bound_by)
        for one in kernels]
    headings = ("<name", "<kind", ">per rank", ">us", ">least", ">most", ">waiting us", ">least", ">most", "<bound by")
    return Titled("kernels and collectives, over all ranks and layers", headings, rows,
                  "us on average, least and most; waiting: from ready to start, for cores or the last peer")


def footnote_table(notes: Sequence[Footnote]) -> Titled:
    """Where the parameters that bounded the critical path come from."""
    return Titled("parameters that bounded the critical path",
                  ("<parameter", ">twice saves", "<value", "<kind", "~source"), [astuple(note) for note in notes],
                  "what twice as good a number would save of the run, as far as nothing else then decides")  # fmt: skip


def stretch_sentence(metrics: Metrics) -> str:
    """How much longer compute ran than alone, in words."""
    stretch = metrics.stretch
    whole = f"Compute against its time alone on the same cores: {stretch.overall - 1:+.1%} over the run"
    if stretch.beside_communication is None:
        return f"{whole}; no communication ran beside it."
    return (f"{whole}, {stretch.beside_communication - 1:+.1%} while communication runs on its rank, "
            f"{stretch.apart - 1:+.1%} apart from it.")


def host_sentence(metrics: Metrics) -> str:
    """How long compute waited for the host alone, in words."""
    return (f"Host-bound: {ms(metrics.host_bound_ps)} ms ({percent_of_run(metrics.host_bound_ps, metrics)}) "
            "in which a compute kernel lacked only its launch, by a host that was not blocked.")


def ms(time_ps: float) -> str:
    """Picoseconds as milliseconds, four digits."""
    return number(time_ps / PS_PER_MS)


def percent_of_run(time_ps: float, metrics: Metrics) -> str:
    """A time as percentage of the makespan."""
    return f"{time_ps / metrics.makespan_ps:.1%}"


def _communication(times: Sequence[CommunicationTimes], metrics: Metrics) -> Iterator[list[str]]:
    """The columns of numbers of `communication_table`."""
    for column in ([one.busy_ps for one in times], [one.hidden_ps for one in times],
                   [one.exposed_ps for one in times], [one.waiting_ps for one in times]):
        texts = alike([time_ps / PS_PER_MS for time_ps in column])
        yield [f"{text} {percent_of_run(time_ps, metrics):>6}" for text, time_ps in zip(texts, column, strict=True)]
    yield [f"{one.exposed_ps / one.busy_ps:.0%}" if one.busy_ps else "-" for one in times]


def _times(metrics: Metrics) -> list[RenderableType]:
    from rich.text import Text

    account = {heading: length for heading, length in metrics.account_ps.items() if length}
    made: list[RenderableType] = [SideBySide(
        share_table("where the time went", "", account, metrics, "each instant once"),
        share_table("time by kind", "kind", metrics.kind_ps, metrics, "average rank"))]
    if metrics.communication:
        made.append(communication_table(metrics))
    return [*made, Text(f"{stretch_sentence(metrics)}\n{host_sentence(metrics)}\n")]


def _numbers(report: ReportInput) -> Table:
    """A line for each headline metric, with what it means beside it."""
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2))
    for name, text in report.numbers:
        made.add_row(Text(f"{name}: ").append(text, "bold"), Text(report.meanings.get(name, ""), "dim"))
    return made
