"""Work that other processes import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from simulator.errors import InputError, NoSuchName


def square(number: int) -> int:
    return number * number


def where(number: int) -> tuple[int, int]:
    """Long enough for all processes to have some."""
    time.sleep(0.02)
    return number, os.getpid()


def refuse(number: int) -> int:
    if number == 3:
        raise InputError("three is none")
    return number


def not_found(number: int) -> int:
    raise NoSuchName(str(number), f"there is no {number}")


def cannot_read(number: int) -> str:
    return Path(f"there is no {number}").read_text(encoding="utf-8")


def kill_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def kill_once(folder: Path, number: int) -> tuple[int, int]:
    """The first process that comes to 3 is killed in the middle of it."""
    if number == 3 and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return where(number)


def endless(folder: Path, number: int) -> None:
    """Leaves its process in a folder."""
    if number:
        (folder / f"begun_{os.getpid()}").touch()
        time.sleep(1000)


def surroundings(_: int) -> tuple[str, str, str]:
    """Which Braid it is, where, and what it is told."""
    import simulator

    return str(Path(simulator.__file__).resolve()), os.getcwd(), os.environ.get("BRAID_CACHE", "")
