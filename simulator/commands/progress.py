"""A progress bar for people: on stderr, only on a terminal, only once a run has taken two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 2.0


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], None] | None]:
    """Gives what to call with the share done, 0 to 1, as often as you like; None where no person watches."""
    if not sys.stderr.isatty():
        yield None
        return
    since_s = time.monotonic()
    bars: list[Progress] = []  # one, once it is shown

    def tell(share: float) -> None:
        if not bars and time.monotonic() - since_s > PATIENCE_S:
            bars.append(_started(title))
        for bar in bars:
            bar.update(bar.task_ids[0], completed=share)

    try:
        yield tell
    finally:
        for bar in bars:
            bar.stop()


def _started(title: str) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task(title, total=1.0)
    bar.start()
    return bar
