"""Every command computes on one thread, as the benchmark does, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

THREADS = "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"
SCRIPT = """
import os, sys
from simulator.commands.main import braid, main

@braid.command()
def probe():
    import numpy
    print({seen})

assert "numpy" not in sys.modules, "threads are fixed when numpy is imported"
main(["probe"])
"""


def probe(seen: str, given: dict[str, str]) -> str:
    """What a command sees that has imported numpy."""
    environment = {name: value for name, value in os.environ.items() if name not in THREADS} | given
    script = [sys.executable, "-c", SCRIPT.format(seen=seen)]
    return subprocess.run(script, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("given", "seen"), [({}, "1 1 1"), ({"OMP_NUM_THREADS": "3"}, "1 3 1")])
def test_blas_has_one_thread_unless_the_user_said_more(given: dict[str, str], seen: str) -> None:
    assert probe(f"*map(os.environ.get, {THREADS!r})", given) == seen


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts the threads of a Linux process")
def test_a_command_has_no_idle_threads() -> None:
    assert probe("len(os.listdir('/proc/self/task'))", {}) == "1"
