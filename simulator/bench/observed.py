"""Speed of looking at a large run: one decode iteration on 288 dies, 642,528 tasks, kept in a folder."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from simulator.bench.benchmark import Measurement, timed
from simulator.observe.counters import counters
from simulator.observe.explain import Focus, explain
from simulator.observe.shown import shown
from simulator.observe.trace import write_trace
from simulator.study.library import load_scenario
from simulator.study.recorded import ABOUT, TIMELINE, about_object, read_recorded, recorded_of
from simulator.study.simulate import simulate

SCENARIO = "cm384_decode:decode_50ms"


def explained() -> Measurement:
    """CPU seconds of reading the folder and explaining all of it."""
    with tempfile.TemporaryDirectory() as name:
        folder, result = Path(name), simulate(load_scenario(SCENARIO))
        result.timeline.write_parquet(folder / TIMELINE)
        (folder / ABOUT).write_text(json.dumps(about_object(recorded_of(result))), encoding="utf-8")
        cpu_s, found = timed(lambda: explain(read_recorded(folder), Focus()))
        return Measurement(cpu_s, cpu_s, {"tasks": len(found.run.columns["rank"])})


def traced() -> Measurement:
    """CPU seconds of writing the trace of the ranks that are shown."""
    run = recorded_of(simulate(load_scenario(SCENARIO)))
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "trace.json.gz"
        ranks = [*shown(run.columns)]
        cpu_s, written = timed(lambda: write_trace(run.columns, file, ranks,
                                                   counters=counters(run.columns, ranks, run.peaks, run.memory)))
        return Measurement(cpu_s, cpu_s, {"tasks": len(run.columns["rank"]), "written": written,
                                          "file KiB": file.stat().st_size // 2**10})
