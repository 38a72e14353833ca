"""A program that is slow to record is shown, and one that launches nothing any more is refused where it is.

A timer of the process interrupts the recording every two seconds: it costs launches nothing, and finds the line of the
user's own file that is running. There is none outside the main thread, nor where the alarm is taken already.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from traceback import walk_stack
from types import FrameType

from simulator.paths import innermost_own
from simulator.program.rank import Rank

PATIENCE_S = 2.0
"""How long a recording may take before it is shown on a terminal, and from one look to the next."""


@contextmanager
def watched(npu: Rank) -> Iterator[None]:
    """While a program is recorded in this block.

    Raises:
        ProgramError: for longer than `npu.max_silence_s` it has launched nothing.
    """
    if not _alarm_is_free():
        yield
        return
    look = _Look(npu)
    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        look.clear()


def _alarm_is_free() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    )


class _Look:
    """A look at a recording every now and then."""

    def __init__(self, npu: Rank) -> None:
        self._npu, self._items, self._since_s, self._shown = npu, 0, time.monotonic(), False

    def __call__(self, _: int, frame: FrameType | None) -> None:
        items, now_s = len(self._npu.program.items), time.monotonic()
        if items != self._items:
            self._items, self._since_s = items, now_s
        if now_s - self._since_s > self._npu.max_silence_s:
            raise self._npu.endless(f"then none for {self._npu.max_silence_s:g} s", "max_silence_s")
        if sys.stderr.isatty():
            line = innermost_own(walk_stack(frame)) if frame else ""
            self._show(f"recording {self._npu.so_far()}{line and f', at {line}'}")

    def _show(self, text: str) -> None:
        sys.stderr.write(f"\r{text[: get_terminal_size().columns - 1]}\x1b[K")
        sys.stderr.flush()
        self._shown = True

    def clear(self) -> None:
        """Takes what was shown off the terminal."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
