"""How a command line chooses among names."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from simulator.errors import InputError
from simulator.paths import did_you_mean


def matches(pattern: str | None, name: str) -> bool:
    """Whether a name is chosen: None chooses all, "flows" what contains it, "cold_*" what it describes as a whole."""
    if pattern is None:
        return True
    return fnmatchcase(name, pattern) if any(sign in pattern for sign in "*?[") else pattern in name


def choose(pattern: str | None, names: Iterable[str], what: str) -> list[str]:
    """The names that match, in their order; InputError listing all if none does."""
    known = list(names)
    chosen = [name for name in known if matches(pattern, name)]
    if chosen or pattern is None:
        return chosen
    listed = ", ".join(known) or "none"
    raise InputError(f"no {what} matches '{pattern}'{did_you_mean(pattern, known)}; there are: {listed}")
