"""A trace that Braid wrote, read as a measured one, says of communication what the timeline says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.observe.columns import Columns, select
from simulator.observe.events import PS_PER_NS
from simulator.observe.kineto import write_kineto
from simulator.observe.measured.read import read_measured
from simulator.observe.measured.table import Measured
from simulator.observe.metrics import measure
from simulator.observe.trace import write_trace
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from tests.observe.hand import comm, task, timeline


def hand() -> Columns:
    """Compute beside a collective that waited, over edges between nanoseconds, on a rank that stands for four."""
    return timeline([task("attention", 700, 70_400, kind="attention"), comm("dispatch", 69_900, 230_300, ready=8_200),
                     task("experts", 120_500, 241_000), comm("combine", 241_000, 243_999)],
                    multiplicity=(4,)).columns()


def library() -> Columns:
    """Two micro-batches on two streams."""
    return simulate(load_scenario("a3_prefill:microbatch").replace({"model.shapes.layers": "4"})).columns


def check(mine: Columns, trace: Measured) -> None:
    """Names, streams, and times to a nanosecond for each edge of a task, which are rounded down."""
    assert sorted(trace.columns["name"].tolist()) == sorted(mine["name"].tolist())
    assert sorted(set(trace.columns["stream"].tolist())) == sorted(set(mine["stream"].tolist()))
    own, its = measure(mine), trace.measured
    edges = 2 * len(mine["rank"]) * PS_PER_NS
    assert set(its.communication) == set(own.communication)
    for what in ("busy_ps", "hidden_ps", "exposed_ps"):
        for name, times in own.communication.items():
            assert abs(getattr(its.communication[name], what) - getattr(times, what)) <= edges
        assert abs(getattr(its.all_communication, what) - getattr(own.all_communication, what)) <= edges
    assert own.all_communication.busy_ps > edges
    assert abs(its.compute_ps - own.compute_ps) <= edges
    assert sorted(its.kind_ps) == sorted(own.kind_ps)


@pytest.mark.parametrize("columns_of", [hand, library])
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_gives_the_same_overlap(columns_of: Callable[[], Columns], name: str, tmp_path: Path) -> None:
    columns = columns_of()
    rank = int(columns["rank"][0])
    write_trace(columns, tmp_path / name, ranks=[rank])
    trace = read_measured(tmp_path / name)
    check(select(columns, columns["rank"] == rank), trace)
    assert set(trace.columns["multiplicity"].tolist()) == set(columns["multiplicity"].tolist())


@pytest.mark.parametrize("columns_of", [hand, library])
def test_files_for_tools_of_pytorch_give_the_same_overlap(columns_of: Callable[[], Columns], tmp_path: Path) -> None:
    columns = columns_of()
    rank = int(columns["rank"][0])
    write_kineto(columns, tmp_path, [rank], {"ranks": 4, "machine": "hand"})
    check(select(columns, columns["rank"] == rank), read_measured(tmp_path))
