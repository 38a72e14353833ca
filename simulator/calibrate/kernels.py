"""Goes through all kernel families that have a public table: how far the machines' files are, and what a fit finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from simulator.calibrate import b200, hopper
from simulator.calibrate.kernel_tables import Finding, Fit, TableMissing
from simulator.errors import InputError
from simulator.paths import choose

PARTS = (*hopper.PARTS, *b200.PARTS)
MACHINES = tuple(dict.fromkeys(part.machine for part in PARTS))


def calibrate(folder: Path, machine: str | None = None, only: str | None = None, fits: bool = False,
              tell: Callable[[float], None] | None = None) -> Iterator[tuple[str, Finding]]:
    """(machine, finding) of every family whose table is in the folder, as they are found.

    machine: only its families. only: those with this in their name (see `paths.matches`). fits: search for better
    numbers too. tell: told the share done.

    Raises:
        InputError: no such folder or family, none of the tables is there, or one has other columns.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of tables")
    there = [part for part in PARTS if machine in (None, part.machine)]
    chosen = choose(only, dict.fromkeys(part.family for part in there), "kernel family")
    parts = [part for part in there if part.family in chosen]
    missing: list[tuple[str, Finding]] = []
    for done, part in enumerate(parts, 1):
        try:
            yield from ((part.machine, finding) for finding in _found(part, folder, fits))
        except TableMissing as error:
            missing.append((part.machine, Finding(part.family, f"left out: {error}")))
        if tell is not None:
            tell(done / len(parts))
    if len(missing) == len(parts):
        raise InputError(f"{folder} has none of the tables; {missing[0][1].what} {missing[0][1].text}")
    yield from missing


def _found(part: Fit, folder: Path, fits: bool) -> Iterator[Finding]:
    try:
        yield from part.find(folder, fits)
    except KeyError as error:
        what = f"its table in {folder} has no column or row {error}"
        raise InputError(f"{part.machine}, {part.family}: {what}") from error
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{part.machine}, {part.family}: its table in {folder}: {error}") from error
