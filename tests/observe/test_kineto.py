"""Files for PyTorch's tools: communication and overlap, by the names that these tools go by, are those of the run."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from simulator import np
from simulator.observe.columns import select, union
from simulator.observe.kineto import kernel_name, write_kineto
from simulator.observe.metrics import measure
from simulator.study.library import load_scenario
from simulator.study.recorded import recorded_of
from simulator.study.simulate import simulate

COMMUNICATION = re.compile(r"^nccl.*Kernel")  # HolisticTraceAnalysis 0.5, hta/utils/utils.py
MEMORY = re.compile(r"(^Memcpy)|(^Memset)|(^dma)")


def _kernels(events: list[dict[str, Any]], communication: bool) -> Any:
    some = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy") and not MEMORY.search(one["name"])
            and bool(COMMUNICATION.search(one["name"])) == communication]
    start = np.array([round(one["ts"] * 1000) for one in some], dtype=np.int64)
    return union(start, start + np.array([round(one["dur"] * 1000) for one in some], dtype=np.int64))


@pytest.mark.parametrize("name", ["a3_prefill:microbatch", "a2_prefill:micro_batch"])
def test_communication_and_overlap_are_those_of_the_run(name: str, tmp_path: Path) -> None:
    run = recorded_of(simulate(load_scenario(name)))
    rank = int(run.columns["rank"].max())
    write_kineto(run.columns, tmp_path, [rank], run.about)
    with gzip.open(tmp_path / f"rank-{rank}.json.gz", "rt", encoding="utf-8") as file:
        whole = json.load(file)
    talks, computes = _kernels(whole["traceEvents"], True), _kernels(whole["traceEvents"], False)
    times = measure(select(run.columns, run.columns["rank"] == rank)).all_communication
    assert int(talks.lengths().sum()) == pytest.approx(times.busy_ps / 1e3, rel=1e-3)
    hidden = int(computes.covered(talks.start, talks.end).sum())
    assert hidden == pytest.approx(times.hidden_ps / 1e3, rel=1e-3, abs=100)
    assert whole["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": run.about["ranks"]}


def test_launches_and_kernels_have_the_same_number(tmp_path: Path) -> None:
    run = recorded_of(simulate(load_scenario("contention:staging")))
    write_kineto(run.columns, tmp_path, [0], run.about)
    with gzip.open(tmp_path / "rank-0.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    assert {one["args"]["multiplicity"] for one in events if one.get("cat") == "kernel"} == {run.about["ranks"]}
    launches = {one["args"]["correlation"]: one for one in events if one.get("cat") == "cuda_runtime"}
    kernels = {one["args"]["correlation"]: one for one in events if one.get("cat") == "kernel"}
    assert set(launches) == set(kernels)
    assert all(launches[one]["ts"] + launches[one]["dur"] <= kernels[one]["ts"] for one in kernels)


def test_names() -> None:
    assert kernel_name("combine.sums", "reduce_scatter", True) == "ncclDevKernel_ReduceScatter"
    assert kernel_name("fetch", "prefetch", False) == "Memcpy DtoD (fetch)"
    assert kernel_name("attention.q_a", "gemm", False) == "attention.q_a"
