"""Speed of whole runs: a published system in this process, and the command line from a cold start."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time

from simulator.bench.benchmark import Measurement, cpu_s_of, environment

REPEATS = 3


def _simulate(reference: str, ranks: str) -> Measurement:
    """CPU seconds of one run, loading and machine included, imports not."""
    from simulator.study.library import load_scenario
    from simulator.study.simulate import Result, simulate

    results: list[Result] = []
    cpu_s = cpu_s_of(lambda: results.append(simulate(load_scenario(reference), ranks=ranks)))
    return Measurement(cpu_s, cpu_s, {"tasks": len(results[0].timeline)})


def microbatch_all() -> Measurement:
    """Two micro-batches on 32 dies and 61 layers, every rank by itself."""
    return _simulate("a3_prefill:microbatch", "all")


def microbatch_roles() -> Measurement:
    """The same by roles."""
    return _simulate("a3_prefill:microbatch", "roles")


def _cold_start(*arguments: str) -> Measurement:
    """Wall seconds of one `braid` process, the best of three after one to warm the file cache."""
    best_s = best_cpu_s = float("inf")
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(REPEATS + 1):
            cpu_before_s = _children_cpu_s()
            since_s = time.perf_counter()
            done = subprocess.run([sys.executable, "-m", "simulator", *arguments], cwd=folder, env=environment(),
                                  stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False)
            wall_s = time.perf_counter() - since_s
            if done.returncode != 0:
                raise RuntimeError(done.stderr.strip().splitlines()[0] if done.stderr.strip() else "no message")
            if repeat > 0:
                best_s = min(best_s, wall_s)
                best_cpu_s = min(best_cpu_s, _children_cpu_s() - cpu_before_s)
    return Measurement(best_s, best_cpu_s)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cold_help() -> Measurement:
    """`braid --help`."""
    return _cold_start("--help")


def cold_run() -> Measurement:
    """`braid run a3_prefill:dp --ranks roles`."""
    return _cold_start("run", "a3_prefill:dp", "--ranks", "roles")
