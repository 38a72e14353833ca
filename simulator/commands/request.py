"""From the words of a command line to a scenario, and from that to a result."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from simulator.commands.progress import progress_bar
from simulator.errors import BraidError, InputError
from simulator.paths import located

if TYPE_CHECKING:
    from simulator.study.scenario import Scenario
    from simulator.study.simulate import Result


def scenario_of(reference: str, settings: Mapping[str, str]) -> Scenario:
    """The scenario of that name or path with the settings of the command line; InputError says what is right.

    What its file prints goes to stderr.
    """
    from simulator.study import library

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
                _ = one.against and library.load_scenario(one.against)
        except InputError as error:
            raise InputError(f"{reference}: expected value {one.id}: {error}") from error
    return scenario.replace(dict(settings)) if settings else scenario


def simulate(scenario: Scenario, ranks: str, seed: int, record: bool = True) -> Result:
    """Runs it, with a progress bar where a person watches; RunError if it does not fit or does not end.

    What its program prints goes to stderr: stdout has the command's own output alone.
    """
    from simulator.study import simulate as simulation
    from simulator.study.expected import compared

    with progress_bar(scenario.name) as tell, redirect_stdout(sys.stderr):
        result = simulation.simulate(scenario, ranks=ranks, seed=seed, progress=tell, record=record)
        compared(result)  # may run other scenarios, which print too
        return result


def _text_of(error: Exception) -> str:
    """What is wrong in the words of what raised it; pydantic's errors with their places and without its links."""
    from pydantic import ValidationError

    from simulator.spec.typed_toml import plain

    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)
        return "; ".join(f"{'.'.join(map(str, one['loc'])) or error.title}: {plain(one['msg'])}" for one in found)
    return f"{type(error).__name__}: {error}"
