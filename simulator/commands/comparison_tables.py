"""What a person reads of two runs or traces: what is equal once, what differs side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from simulator.commands.comparison import Runs, Traces, overlap
from simulator.commands.sides import Side, shown
from simulator.commands.summary import facts, headline, identity
from simulator.observe.align import Step, Tasks
from simulator.observe.columns import rank_weights
from simulator.observe.kernel_times import kernel_times
from simulator.observe.layer_picture import layer_picture
from simulator.observe.measured.names import short
from simulator.observe.measured.table import Measured
from simulator.observe.recorded import Recorded
from simulator.observe.report import ExpectedRow, expected_table, ms, stretch_sentence
from simulator.observe.side_by_side import kind_use, stream_use
from simulator.observe.tables import Cell, Titled, console, number, show
from simulator.study.expected import compared as published
from simulator.units import alike

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_ROWS = 12  # of a table that has a row for each name
LEAST_SHARE = 0.002  # of the longer makespan, of a row of the waterfall that is shown by itself
MS = 10**9  # ps


def print_comparison(a: Side, b: Side, found: Runs | Traces) -> None:
    """What A and B are, and what differs."""
    terminal = console()
    for side, other in ((a, b), (b, a)):
        show(terminal, Text(f"{side.letter}  {_title(side)}", "bold"))
        show(terminal, *(Padding(fact, (0, 0, 0, 3)) for fact in _facts(side, other)))
    terminal.print()
    show(terminal, *_expected((a, b)))
    if isinstance(found, Traces):
        show(terminal, *_of_traces(found))
        return
    show(terminal, *_of_runs(found))
    for title, run in (("A and B", found.a),) if not found.aligned.moved else (("A", found.a), ("B", found.b)):
        show(terminal, Text(f"{title}  {run.name}, one layer's streams", "bold"))
        show(terminal, layer_picture(run.columns, rank=_first_rank(run), width=terminal.width))


def _first_rank(run: Recorded) -> int:
    return int(run.columns["rank"][:1].sum())


def _title(side: Side) -> str:
    if isinstance(side.seen, Measured):
        return f"{side.name}: measured"
    return f"{side.name}: {side.seen.about['title']}"


def _facts(side: Side, other: Side) -> list[str]:
    """The lines below the title: what was run or measured."""
    seen = side.seen
    if isinstance(seen, Measured):
        ranks = int(rank_weights(seen.columns)[1].sum())
        return [f"{seen.form}, {ranks} rank{'s' * (ranks != 1)}, {len(seen.columns['rank']):,} kernels and copies",
                *seen.notes]
    if side.result is None:
        changes, its = _changes(side), _changes(other)
        lines = [*identity(seen.about, seen.memory.used_bytes, seen.memory.usable_bytes),
                 *(f"changed{' in A and B' * (its.get(key) == text)}: {key} = {text}" for key, text in changes.items())]
    else:
        lines = facts(side.result, dict(_changes(side).items() & _changes(other).items()))
    return [*lines, stretch_sentence(seen.measured)]


def _changes(side: Side) -> dict[str, str]:
    return {} if isinstance(side.seen, Measured) else dict(side.seen.about["changes"])


def _expected(sides: Sequence[Side]) -> list[Titled]:
    """Published values, with the side whose they are."""
    rows = []
    for side in sides:
        if side.result is not None:
            its = published(side.result)
        else:
            its = [ExpectedRow(**one) for one in side.seen.expected] if isinstance(side.seen, Recorded) else []
        rows += [ExpectedRow(**{**vars(row), "id": f"{side.letter}  {row.id}"}) for row in its]
    return [expected_table(rows)] if rows else []


def _of_runs(found: Runs) -> Iterator[RenderableType]:
    """What moved, task by task."""
    headlines = _headline(found.a), _headline(found.b)
    yield Text(_moved(found) + "\n")
    tables = [_table("metric", *headlines, lambda values: [*map(number, values)])]
    tables += [_table(f"{title}, ms", _ms(mine), _ms(its), alike) for title, (mine, its) in found.times.items()]
    yield from (one for one in tables if one.rows)
    tasks = found.aligned
    if tasks.changes:
        yield _of_tasks("tasks that work or wait longer or shorter", tasks.changes,
                        "one by one, mean over layers, micro-batches and ranks")
    if tasks.unpaired:
        yield _of_tasks("tasks without a counterpart", tasks.unpaired,
                        "of a name, layer or micro-batch that the other side has not, or not so often")
    if found.steps:
        yield _waterfall(found.steps, *found.makespans_ps)
    same = [f"{name} {number(value)}" for name, value in headlines[0].items() if headlines[1].get(name) == value]
    if same:
        yield Text(f"equal in A and B: {', '.join(same)}\n")


def _headline(run: Recorded) -> dict[str, float]:
    """The metrics that no table has in full."""
    return {name: value for name, value in headline(run.metrics, run.measured).items() if not name.startswith("block_")}


def _moved(found: Runs) -> str:
    """In a sentence or two how far B is from A."""
    tasks, (a_ps, b_ps) = found.aligned, found.makespans_ps
    if not tasks.moved:
        return f"nothing moved: all {tasks.aligned:,} tasks are at the same times in A and in B"
    length = "B takes as long as A"
    if a_ps != b_ps:
        share = f" ({b_ps / a_ps - 1:+.1%})" if a_ps else ""
        length = f"B takes {ms(abs(b_ps - a_ps))} ms {'more' if b_ps > a_ps else 'less'} than A{share}"
    rest = (f" Of {tasks.aligned:,} tasks that both have, {tasks.changed:,} work or wait longer or shorter, "
            f"{tasks.shifted:,} are only shifted, {tasks.same:,} are at the same times.") if tasks.aligned else ""
    return f"{length}.{rest or ' They have no task in common.'}"


def _of_tasks(title: str, tasks: Sequence[Tasks], caption: str) -> Titled:
    """The names whose times differ most; the difference is of all tasks of a name on an average rank."""
    rest = tasks[MOST_ROWS:]
    gained = [one.difference_ps for one in tasks[:MOST_ROWS]] + [sum(one.difference_ps for one in rest)] * bool(rest)
    texts = [_plus(text, time) for text, time in zip(alike([time / MS for time in gained]), gained, strict=True)]
    rows: list[Sequence[Cell] | None] = []
    for one, text in zip(tasks[:MOST_ROWS], texts, strict=False):
        means = [time / count / 1e6 if count else None
                 for times in (one.work_ps, one.waiting_ps) for time, count in zip(times, one.tasks, strict=True)]
        rows.append((one.name, *(f"{count:g}" if count else "-" for count in one.tasks), *means,
                     text))
    if rest:
        rows.append((f"and {len(rest)} more", *([""] * 6), texts[-1]))
    headings = ("<name", ">tasks in A", ">in B", ">work us, A", ">B", ">waiting us, A", ">B", ">B - A, ms")
    return Titled(title, headings, rows, f"{caption}; B - A: of all of them on an average rank")


def _waterfall(steps: Sequence[Step], a_ps: int, b_ps: int) -> Titled:
    """What the makespans differ by; the rows add up."""
    great = [one for one in steps if abs(one.difference_ps) >= LEAST_SHARE * max(a_ps, b_ps)] or [*steps[:MOST_ROWS]]
    rows = [(one.kind, one.bound_by, one.a_ps, one.b_ps) for one in great]
    rest = [one for one in steps if one not in great]
    if rest:
        rows.append((f"{len(rest)} others", "", sum(one.a_ps for one in rest), sum(one.b_ps for one in rest)))
    same = a_ps - sum(one.a_ps for one in steps)
    if same:
        rows.append(("the same in both", "", same, same))
    rows.append(("makespan", "", a_ps, b_ps))
    texts = iter(alike([time / MS for _, _, mine, its in rows for time in (mine, its, its - mine)]))
    cells: list[Sequence[Cell] | None] = [
        (kind, bound, next(texts), next(texts), _plus(next(texts), its - mine)) for kind, bound, mine, its in rows]
    cells.insert(-1, None)
    return Titled("where the difference comes from", ("<kind", "<bound by", ">A", ">B", ">B - A"), cells,
                  "ms of the critical path of each")


def _of_traces(found: Traces) -> Iterator[RenderableType]:
    """What can stand side by side of a measured trace."""
    if not found.moved:
        yield Text("nothing moved: A and B are the same trace\n")
        return
    yield _overlap_table(found.sides)
    yield _stream_table(found.sides)
    yield _kind_table(found.sides)
    yield from _order_tables(found)
    yield _kernel_table(found.sides)
    yield Text("What cannot be compared:\n" + "\n".join(f"* {one}" for one in found.cannot) + "\n")


def _overlap_table(sides: Mapping[str, Recorded | Measured]) -> Titled:
    """Compute and communication of both, ms and shares of its own length."""
    said = {"length_ps": "first kernel to last", "compute_ps": "compute", "communication_ps": "communication",
            "hidden_ps": "of it hidden", "exposed_ps": "of it exposed",
            "exposed_waiting_ps": "exposed, with waiting for peers"}
    found = [overlap(side) for side in sides.values()]
    rows = [(text, *(cell for one in found for cell in (one[name] / MS, _share(one[name], one["length_ps"]))))
            for name, text in said.items()]
    return Titled("overlap", ("<", ">A, ms", ">of A", ">B, ms", ">of B"), rows, "average rank")


def _stream_table(sides: Mapping[str, Recorded | Measured]) -> Titled:
    """The streams of both and what they mostly do."""
    rows: list[Sequence[Cell] | None] = []
    for letter, side in sides.items():
        uses, length = stream_use(side.columns), side.measured.makespan_ps
        rows += [(letter, one.stream, f"{one.tasks:,.0f}", one.work_ps / MS, _share(one.work_ps, length),
                  shown([*one.kinds])) for one in uses[:MOST_ROWS]]
        if len(uses) > MOST_ROWS:
            rest = sum(one.work_ps for one in uses[MOST_ROWS:])
            rows.append((letter, f"and {len(uses) - MOST_ROWS} more", "", rest / MS, _share(rest, length), ""))
    headings = ("<", "<stream", ">kernels", ">at work, ms", ">of the run", "<mostly")
    return Titled("streams", headings, rows, "average rank; work added up")


def _kind_table(sides: Mapping[str, Recorded | Measured]) -> Titled:
    """Kernels by kind, those of communication last."""
    uses = {letter: {one.kind: one for one in kind_use(side.columns)} for letter, side in sides.items()}
    every = sorted({**uses["B"], **uses["A"]}.values(), key=lambda one: (one.communication, -one.work_ps))
    rows = []
    for kind in (one.kind for one in every):
        cells: list[Cell] = [kind]
        for letter, side in sides.items():
            its = uses[letter].get(kind)
            cells += ["-", None, "-", None] if its is None else [
                f"{its.tasks:,.0f}", its.work_ps / MS, _share(its.work_ps, side.measured.makespan_ps),
                its.work_ps / its.tasks / 1e6]
        rows.append(cells)
    headings = ("<kind", *(f">{head}" for letter in sides for head in (f"{letter}: kernels", "ms", "of the run", "us")))
    return Titled("kernels by kind", headings, rows, "average rank; us: of one kernel, on average")


def _order_tables(found: Traces) -> Iterator[Titled]:
    """How far the order of kinds is the same, and where it is not."""
    rows = [(*one.streams, *(f"{count:,}" for count in one.runs), f"{one.alike:.0%}") for one in found.order]
    if not rows:
        return
    yield Titled("order of kinds on streams", ("<stream of A", "<stream of B", ">runs in A", ">in B", ">alike"), rows,
                 "first rank; kernels of one kind behind each other are one run")
    places = [(one.streams[0], one.streams[1], _sequence(there.a), _sequence(there.b), str(there.times))
              for one in found.order for there in one.departures[:5]]
    if places:
        yield Titled("where the order differs", ("<stream of A", "<stream of B", "~A has", "~B has", ">times"), places)


def _sequence(kinds: Sequence[str]) -> str:
    return shown(kinds, 4) if kinds else "nothing"


def _kernel_table(sides: Mapping[str, Recorded | Measured]) -> Titled:
    """The longest kernels of both by kind."""
    rows: list[Sequence[Cell] | None] = []
    every = {letter: sorted(kernel_times(side.columns), key=lambda one: -one.per_rank * one.work.mean)
             for letter, side in sides.items()}
    kinds = dict.fromkeys(one.kind for its in every.values() for one in its[:MOST_ROWS])
    for kind in kinds:
        for letter, its in every.items():
            rows += [(kind, letter, short(one.name), f"{one.per_rank:,.4g}", one.work.mean / 1e6,
                      one.per_rank * one.work.mean / MS) for one in [one for one in its if one.kind == kind][:4]]
    headings = ("<kind", "<", "<kernel", ">per rank", ">us", ">ms")
    return Titled("kernels", headings, rows, "the longest of each kind; us: of one on average, ms: of all on a rank")


def _ms(times_ps: Mapping[str, float]) -> dict[str, float]:
    return {name: value / MS for name, value in times_ps.items()}


def _share(time_ps: float, length_ps: float) -> str:
    return f"{time_ps / length_ps:.1%}" if length_ps else "-"


def _plus(text: str, value: float) -> str:
    return f"{'+' if value > 0 else ''}{text}"


def _table(title: str, a: Mapping[str, float], b: Mapping[str, float],
           texts_of: Callable[[Sequence[float]], list[str]]) -> Titled:
    """Every name that differs, with the difference and the ratio; "-" where there is none."""
    names = [name for name in dict.fromkeys((*a, *b)) if (a.get(name) or 0) != (b.get(name) or 0)]
    gained = {name: b[name] - a[name] for name in names if name in a and name in b}
    texts = iter(texts_of([side[name] for side in (a, b, gained) for name in names if name in side]))
    said = [{key: next(texts) for key in names if key in side} for side in (a, b, gained)]
    rows = [(name, said[0].get(name, "-"), said[1].get(name, "-"), _plus(said[2].get(name, "-"), gained.get(name, 0)),
             f"{b[name] / a[name]:.3f}" if name in gained and a[name] else "-") for name in names]
    return Titled("", (f"<{title:<36}", *(f">{head:>9}" for head in ("A", "B", "B - A", "B / A"))), rows)
