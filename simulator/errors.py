"""Errors that a user can act on: the command line prints their text alone and ends with their exit code.

Anything else that is raised is a defect of Braid itself, or of a user's own scenario file.
"""

from __future__ import annotations

from typing import ClassVar


class BraidError(Exception):
    """Base of every error whose text is meant for the user: one message that says what is wrong and what is right."""

    exit_code: ClassVar[int] = 1


class InputError(BraidError):
    """The input is wrong: a name, a key, a unit, a file, an option (exit code 2). Nothing was simulated."""

    exit_code: ClassVar[int] = 2


class NoSuchName(InputError):  # noqa: N818
    """A machine has nothing of that name; the caller that knows which setting says `name` adds that."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name

    def __reduce__(self) -> tuple[type[NoSuchName], tuple[str, str]]:
        return NoSuchName, (self.name, str(self))  # from one process to another


class RunError(BraidError):
    """The input is right but the run cannot be completed: it does not fit in memory, it deadlocks (exit code 1)."""


class Interrupted(BraidError):  # noqa: N818
    """The user stopped the run with Ctrl-C (exit code 130, as shells have it)."""

    exit_code: ClassVar[int] = 130


def reason_of(error: Exception) -> str:
    """What an error says; of one that is not Braid's, its type too."""
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, BraidError) else f"{type(error).__name__}: {text}"
