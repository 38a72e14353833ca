"""Memory of a recorded row, and what recording costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.bench.case import Measurement, cpu_s_of
from simulator.bench.process import peak_mib

if TYPE_CHECKING:
    from simulator.observe.timeline import Timeline

ROWS, PER_RANK = 10_000_000, 10_000


def _timeline(ranks: int) -> Timeline:
    from simulator.observe.timeline import StaticTasks, Timeline

    count = PER_RANK
    static = StaticTasks(
        name=["kernel"] * count, stream=["compute"] * count, kind=["gemm"] * count, engine=["cube"] * count,
        layer=[0] * count, micro_batch=[0] * count, flops=[1.0] * count, hbm_bytes=[1.0] * count,
        wire_bytes=[0.0] * count, after=[()] * count, host_after=[-1] * count, communication=[False] * count)
    timeline = Timeline("rows")
    for rank in range(ranks):
        timeline.add_rank(rank, static)
    return timeline


def rows() -> Measurement:
    """Peak memory while ten million rows are recorded, a row."""
    timeline = _timeline(ROWS // PER_RANK)
    before_mib = peak_mib()

    def work() -> None:
        record = timeline.record
        for rank in range(ROWS // PER_RANK):
            for task in range(PER_RANK):
                record(rank, task, task, task, task, task + 10**12, 10**12, "HBM")

    cpu_s = cpu_s_of(work)
    return Measurement((peak_mib() - before_mib) * 2**20 / ROWS, cpu_s, {"rows": len(timeline)})


def cost() -> Measurement:
    """CPU microseconds that recording adds to a task, over a watch that does nothing."""
    from simulator.bench.collectives import Nobody
    from simulator.bench.streams import replay_alone
    from simulator.observe.timeline import Timeline

    times = {}
    for watch in (Timeline, Nobody):
        times[watch] = min(cpu_s_of(replay_alone(watch()).run) for _ in range(2))
    tasks = sum(npu.left for npu in replay_alone(Nobody()).npus.values())
    return Measurement((times[Timeline] - times[Nobody]) / tasks * 1e6, times[Timeline], {"tasks": tasks})
