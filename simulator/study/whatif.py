"""What if: a scenario run again with settings changed, once each, kept on disk as soon as it is done.

A what-if is nothing but settings, as `Scenario.replace` takes them; the empty one is the scenario as it is. What is
kept belongs to the scenario, the version of Braid (`kept`) and what the scenario gave as it is: a call that was cut off
goes on where it ended, and a program that was changed since, in whatever file, is run anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import InputError, RunError, reason_of
from simulator.spec.kernels import base_of as base_of_generation
from simulator.spec.load import load_machine, override
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import quantities, type_of
from simulator.study.kept import name_of
from simulator.study.processes import Tell, as_done
from simulator.study.refusals import numbers_of
from simulator.study.scenario import Scenario
from simulator.study.simulate import Result, simulate
from simulator.study.sweep import maker
from simulator.units import Count, PositiveCount, Quantity, Share

Settings = tuple[tuple[str, str], ...]
"""What a what-if changes: (key, text) in the order of keys."""
AS_IS: Settings = ()
LENGTH = "makespan_ms"
PS_PER_MS = 1e9


def settings_of(changes: Mapping[str, str]) -> Settings:
    """The what-if that changes these."""
    return tuple(sorted(changes.items()))


def text_of(value: float, unit: str) -> str:
    """A number as a setting."""
    return f"{value!r} {unit}".removesuffix(" 1")


class Outcome(NamedTuple):
    """What a what-if gave: how long the run lasts (ps) and its metrics, or the reason why there are none."""

    makespan_ps: int = 0
    metrics: Mapping[str, float] = {}
    reason: str = ""

    def value(self, metric: str) -> float | None:
        """A metric, or the length of the run in ms; None where it did not run."""
        if self.reason:
            return None
        return self.makespan_ps / PS_PER_MS if metric == LENGTH else self.metrics.get(metric)


Answers = Mapping[Settings, Outcome]


@dataclass(frozen=True)
class Base:
    """A scenario as it is, recorded: what everything is held against. numbers: of its machine, by key, as the file or
    the scenario has them; read: those that this run looks at. measures: what is measured without a timeline."""

    scenario: Scenario
    seed: int
    metric: str
    result: Result
    numbers: Mapping[str, Quantity]
    read: frozenset[str]
    measures: tuple[str, ...]

    @cached_property
    def outcome(self) -> Outcome:
        """As a what-if that changes nothing."""
        return Outcome(self.result.makespan_ps, self.result.metrics)

    @cached_property
    def value(self) -> float:
        """The metric as it is."""
        found = self.outcome.value(self.metric)
        assert found is not None
        return found

    @property
    def recorded(self) -> bool:
        """Whether a run needs its timeline for the metric."""
        return self.metric not in (*self.measures, LENGTH) and not self.metric.startswith("sent_")

    def of_machine(self, changes: Mapping[str, float]) -> Settings:
        """The what-if in which numbers of the machine have other values, in their units."""
        return settings_of({f"machine.{key}": text_of(value, self.numbers[key].unit)
                            for key, value in changes.items()})

    def machine(self, settings: Settings) -> MachineSpec | None:
        """The machine of a what-if that changes nothing else; None where it cannot be so."""
        changes = self.scenario.machine_changes | {key.partition(".")[2]: text for key, text in settings}
        try:
            return override(self._file, changes).of_generation(self.scenario.kernels)
        except InputError:
            return None

    def is_count(self, key: str) -> bool:
        """Whether a number of the machine is a whole one."""
        return type_of(self._file, key) in (Count, PositiveCount)

    def is_share(self, key: str) -> bool:
        """Whether a number of the machine is at most 1."""
        return bool(type_of(self._file, key) == Share)

    @cached_property
    def _file(self) -> MachineSpec:
        """The machine as its file has it."""
        return load_machine(self.scenario.machine)


def base_of(scenario: Scenario, seed: int = 0, metric: str | None = None, tell: Tell | None = None) -> Base:
    """Run it once, with every number of its machine set to what it is, so that it is known which ones are read.

    metric: None is the first that the workload measures. InputError: there is none of this name.
    """
    numbers = _numbers(scenario)
    own = {f"machine.{key}": text_of(one.value, one.unit) for key, one in numbers.items()}
    result = simulate(scenario.replace(own), seed=seed, progress=tell)
    measures = numbers_of(scenario, scenario.workload.measures(scenario.case(result.machine, seed), 1.0))
    chosen = metric or next(iter(measures), LENGTH)
    if chosen not in (*result.metrics, LENGTH):
        raise InputError(f"{scenario.name} has no metric {chosen}; `braid run {scenario.name} --json` lists them, and"
                         f" {LENGTH} is the length of any run")
    read = frozenset(own).difference(result.header["unread"])
    return Base(scenario, seed, chosen, result, numbers, frozenset(key.partition(".")[2] for key in read),
                tuple(measures))


def _numbers(scenario: Scenario) -> dict[str, Quantity]:
    """Those of its machine by key, but for the kernels of other software generations."""
    machine = override(load_machine(scenario.machine), scenario.machine_changes)
    own = {scenario.kernels, base_of_generation(scenario.kernels, machine.generations)}
    return {key: one for key, one in quantities(machine)
            if key.partition(".")[0] not in ("kernels", "generations") or key.split(".")[1] in own}  # fmt: skip


def answered(base: Base, asked: Iterable[Settings], jobs: int = 1, folder: Path | None = None, fresh: bool = False,
             tell: Tell | None = None, report: Callable[[int, int], None] = lambda known, left: None,
             warn: Callable[[str], None] = lambda text: None) -> Answers:
    """Every what-if that is asked for, run once or taken from what is kept. jobs: processes. folder: keeps them (None:
    nothing is kept). fresh: run even what is kept. report: told how many were kept and how many are left to run. warn:
    told once if nothing can be kept."""
    kept = Kept(base, folder, warn)
    known: dict[Settings, Outcome] = {AS_IS: base.outcome}
    wanted = [one for one in dict.fromkeys(asked) if one != AS_IS]
    if not fresh:
        known |= {one: found for one in wanted if (found := kept.outcome(one)) is not None}
    left = [one for one in wanted if one not in known]
    report(len(known) - 1, len(left))
    if left and kept.outcome(AS_IS) is None:
        kept.put(AS_IS, base.outcome)  # tells whether the file can be written before anything is run
    work = partial(_outcome, maker(base.scenario, jobs), base.seed, base.recorded)
    for number, outcome in as_done(work, left, jobs, tell):
        known[left[number]] = outcome
        kept.put(left[number], outcome)
    return known


def _outcome(make: Callable[[], Scenario], seed: int, recorded: bool, settings: Settings) -> Outcome:
    """Of one what-if, in whatever process; a number that is too extreme for what is computed from it has no metrics."""
    try:
        result = simulate(make().replace(dict(settings)), seed=seed, record=recorded)
    except (InputError, RunError, ArithmeticError) as error:
        return Outcome(reason=reason_of(error).splitlines()[0])
    return Outcome(result.makespan_ps, {name: float(value) for name, value in result.metrics.items()})


class Kept:
    """Outcomes of a scenario's what-ifs in a file to which each is added as soon as it is done; one line each, so that
    a process that is killed loses no more than what it was at. The name of the file has the base's outcome in it: what
    the program reads is not known, but its base is always run. folder: None keeps nothing. warn: told of the first
    write that fails, which is the last."""

    def __init__(self, base: Base, folder: Path | None, warn: Callable[[str], None]) -> None:
        as_it_is = sha256(_line(AS_IS, base.outcome).encode()).hexdigest()[:16]
        name = f"whatif-{name_of(base.scenario, 'scenario')}-{base.seed}-{as_it_is}.jsonl"
        self._path, self._base, self._warn = (folder / name if folder else None), base, warn
        self._lines = dict(_read(self._path)) if self._path else {}

    def outcome(self, settings: Settings) -> Outcome | None:
        """What is known of a what-if, if that has the metric."""
        found = self._lines.get(settings)
        return found if found is not None and (found.reason or found.value(self._base.metric) is not None) else None

    def put(self, settings: Settings, outcome: Outcome) -> None:
        """Add an outcome; a folder that cannot be written to keeps nothing."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                # begins a line, whatever a process that was killed has left
                file.write(f"\n{_line(settings, outcome)}\n")
        except OSError as error:
            self._warn(f"what-ifs are not kept: cannot write '{self._path}': {error.strerror or error}")
            self._path = None


def _line(settings: Settings, outcome: Outcome) -> str:
    made = {"settings": dict(settings), **outcome._asdict(), "metrics": dict(sorted(outcome.metrics.items()))}
    return json.dumps(made)


def _read(path: Path) -> Iterable[tuple[Settings, Outcome]]:
    """Whole lines of a file; none of one that is not there."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
            yield _outcome_of(json.loads(line))


def _outcome_of(line: Any) -> tuple[Settings, Outcome]:
    metrics = {str(name): float(value) for name, value in line["metrics"].items()}
    if not all(map(isfinite, metrics.values())):
        raise ValueError("a metric is no number")
    settings = settings_of({str(key): str(text) for key, text in line["settings"].items()})
    return settings, Outcome(int(line["makespan_ps"]), metrics, str(line["reason"]))
