"""Counters of a trace, by hand."""

from __future__ import annotations

from dataclasses import replace

from simulator.observe.timeline import StaticTasks, Timeline
from simulator.observe.trace import rates

GB, MS = 1e9, 10**9


def test_two_tasks_that_overlap_add_up_and_end_at_nothing() -> None:
    two = StaticTasks(
        name=["a", "b"], stream=["s", "t"], kind=["vector"] * 2, engine=["vector"] * 2, layer=[-1] * 2,
        micro_batch=[-1] * 2, flops=[0.0] * 2, hbm_bytes=[2 * GB, 1 * GB], wire_bytes=[0.0, 0.0], after=[(), ()],
        l2_bytes=[0.0] * 2, unit_cores=[()] * 2, host_after=[-1] * 2, communication=[False] * 2,
    )  # fmt: skip
    timeline = Timeline("hand")
    timeline.add_rank(0, replace(two))
    timeline.record(0, 0, 0, 0, 0, 4 * MS, 4 * MS, "HBM", 1)
    timeline.record(0, 1, 0, 0, 2 * MS, 4 * MS, 2 * MS, "HBM", 1)
    found = [(one.name, one.time_ps, one.value) for one in rates(timeline.columns())]
    assert found == [("HBM GB/s", 0, 500.0), ("HBM GB/s", 2 * MS, 1000.0), ("HBM GB/s", 4 * MS, 0.0)]
