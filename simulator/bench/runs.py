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


def _cold_start(*arguments: str) -> Measurement:
    """Wall seconds of one `braid` process, the best of three after one to warm the file cache."""
    _command(*arguments)
    times_s = [_command(*arguments) for _ in range(REPEATS)]
    return Measurement(min(wall_s for wall_s, _ in times_s), min(cpu_s for _, cpu_s in times_s))


def _whole(*arguments: str) -> Measurement:
    """CPU seconds of one `braid` process, from its start to its end."""
    _, cpu_s = _command(*arguments)
    return Measurement(cpu_s, cpu_s)


def cold_help() -> Measurement:
    """`braid --help`."""
    return _cold_start("--help")


def cold_run() -> Measurement:
    """`braid run a3_prefill:dp --ranks roles`."""
    return _cold_start("run", "a3_prefill:dp", "--ranks", "roles")


def command_decode() -> Measurement:
    """`braid run cm384_decode:decode_50ms`: 288 dies, lengths and routing drawn."""
    return _whole("run", "cm384_decode:decode_50ms")


def command_prefill() -> Measurement:
    """`braid run a3_prefill:microbatch --set routing.skew=0.6`: rows of every expert drawn, pairwise exchanges."""
    return _whole("run", "a3_prefill:microbatch", "--set", "routing.skew=0.6")


def command_show() -> Measurement:
    """`braid show` of one of the slowest scenarios to show."""
    return _whole("show", "flow_mla:h800_flow_32")
