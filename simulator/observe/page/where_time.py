"""Where the time of a run went: by heading and by kind, along its critical path, and what would shorten it."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.observe.align import waterfall as align_paths
from simulator.observe.critical import CriticalPath
from simulator.observe.kernel_times import kernel_times
from simulator.observe.metrics import CommunicationTimes, overlap_by_kind
from simulator.observe.page.charts import Part, Step, stacked, waterfall
from simulator.observe.page.html import Chart, Html, Section, beside, chart, folded, joined, paragraph, table
from simulator.observe.page.palette import ACCOUNT, KINDS
from simulator.observe.page.sides import Sides, compared_table, in_ms, kind_colours, named, ordered
from simulator.observe.recorded import Recorded
from simulator.observe.report import communication_table, critical_table, kernel_table, share_table
from simulator.observe.tables import Titled

PS_PER_MS = 1e9
SMALL = 0.005  # of the path: shares below it are one bar of the waterfall
MOST_STEPS = 14
TOTAL = "#5b6472"  # of whole runs


def time_by_kind(sides: Sides) -> Section:
    """What the instants of a run went into, and what each kind of task hid and exposed."""
    overlaps = {side: overlap_by_kind(run.columns) for side, run in sides.items()}
    parts = [chart(account_chart(sides)),
             paragraph("Every instant of an average rank, counted once under the first heading that applies: compute, "
                       "communication beside no compute, other work, waiting, the host."),
             chart(kinds_chart(sides, overlaps)),
             paragraph("Hidden: compute of another kind runs on the rank meanwhile. Exposed: none does. "
                       "Hidden and exposed add up to the time at least one task of the kind is at work; waiting for "
                       "peers or for cores comes before work and is apart.")]
    tables = [table(Titled(named(found.title, side), found.headings, found.rows, found.caption))
              for side, run in sides.items() if run.measured.communication
              for found in [communication_table(run.measured)]]
    parts.append(beside(*tables))
    if len(sides) == 2:
        parts.append(_differences(sides))
    else:
        run = next(iter(sides.values()))
        parts.append(folded("as tables", table(share_table("where the time went", "", _some(run), run.measured, "")),
                            table(share_table("time by kind", "kind", run.measured.kind_ps, run.measured, ""))))
    return Section("kinds", "Where the time went", joined(parts))


def _some(run: Recorded) -> dict[str, float]:
    return {heading: length for heading, length in run.measured.account_ps.items() if length}


def _differences(sides: Sides) -> Html:
    """Tables of A against B, in ms."""
    measured = [run.measured for run in sides.values()]

    def of(title: str, values: list[dict[str, float]]) -> Html:
        return table(compared_table(title, "ms of an average rank", values))

    return beside(of("where the time went", [in_ms(one.account_ps) for one in measured]),
                  of("time by kind", [in_ms(one.kind_ps) for one in measured]),
                  of("hidden communication", [_of(one.communication, "hidden_ps") for one in measured]),
                  of("exposed communication", [_of(one.communication, "exposed_ps") for one in measured]))


def _of(times: Mapping[str, CommunicationTimes], what: str) -> dict[str, float]:
    return {name: getattr(one, what) / PS_PER_MS for name, one in times.items()}


def account_chart(sides: Sides) -> Chart:
    """One bar for each side, its parts the headings of the account."""
    accounts = [run.measured.account_ps for run in sides.values()]
    parts = [Part(heading, [one.get(heading, 0.0) / PS_PER_MS for one in accounts], ACCOUNT.get(heading, "#888888"))
             for heading in ordered(*accounts) if any(one.get(heading) for one in accounts)]
    bars = [named("run", side) if side else "run" for side in sides]
    return stacked("where the time of the run went, in ms", bars, parts, "ms", "ms")


def kinds_chart(sides: Sides, overlaps: Mapping[str, Mapping[str, CommunicationTimes]]) -> Chart:
    """For each kind, and side, a bar of what is exposed, hidden and waited."""
    colour = kind_colours(sides)
    bars = [(kind, side) for kind in ordered(*overlaps.values()) for side in sides if kind in overlaps[side]]
    times = [overlaps[side][kind] for kind, side in bars]
    own = [colour[kind] for kind, _ in bars]
    parts = [Part("exposed", [one.exposed_ps / PS_PER_MS for one in times], own),
             Part("hidden", [one.hidden_ps / PS_PER_MS for one in times], own, hatched=True),
             Part("waiting", [one.waiting_ps / PS_PER_MS for one in times], KINDS["wait"])]
    return stacked("time by kind of task, exposed and hidden, in ms", [named(kind, side) for kind, side in bars],
                   [part for part in parts if any(part.values)], "ms of an average rank", "ms")


def critical(sides: Sides) -> Section:
    """The critical path by what bounded it; of two sides, how one becomes the other."""
    paths = {side: run.critical.by_kind_and_bound() for side, run in sides.items()}
    lengths = {side: {pair: share * run.critical.makespan_ps / PS_PER_MS for pair, share in paths[side].items()}
               for side, run in sides.items()}
    colour = kind_colours(sides) | {"host": KINDS["host"], "wait": KINDS["wait"]}
    if len(sides) == 1:
        steps = path_steps(next(iter(lengths.values())), colour)
        said = "The chain of tasks and waits that made the run as long as it is, by kind and by what bounded it."
        label = "the critical path by kind and bound, in ms"
    else:
        a, b = (run.critical for run in sides.values())
        steps = change_steps(a, b, colour)
        said = ("How the critical path of A becomes that of B, by kind and by what bounded it. What is longer in B "
                "goes to the right.")
        label = "the critical path of A and what changes in B, in ms"
    tables = [table(Titled(named("critical path", side), found.headings, found.rows, found.caption))
              for side, run in sides.items() for found in [critical_table(run.critical)]]
    body = joined([paragraph(said), chart(waterfall(label, steps, "ms", "ms")), folded("as tables", *tables)])
    return Section("path", "Critical path", body)


def path_steps(lengths: Mapping[tuple[str, str], float], colour: Mapping[str, str]) -> list[Step]:
    """Bars that add up to the path, the longest first, small ones as one; then the whole."""
    total = sum(lengths.values())
    large = [(pair, value) for pair, value in lengths.items() if value >= SMALL * total][:MOST_STEPS]
    steps = [Step(f"{kind}, {bound}", value, colour.get(kind, "#888888")) for (kind, bound), value in large]
    rest = total - sum(step.value for step in steps)
    if len(large) < len(lengths):
        steps.append(Step("all else", rest, KINDS["delay"]))
    return [*steps, Step("the run", total, TOTAL, total=True)]


def change_steps(a: CriticalPath, b: CriticalPath, colour: Mapping[str, str]) -> list[Step]:
    """From the whole of A over what changes, the largest changes first, to the whole of B."""
    changes = align_paths(a, b)
    least = SMALL * max(a.makespan_ps, b.makespan_ps)
    large = [one for one in changes if abs(one.difference_ps) >= least][:MOST_STEPS]
    steps = [Step(f"{one.kind}, {one.bound_by}", one.difference_ps / PS_PER_MS, colour.get(one.kind, "#888888"))
             for one in large]
    rest = sum(one.difference_ps for one in changes) - sum(one.difference_ps for one in large)
    if len(large) < len(changes):
        steps.append(Step("all else", rest / PS_PER_MS, KINDS["delay"]))
    ends = [Step(side, path.makespan_ps / PS_PER_MS, TOTAL, total=True) for side, path in (("A", a), ("B", b))]
    return [ends[0], *steps, ends[1]]


def sensitivity(sides: Sides) -> Section:
    """How much of the path each number of the machine bounded, and what twice as good a number would save."""
    parts = [paragraph("Share: of the critical path that the number bounded. Saves: what twice as good a number would "
                       "take off the run, as far as nothing else then decides.")]
    for side, run in sides.items():
        shown = [one for one in run.parameters if one["share"] >= SMALL or one["saves"] >= SMALL][:MOST_STEPS]
        if not shown:
            parts.append(paragraph(f"{side}: no number of the machine bounded the path.".removeprefix(": ")))
            continue
        names = [named(one["name"], side) for one in shown]
        bars = [Part("share of the path", [one["share"] * 100 for one in shown], "#0077bb"),
                Part("saves, twice as good", [one["saves"] * 100 for one in shown], "#e69f00")]
        made = stacked(named("share of the path and savings of each number, in percent", side), names, bars,
                       "% of the run", "%")
        layout = {**made.layout, "barmode": "group"}
        parts.append(chart(made._replace(layout=layout, height=90 + 38 * len(names))))
    return Section("sensitivity", "What would shorten it", joined(parts))


def kernels(sides: Sides) -> Section:
    """Every kernel and collective by name."""
    parts = []
    for side, run in sides.items():
        found = kernel_table(kernel_times(run.columns))
        label = f"{named('all kernels and collectives', side)} ({len(found.rows)})"
        parts.append(folded(label, table(Titled("", found.headings, found.rows, found.caption), wide=True)))
    return Section("kernels", "Kernels", joined(parts))
