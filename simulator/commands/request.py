"""From the words of a command line to a scenario, and from that to a result; how far it is, for who waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from threading import Event, Thread

import click
from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress

from simulator.commands.output import warn_unread
from simulator.errors import BraidError, InputError
from simulator.observe.recorded import Recorded
from simulator.paths import located, own_path
from simulator.spec.faults import faults_of
from simulator.spec.typed_toml import plain
from simulator.study import library
from simulator.study import simulate as simulation
from simulator.study import struck as struck_runs
from simulator.study.expected import compared
from simulator.study.recorded import read_recorded, recorded_of
from simulator.study.scenario import Scenario
from simulator.study.simulate import Result
from simulator.study.struck import Struck

PATIENCE_S = 2.0  # a progress bar is shown once a run has taken so long
LOOK_S = 0.1  # from one look at the share to the next, of a bar
EVERY_S = 10.0  # from one line to the next where nobody watches


def scenario_of(reference: str, settings: Mapping[str, str], faults: Sequence[str] = ()) -> Scenario:
    """The scenario of that name or path with these settings, and faults beside its own; InputError says what is right.
    It prints to stderr."""
    try:
        with redirect_stdout(sys.stderr):
            scenario = library.load_scenario(reference)
    except BraidError as error:
        if not isinstance(error, InputError) or located(error) == str(error):
            raise
        raise InputError(f"{reference}: {located(error)}") from error
    except Exception as error:  # a user's own file may raise anything
        raise InputError(f"{reference}: {located(error, _text_of(error))}") from error
    for one in scenario.expected:
        try:
            with redirect_stdout(sys.stderr):
                _ = [library.load_scenario(name) for name in (one.against, one.beyond) if name]
        except InputError as error:
            raise InputError(f"{reference}: expected value {one.id}: {error}") from error
    changed = scenario.replace(dict(settings)) if settings else scenario
    if not faults:
        return changed
    those = (*scenario.faults, *faults_of(faults))
    return changed.variant(faults=those, changes=changed.changes | {"faults": "; ".join(map(str, those))})


def simulate(scenario: Scenario, ranks: str, seed: int, record: bool = True) -> Result:
    """Runs it, and says now and then how far it is; RunError if it does not fit or does not end. record: whether to
    keep the timeline; where the workload's own metrics are read from one, it is forgotten afterwards.

    What its program prints goes to stderr: stdout has the command's own output alone.
    """
    needed = record or scenario.workload.readings is not None
    with progress_bar(scenario.name, "building its programs") as tell, redirect_stdout(sys.stderr):
        result = simulation.simulate(scenario, ranks=ranks, seed=seed, progress=tell, record=needed)
        if needed and not record:
            result = result.without_timeline()
    with progress_bar(scenario.name, "what its timeline says"), redirect_stdout(sys.stderr):
        compared(result)  # may run other scenarios, which print too
        return result


def struck(scenario: Scenario, ranks: str, seed: int, record: bool = True) -> Struck:
    """Runs it with its faults and without, and says now and then how far it is. record: as of `simulate`."""
    with progress_bar(scenario.name, "without its faults") as tell, redirect_stdout(sys.stderr):
        found = struck_runs.struck(scenario, ranks=ranks, seed=seed, progress=tell)
        return found if record else replace(found, after=found.after.without_timeline())


def recorded(reference: str, settings: Mapping[str, str], ranks: str, seed: int) -> Recorded:
    """The run in a folder that `run --out` wrote, or of a scenario, which is simulated; InputError: it is neither, or a
    folder and settings are given."""
    folder = own_path(reference)
    if not folder.is_dir():
        result = simulate(scenario_of(reference, settings), ranks, seed)
        warn_unread(result.scenario.name, result.header["unread"])
        return recorded_of(result)
    if settings or ranks != "roles" or seed:
        raise InputError(f"--set, --ranks and --seed are of a scenario, which is simulated; '{reference}' has been")
    with progress_bar(f"reading {folder}") as tell:
        return read_recorded(folder, tell)


def _text_of(error: Exception) -> str:
    """What is wrong in the words of what raised it; pydantic's errors with their places and without its links."""
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)
        return "; ".join(f"{'.'.join(map(str, one['loc'])) or error.title}: {plain(one['msg'])}" for one in found)
    return f"{type(error).__name__}: {error}"


@contextmanager
def progress_bar(title: str, first: str = "") -> Iterator[Callable[[float], None]]:
    """Gives what to call with the share done, 0 to 1, as often as you like: a bar where a person watches, elsewhere a
    line on stderr every EVERY_S, both with the time that is left. first: what is done before the first share is told.
    """
    told = Told()
    shown = _bar if sys.stderr.isatty() else _lines
    with shown(title, first, told):
        yield told.tell


class Told:
    """The share that was told last, None before; and from the first to the last, how long the rest will take."""

    def __init__(self) -> None:
        self.share: float | None = None
        self._begun: tuple[float, float] | None = None  # when, and the share that was done by then

    def tell(self, share: float) -> None:
        """How much is done by now; little work, as it may be told of a million things."""
        self.share = share
        if self._begun is None:
            self._begun = time.monotonic(), share

    @property
    def left_s(self) -> float | None:
        """Seconds that are left at the pace so far; None before there is one."""
        if self._begun is None or self.share is None or self.share <= self._begun[1]:
            return None
        return (time.monotonic() - self._begun[0]) * (1.0 - self.share) / (self.share - self._begun[1])


@contextmanager
def _bar(title: str, first: str, told: Told) -> Iterator[None]:
    def look(ended: Event) -> None:
        """Ten times a second, however often the share is told."""
        if ended.wait(PATIENCE_S):
            return
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"{title}: {first}" if first else title, total=None)
            while not ended.wait(LOOK_S):
                if told.share is not None:
                    bar.update(task, total=1.0, completed=told.share, description=title)

    with _beside(look):
        yield


@contextmanager
def _lines(title: str, first: str, told: Told) -> Iterator[None]:
    since_s = time.monotonic()

    def say(ended: Event) -> None:
        while not ended.wait(EVERY_S):
            done = first if told.share is None else f"{told.share:.0%}"
            left = "" if (left_s := told.left_s) is None else f", about {left_s:.0f} s left"
            click.echo(": ".join(filter(None, (title, done))) + f", {time.monotonic() - since_s:.0f} s{left}", err=True)

    with _beside(say):
        yield


@contextmanager
def _beside(work: Callable[[Event], None]) -> Iterator[None]:
    """A thread that works until the event it is given, which is set at the end."""
    ended = Event()
    thread = Thread(target=work, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
