"""How far a long check has come, and how long it will still take, in one line on a terminal."""

from __future__ import annotations

import sys
import time


class Progress:
    """Of `total` things; says nothing where stderr is no terminal, but for one line a minute."""

    def __init__(self, total: int, what: str) -> None:
        self.total, self.what, self.done, self.note = total, what, 0, ""
        self._began_s = self._said_s = time.monotonic()

    @property
    def spent_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._began_s

    def step(self, note: str = "") -> None:
        """One more is done."""
        self.done, self.note = self.done + 1, note or self.note
        terminal = sys.stderr.isatty()
        if time.monotonic() - self._said_s < (0.5 if terminal else 60.0):
            return
        self._said_s = time.monotonic()
        left_s = self.spent_s / self.done * (self.total - self.done)
        line = f"{self.done:,} of {self.total:,} {self.what}, {left_s:.0f} s left  {self.note}"
        sys.stderr.write(f"\r{line[:118]}\x1b[K" if terminal else f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Nothing is left of the line."""
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
