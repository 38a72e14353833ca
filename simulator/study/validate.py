"""Every expected value of the library against what is simulated: rows, a table for the terminal, a report to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import NamedTuple

from simulator.errors import InputError, RunError, reason_of
from simulator.observe.report import ExpectedRow
from simulator.observe.tables import Titled, console, markdown_table, plain_number, show
from simulator.paths import matches
from simulator.study import library
from simulator.study.expected import MetricsOf, band_text, beside
from simulator.study.processes import Tell, in_processes
from simulator.study.scenario import Expected
from simulator.study.simulate import simulate


class Kind(NamedTuple):
    """What has expected values, scenarios or services. names: of all of the library, in its order; expected: the values
    of one; metrics: what one gives as it is validated, by roles, seed 0; by_file: those of a file share what they
    simulate, and one process has them all."""

    names: Callable[[], list[str]]
    expected: Callable[[str], Sequence[Expected]]
    metrics: MetricsOf
    by_file: bool = False


class _Run(NamedTuple):
    """What a simulation gave: metrics, or the reason why there are none."""

    metrics: Mapping[str, float]
    reason: str = ""


def validate(pattern: str | None = None, jobs: int = 1, tell: Tell | None = None,
             kinds: Sequence[Kind] = ()) -> list[ExpectedRow]:
    """Simulates what has a chosen expected value, and what that is a ratio to; rows in the library's order.

    pattern: chooses scenarios by name or expected values by id (see paths.matches); InputError if it chooses none.
    jobs: processes. kinds: scenarios, if none are given. Everything is simulated once, whatever is compared with it.
    What fails gives rows that say why; the others still run.
    """
    kinds = kinds or (SCENARIOS,)
    chosen = [(kind, name, expected) for kind in kinds for name, expected in _chosen(kind, pattern)]
    if not chosen and pattern is not None:
        names = ", ".join(name for kind in kinds for name in kind.names())
        raise InputError(f"no scenario, service or expected value matches '{pattern}'; there are: {names}")
    needed = dict.fromkeys((kind, one) for kind, name, expected in chosen if expected
                           for one in (name, *_others(expected)))  # fmt: skip
    work: dict[tuple[Kind, str], list[tuple[Kind, str]]] = {}
    for kind, name in sorted(needed, key=lambda one: not one[0].by_file):  # what takes longest first
        work.setdefault((kind, name.partition(":")[0] if kind.by_file else name), []).append((kind, name))
    found = chain.from_iterable(in_processes(_run_all, list(work.values()), jobs, tell))
    runs = dict(zip(chain.from_iterable(work.values()), found, strict=True))
    return [row for kind, name, expected in chosen for row in _rows(kind, name, expected, runs)]


def _chosen(kind: Kind, pattern: str | None) -> Iterator[tuple[str, Sequence[Expected]]]:
    """Names and their expected values that the pattern chooses; none for a name that cannot be loaded."""
    for name in kind.names():
        try:
            expected = [one for one in kind.expected(name) if matches(pattern, name) or matches(pattern, one.id)]
        except Exception:
            if matches(pattern, name):
                yield name, ()
            continue
        if expected:
            yield name, expected


def _others(expected: Sequence[Expected]) -> list[str]:
    """What the values are compared with."""
    return [name for one in expected if (name := one.against or one.beyond)]


def _run_all(work: Sequence[tuple[Kind, str]]) -> list[_Run]:
    return [_run(kind, name) for kind, name in work]


def _run(kind: Kind, name: str) -> _Run:
    try:
        return _Run(kind.metrics(name))
    except Exception as error:
        return _Run({}, reason_of(error))


def _rows(kind: Kind, name: str, expected: Sequence[Expected], runs: Mapping[tuple[Kind, str], _Run]
          ) -> list[ExpectedRow]:  # fmt: skip
    """The rows of one name."""

    def metrics_of(other: str) -> Mapping[str, float]:
        if reason := runs[kind, other].reason:
            raise RunError(reason)
        return runs[kind, other].metrics

    if not expected:
        return [ExpectedRow("-", "-", None, None, None, "-", scenario=name, missing=_run(kind, name).reason)]
    if reason := runs[kind, name].reason:
        return [ExpectedRow(one.id, one.metric, one.value, None, None, one.role, band_text(one.band), name, one.note,
                            reason) for one in expected]  # fmt: skip
    return [beside(one, name, runs[kind, name].metrics, metrics_of) for one in expected]


def _scenario_names() -> list[str]:
    return [name for name, _ in library.scenario_names()]


def _expected_of_scenario(name: str) -> Sequence[Expected]:
    return library.load_scenario(name).expected


def _metrics_of_scenario(name: str) -> Mapping[str, float]:
    return simulate(library.load_scenario(name)).metrics


SCENARIOS = Kind(_scenario_names, _expected_of_scenario, _metrics_of_scenario)

_HEAD = ("<id", "<scenario", "<metric", ">expected", "<role", ">simulated", ">error")


def _cells(row: ExpectedRow) -> list[str]:
    expected, simulated, error = row.cells(plain_number, "not simulated" if row.missing else "-")
    return [row.id, row.scenario, row.metric, expected, row.role, simulated, error]


def summary(rows: Sequence[ExpectedRow]) -> str:
    """One line: how many values, how far off by role, what is not simulated."""
    parts = [f"{len(rows)} expected values of {len({row.scenario for row in rows})} scenarios"]
    for role in ("fit", "predict"):
        errors, met = _errors(rows, role)
        if errors:
            mean = sum(errors) / len(errors)
            parts.append(f"{role}: {len(errors)} values, mean error {mean:.1%}, largest {max(errors):.1%}")
        if met:
            parts.append(f"{role}: {sum(met)} of {len(met)} bands and signs met")
    broken = len({row.scenario for row in rows if row.missing})
    return "; ".join(parts + ([f"not simulated: values of {broken} scenarios"] if broken else []))


def _errors(rows: Sequence[ExpectedRow], *roles: str) -> tuple[list[float], list[bool]]:
    """Errors of the values of these roles, without their signs, and which of their bands are met."""
    there = [row for row in rows if row.role in roles and row.error is not None]
    return [abs(row.error or 0.0) for row in there if not row.band], [row.error == 0 for row in there if row.band]


SYSTEMS = {
    "a3": "Atlas A3 prefill", "a2": "Atlas 800I A2", "cm384": "CloudMatrix384", "pplx": "TransferEngine on EFA, CX-7",
    "efa": "EFA against CX-7", "uccl": "UCCL-EP on EFA", "deepep": "DeepEP on H800, H100",
    "trt": "TensorRT-LLM on (G)B200", "flow": "FlowMLA on H20, H800", "h20": "SGLang on H20",
    "vllm": "API servers, EPLB", "eplb": "API servers, EPLB",
}  # fmt: skip


def by_system(rows: Sequence[ExpectedRow]) -> str:
    """A line per system (what an id begins with): how many values, how far off the predicted ones are."""
    systems: dict[str, list[ExpectedRow]] = {}
    for row in rows:
        prefix = row.id.partition(".")[0]
        systems.setdefault(SYSTEMS.get(prefix, prefix), []).append(row)
    head = ("system", "fitted", "predicted", "median error", "largest error", "within 5%", "ranges and signs met")
    return markdown_table(head, [[name, *_accuracy(its)] for name, its in systems.items()])


def _accuracy(rows: Sequence[ExpectedRow]) -> list[str]:
    (errors, _), (_, met) = _errors(rows, "predict"), _errors(rows, "fit", "predict")
    fitted = sum(row.role == "fit" for row in rows)
    if not errors:
        return [str(fitted), "0", "-", "-", "-", f"{sum(met)} of {len(met)}"]
    near = sum(error <= 0.05 for error in errors)
    return [str(fitted), str(len(errors)), f"{median(errors):.1%}", f"{max(errors):.1%}",
            f"{near} of {len(errors)}", f"{sum(met)} of {len(met)}"]


def print_rows(rows: Sequence[ExpectedRow]) -> None:
    """The rows as a table in the terminal, then what is not simulated and why, then the summary."""
    terminal = console()
    show(terminal, Titled("", _HEAD, [_cells(row) for row in rows]))
    for name, reason in dict.fromkeys((row.scenario, row.missing) for row in rows if row.missing):
        show(terminal, f"{name}: not simulated: {reason}")
    show(terminal, summary(rows))


_HISTORY = (
    "## How the numbers were found", "",
    "Every number of a machine says where it stands whether it is published, derived, fitted (on what) or assumed;"
    " `braid show SCENARIO` prints that. Most of the fitted ones are fitted on public tables of kernels and collectives"
    " (`braid calibrate`), a few on values below, whose role is fit. The published values were known while the models"
    " were built. [calibration.md](calibration.md) is the history, system by system: what was chosen while looking at"
    " which value, what was tried and left out, what came out of it, and which measurement would decide."
    " [influence.md](influence.md) (`braid influence`) says which assumed numbers the values below depend on.",
)


def markdown(rows: Sequence[ExpectedRow]) -> str:
    """results/validation.md; the same rows give the same bytes."""
    lines = [
        "# Validation", "",
        "Written by `braid validate`. **fit**: a parameter was fitted on this value, or could have been, so it proves"
        " nothing. **predict**: no parameter was fitted on it. That is weaker than it sounds: several assumed numbers"
        " and mechanisms were chosen with these values in view.",
        "", f"{summary(rows)}.", "", by_system(rows), "", *_HISTORY, "", "## Every value", "",
        markdown_table((*(head[1:] for head in _HEAD), "note"),
                       [[*_cells(row), row.missing or row.note] for row in rows]),
        "",
    ]
    return "\n".join(lines).rstrip("\n") + "\n"
