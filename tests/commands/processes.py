"""Commands in processes of their own: the same however the tests were started, and gone when a test is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.conftest import ROOT

HANGS_S = 300  # after so long a process hangs, on however busy a machine
# whatever a shell starts in the background ignores Ctrl-C, and so does what that starts
MAIN = ("import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from simulator.commands.main import main; main()")


def environment(**changes: str) -> dict[str, str]:
    """This process's own, with this checkout on the path, and changes."""
    return os.environ | {"PYTHONPATH": str(ROOT)} | changes


@contextmanager
def started(folder: Path, *words: str, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """A Python with these words behind it, in this folder; it is killed at the end, and what it started too."""
    with subprocess.Popen([sys.executable, *words], cwd=folder, env=environment(**changes), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                          start_new_session=True) as running:  # fmt: skip
        try:
            yield running
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    """Returns once this holds; fails if the process ends before."""
    deadline = time.monotonic() + HANGS_S
    while not condition():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.02)


def left_by(running: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr once it has ended, and all that it started, which have the same stdout."""
    out, err = running.communicate(timeout=HANGS_S)
    return running.returncode, out, err
