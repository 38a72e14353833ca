"""What is assumed, by influence: every assumed number that bounds a published scenario, at its two plausible ends.

An assumed number is known to 3%, 10% or 30%, by its confidence (H, M, L; none is L). The scenario whose critical path
it bounds most is run again at both ends, all else as it is; what moves most among its expected values is its influence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from simulator.errors import BraidError, InputError
from simulator.observe.tables import Titled, console, markdown_table, show
from simulator.paths import matches
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import quantities
from simulator.study import library, studies
from simulator.study.expected import compared
from simulator.study.processes import Tell, in_processes
from simulator.study.scenario import Scenario
from simulator.study.simulate import simulate
from simulator.study.sweep import StudyTable

RANGES = {"H": 0.03, "M": 0.10, "L": 0.30}
LEAST_MOVE = 0.005  # of a run: a number that bounds a smaller share times its range cannot move it further


@dataclass(frozen=True)
class Influence:
    """An assumed number in one scenario. spread: how far it may be off, as a share. share: of the critical path that it
    bounds. metric: of the value that moves most; low, high: what becomes of it at both ends, as shares."""

    parameter: str
    machine: str
    value: str
    spread: float
    scenario: str
    share: float
    metric: str
    low: float
    high: float

    @property
    def size(self) -> float:
        """The larger of both."""
        return max(abs(self.low), abs(self.high))


def influences(pattern: str | None = None, jobs: int = 1, tell: Tell | None = None) -> list[Influence]:
    """Of the assumed numbers of scenarios with expected values, each in the scenario that it can move most, the most
    influential first; pattern: chooses scenarios by name (InputError if none). jobs: processes."""
    names = [name for name, _ in library.scenario_names() if matches(pattern, name)]
    if not names:
        raise InputError(f"no scenario matches '{pattern}'")
    first: dict[tuple[str, str], _Bound] = {}
    for bound in chain.from_iterable(in_processes(_bounds_of, names, jobs, tell)):
        known = first.setdefault((bound.machine, bound.parameter), bound)
        if bound.reach > known.reach:
            first[bound.machine, bound.parameter] = bound
    chosen: dict[str, list[_Bound]] = {}
    for bound in first.values():
        chosen.setdefault(bound.scenario, []).append(bound)
    some = in_processes(partial(_of_scenario, chosen), list(chosen), jobs, tell)
    return sorted(chain.from_iterable(some), key=lambda one: (-one.size, one.parameter, one.scenario))


class _Bound(NamedTuple):
    """That an assumed number, known within a spread, bounds a share of a scenario's critical path."""

    machine: str
    parameter: str
    scenario: str
    share: float
    spread: float

    @property
    def reach(self) -> float:
        """How far it can move the run, as a share."""
        return self.share * self.spread


def _bounds_of(name: str) -> list[_Bound]:
    """Nothing where nothing is expected, or where it does not run: `braid validate` says so."""
    try:
        scenario = library.load_scenario(name)
        if not scenario.expected:
            return []
        result = simulate(scenario)
    except BraidError:
        return []
    known = dict(quantities(result.machine))
    found = [_Bound(result.machine.name, row["name"], name, row["share"], RANGES[known[row["name"]].confidence or "L"])
             for row in result.parameters if row["kind"] == "assumed" and row["value"]]
    return [one for one in found if one.reach > LEAST_MOVE]


def _of_scenario(chosen: Mapping[str, Sequence[_Bound]], name: str) -> list[Influence]:
    """The numbers that were chosen for it, at their two ends."""
    scenario = library.load_scenario(name)
    result = simulate(scenario)
    before = {row.metric: row.simulated for row in compared(result) if row.simulated}
    return [_of_number(scenario, result.machine, bound, before) for bound in chosen[name]]


def _of_number(scenario: Scenario, machine: MachineSpec, bound: _Bound, before: Mapping[str, float]) -> Influence:
    """Of one number."""
    quantity = dict(quantities(machine))[bound.parameter]
    moved: list[dict[str, float]] = []
    for factor in (1.0 - bound.spread, 1.0 + bound.spread):
        after = _at(scenario, bound.parameter, quantity.value * factor, quantity.unit)
        moved.append({metric: (after.get(metric) or value) / value - 1.0 for metric, value in before.items()})
    low, high = moved
    metric = max(before, key=lambda one: max(abs(low[one]), abs(high[one])), default="-")
    text = f"{quantity.value:g} {quantity.unit}".removesuffix(" 1")
    return Influence(bound.parameter, bound.machine, text, bound.spread, bound.scenario, bound.share, metric,
                     low.get(metric, 0.0), high.get(metric, 0.0))  # fmt: skip


def _at(scenario: Scenario, name: str, value: float, unit: str) -> dict[str, float | None]:
    """The expected values of a scenario with one number changed; where it cannot be so, as a count or a share above 1,
    changed to the nearest whole one from 1; nothing where that cannot be either."""
    for one in (value, float(max(round(value), 1))):
        changes = {f"machine.{name}": f"{one!r} {unit}".removesuffix(" 1")}
        try:
            return {row.metric: row.simulated for row in compared(simulate(scenario.replace(changes)))}
        except BraidError:
            continue
    return {}


def _off(one: Influence) -> str:
    return f"{one.value}, {one.spread:.0%} off"


def _moved(one: Influence) -> str:
    return f"{one.scenario}: {one.metric}"


def _shares(one: Influence) -> list[str]:
    return [f"{one.share:.1%}", f"{one.low:+.1%}", f"{one.high:+.1%}"]


def print_influences(found: Sequence[Influence]) -> None:
    """As a table in the terminal: the number, what it is where, and the value that moves most, one below the other."""
    rows = [[f"{one.parameter}\n  {one.machine}: {_off(one)}\n  {_moved(one)}", *_shares(one)] for one in found]
    head = ("<number, and what it moves most", ">path", ">low", ">high")
    show(console(), Titled("assumed numbers at their two ends", head, rows,
                           "path: what of it they bound; low, high: what becomes of the value"))  # fmt: skip


def markdown(found: Sequence[Influence], tables: Sequence[StudyTable] = ()) -> str:
    """results/influence.md: the numbers, and the studies that scenarios name."""
    return "\n".join([
        "# What is assumed, by influence", "",
        "Written by `braid influence`. Assumed numbers that can move the critical path of a scenario with expected"
        " values by more than half a percent, each in the scenario that it can move most: at its two plausible ends"
        " (3%, 10% or 30% off, by its confidence), everything else as it is. Nothing was fitted again.", "",
        markdown_table(("assumed number", "value", "moves most", "of the path", "low", "high"),
                       [[f"{one.machine}: {one.parameter}", _off(one), _moved(one), *_shares(one)]
                        for one in found]), "",
        "## One number at a time", "",
        "Studies that scenarios name: settings that no source gives, with values that are plausible.", "",
        *studies.markdown(tables),
    ])  # fmt: skip
