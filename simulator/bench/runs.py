"""Speed of whole runs, in this process and as commands from a cold start; memory of a recorded row, and its cost."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from simulator.bench.benchmark import Measurement, environment, looked_at, peak_mib, timed
from simulator.bench.replays import replay_alone
from simulator.observe.timeline import StaticTasks, Timeline, Unrecorded
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate

REPEATS = 3
ROWS, PER_RANK = 10_000_000, 10_000


def simulated(reference: str, ranks: str) -> Measurement:
    """CPU seconds of one run, loading and machine included, imports not."""
    cpu_s, result = timed(lambda: looked_at(simulate(load_scenario(reference), ranks=ranks)))
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


def _timeline(ranks: int) -> Timeline:
    count = PER_RANK
    static = StaticTasks(
        name=["kernel"] * count, stream=["compute"] * count, kind=["gemm"] * count, engine=["cube"] * count,
        layer=[0] * count, micro_batch=[0] * count, flops=[1.0] * count, l2_bytes=[1.0] * count,
        unit_cores=[(1,)] * count, hbm_bytes=[1.0] * count,
        wire_bytes=[0.0] * count, after=[()] * count, host_after=[-1] * count, communication=[False] * count)
    timeline = Timeline("rows")
    for rank in range(ranks):
        timeline.add_rank(rank, static)
    return timeline


def rows() -> Measurement:
    """Peak memory while ten million rows are recorded, a row."""
    timeline, before_mib = _timeline(ROWS // PER_RANK), peak_mib()
    cpu_s, _ = timed(lambda: _record(timeline))
    return _a_row(before_mib, cpu_s, {"rows": len(timeline)})


def written() -> Measurement:
    """Peak memory while they are recorded and then written to Parquet, a row; CPU time of the writing."""
    timeline, before_mib = _timeline(ROWS // PER_RANK), peak_mib()
    _record(timeline)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "timeline.parquet"
        cpu_s, _ = timed(lambda: timeline.write_parquet(file))
        return _a_row(before_mib, cpu_s, {"rows": len(timeline), "file MiB": file.stat().st_size // 2**20})


def _a_row(before_mib: float, cpu_s: float, counts: dict[str, int]) -> Measurement:
    return Measurement((peak_mib() - before_mib) * 2**20 / ROWS, cpu_s, counts)


def _record(timeline: Timeline) -> None:
    """Every task of every rank, time by time and not rank by rank."""
    record = timeline.record
    for task in range(PER_RANK):
        for rank in range(ROWS // PER_RANK):
            record(rank, task, task, task, task, task + 10**12, 10**12, "HBM", 1)


def recording() -> Measurement:
    """CPU microseconds that recording adds to a task, over a run without it."""
    best = {Timeline: float("inf"), Unrecorded: float("inf")}
    for _ in range(3):
        for watch in best:  # in turn, so that whatever else the computer does meets both
            best[watch] = min(best[watch], timed(replay_alone(watch()).run)[0])
    tasks = sum(npu.left for npu in replay_alone(Unrecorded()).npus.values())
    return Measurement((best[Timeline] - best[Unrecorded]) / tasks * 1e6, best[Timeline], {"tasks": tasks})
