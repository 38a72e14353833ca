"""What is said where a scenario cannot be run: by its name, and by the setting that is to blame."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from traceback import walk_tb
from typing import Any, Concatenate, ParamSpec, TypeVar

from simulator.errors import InputError, NoSuchName, RunError
from simulator.paths import located, own_location
from simulator.study.scenario import Scenario

P = ParamSpec("P")
R = TypeVar("R")


def naming_settings(run: Callable[Concatenate[Scenario, P], R]) -> Callable[Concatenate[Scenario, P], R]:
    """What goes wrong with a scenario says so: where a machine lacks what it names, which of its settings does."""

    @wraps(run)
    def named(scenario: Scenario, *args: P.args, **options: P.kwargs) -> R:
        try:
            with exits_refused(scenario.name), time_counted(scenario.name):
                return run(scenario, *args, **options)
        except NoSuchName as error:
            keys = [key for key, value in scenario.settings().items() if value == error.name]
            raise InputError(": ".join([scenario.name, *([", ".join(keys)] if keys else []), str(error)])) from error
        except InputError as error:
            if type(error) is not InputError or str(error).startswith(f"{scenario.name}: "):
                raise
            raise InputError(f"{scenario.name}: {located(error)}") from error

    return named


@contextmanager
def time_counted(name: str) -> Iterator[None]:
    """RunError where what happens in this block comes later than any column of times can say."""
    try:
        yield
    except (OverflowError, struct.error) as error:  # the second: of a row that does not fit its columns
        if not _is_ours(error):
            raise
        raise RunError(f"{name}: it lasts longer than the 106 days that the clock can count: is a rate, a time or a "
                       "size off by orders of magnitude?") from error


@contextmanager
def exits_refused(name: str) -> Iterator[None]:
    """A user's own file that ends the process in this block is refused: InputError, with its line."""
    try:
        yield
    except SystemExit as error:
        if not own_location(error):  # not theirs: a pipe that nothing reads any more
            raise
        text = f"SystemExit({error.code!r}): a scenario or program must not end the process: return, or raise an error"
        raise InputError(f"{name}: {located(error, text)}") from error


def _is_ours(error: Exception) -> bool:
    """Whether it was raised in Braid's code, not in that of a user's own file."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).startswith("simulator.")


def numbers_of(scenario: Scenario, measures: Any) -> Mapping[str, float]:
    """What a workload measures, if it is that; InputError if not."""
    if not isinstance(measures, Mapping):
        raise InputError(f"{scenario.name}: measures: got {measures!r}, not names with numbers")
    for name, value in measures.items():
        if isinstance(value, str) or not hasattr(value, "__float__"):
            raise InputError(f"{scenario.name}: measures: {name} is {value!r}, not a number")
    return measures
