"""Counters of a trace, by hand."""

from __future__ import annotations

from dataclasses import replace

from simulator.observe.counters import counters
from simulator.observe.recorded import Memory, Peaks
from simulator.observe.timeline import StaticTasks, Timeline

GB, MS = 1e9, 10**9


def test_two_tasks_that_overlap_add_up_and_end_at_nothing() -> None:
    two = StaticTasks(
        name=["a", "b"], stream=["s", "t"], kind=["vector"] * 2, engine=["vector"] * 2, layer=[-1] * 2,
        micro_batch=[-1] * 2, flops=[0.0] * 2, hbm_bytes=[2 * GB, 1 * GB], wire_bytes=[0.0, 0.0], after=[(), ()],
        l2_bytes=[4 * GB, 0.0], unit_cores=[(2,), (4,)], host_after=[-1] * 2, communication=[False] * 2,
    )  # fmt: skip
    timeline = Timeline("hand")
    timeline.add_rank(0, replace(two))
    timeline.sent_by = lambda rank: {1: (0.05 * GB,)}
    timeline.record(0, 0, 0, 0, 0, 4 * MS, 4 * MS, "HBM", 8)
    timeline.record(0, 1, 0, 0, 2 * MS, 4 * MS, 2 * MS, "HBM", 1)
    peaks = Peaks(2000 * GB, 4000 * GB, {"vector": 40}, {"node": 50 * GB}, {})
    memory = Memory(64 * GB, 60 * GB, [("weights", "experts", 30 * GB), ("KV", "cache", 10 * GB)])
    found = [(one.name, one.time_ps // MS, one.value) for one in counters(timeline.columns(), [0], peaks, memory)]
    assert found == [
        ("memory (usable 60) GB", 0, 40.0), ("HBM (peak 2000) GB/s", 0, 500.0), ("HBM (peak 2000) GB/s", 2, 1000.0),
        ("HBM (peak 2000) GB/s", 4, 0.0), ("L2 (peak 4000) GB/s", 0, 1000.0), ("L2 (peak 4000) GB/s", 4, 0.0),
        ("node links out (peak 50) GB/s", 2, 25.0), ("node links out (peak 50) GB/s", 4, 0.0),
        ("vector (of 40) cores", 0, 16.0), ("vector (of 40) cores", 2, 20.0), ("vector (of 40) cores", 4, 0.0)]
