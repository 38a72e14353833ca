"""A progress bar for people: on stderr, only on a terminal, only once a run has taken two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 2.0


class ProgressBar:
    """Call it with the share done, 0 to 1, as often as you like; `with` takes it off the screen, also on an error."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._since_s = time.monotonic()
        self.wanted = sys.stderr.isatty()
        self._bar: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, share: float) -> None:
        if not self.wanted:
            return
        if self._bar is None:
            if time.monotonic() - self._since_s < PATIENCE_S:
                return
            self._start()
        if self._bar is not None:
            self._bar.update(self._task, completed=share)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._title, total=1.0)
        self._bar.start()
