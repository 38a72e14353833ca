"""Speed of whole runs: a published system in this process, and the command line from a cold start."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time

from simulator.bench.benchmark import Measurement, environment, timed
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate

REPEATS = 3


def simulated(reference: str, ranks: str) -> Measurement:
    """CPU seconds of one run, loading and machine included, imports not."""
    cpu_s, result = timed(lambda: simulate(load_scenario(reference), ranks=ranks))
    return Measurement(cpu_s, cpu_s, {"tasks": len(result.timeline)})


def _command(*arguments: str) -> tuple[float, float]:
    """Wall and CPU seconds of one `braid` process, in a folder of its own; RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        cpu_before_s = _children_cpu_s()
        since_s = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "simulator", *arguments], cwd=folder, env=environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False)
        wall_s, cpu_s = time.perf_counter() - since_s, _children_cpu_s() - cpu_before_s
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[0] if done.stderr.strip() else "no message")
    return wall_s, cpu_s


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cold_start(*arguments: str) -> Measurement:
    """Wall seconds of one `braid` process, the best of three after one to warm the file cache."""
    _command(*arguments)
    times_s = [_command(*arguments) for _ in range(REPEATS)]
    return Measurement(min(wall_s for wall_s, _ in times_s), min(cpu_s for _, cpu_s in times_s))


def whole_command(*arguments: str) -> Measurement:
    """CPU seconds of one `braid` process, from its start to its end."""
    _, cpu_s = _command(*arguments)
    return Measurement(cpu_s, cpu_s)
