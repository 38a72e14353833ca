"""A limit of time on what a script of trust does in its own process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def limited(seconds: float, error: type[BaseException]) -> Iterator[None]:
    """Raises the error in what takes longer."""

    def late(signum: int, frame: FrameType | None) -> NoReturn:
        raise error(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
