"""Recorded programs beside live hosts: flags both ways, rows of both in one timeline, errors that name who waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from simulator.errors import InputError, RunError
from simulator.live.thread import Label
from simulator.model import ops
from simulator.program.rank import Rank
from simulator.program.task import Flag
from simulator.study.library import load_scenario
from simulator.study.scenario import Case, Scenario, Workload
from simulator.study.simulate import program_text, simulate
from tests.law.timeline_laws import check_timeline


def _echo(npu: Rank, case: Case) -> None:
    """A kernel, a flag for the host, a flag from the host, a kernel."""
    npu.program.captured = True
    npu.launch(ops.copy(1e6), "before")
    npu.set_flag("ask", "asked")
    npu.wait_flag("answer", "answered", (("sm", 100),))
    npu.launch(ops.copy(1e6), "after")


def _answer(host: Any, case: Case) -> Any:
    """Every host tells the next one, and its GPU once it has been told itself."""
    label = Label("ring")
    host.engine.count(label, "told", 1, gpu_flag="answered")
    seen = yield from host.until_flag("asked")
    yield from host.engine.scatter(host.proxy, label, [((host.rank + 1) % case.ranks, 64)], "told", seen)


def _silent(host: Any, case: Case) -> Any:
    yield from host.until_flag("never")


def _scenario(live: Any, program: Any = _echo, machine: str = "p5en_h200") -> Scenario:
    nothing: Any = lambda *_: {}  # noqa: E731
    workload = Workload(program, nothing, nothing, lambda _: [], lambda _, s: {"latency_ms": s * 1e3}, live, _readings)
    return load_scenario("pplx:efa_ep16").variant(
        name="ring", cards=3, machine=machine, expected=(), workload=workload
    )


def _readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    return {"rows": float(len(columns["rank"]))}


def test_gpus_and_hosts_meet_in_flags_and_share_a_timeline() -> None:
    result = simulate(_scenario(_answer))
    check_timeline(result.columns)
    streams = set(result.columns["stream"].tolist())
    assert {"compute", "proxy", "engine", "nic 0 out", "nic 0 in"} <= streams
    assert result.metrics["rows"] == len(result.timeline)
    columns = result.columns
    answer = columns["name"] == "answer"
    assert (columns["start_ps"][answer] - columns["ready_ps"][answer] > 15 * 10**6).all()  # a flight over EFA at least
    assert set(columns["cause_rank"][answer].tolist()) == {0, 1, 2}


def test_a_flag_that_was_set_long_before_is_no_cause() -> None:
    """The kernel that the GPU was busy with is."""

    def program(npu: Rank, case: Case) -> None:
        npu.program.captured = True
        npu.set_flag("ask", "asked")
        npu.launch(ops.copy(1e9), "long")
        npu.wait_flag("answer", "answered")
        npu.launch(ops.copy(1e6), "after")

    result = simulate(_scenario(_answer, program))
    path = [one.name for one in result.critical.segments if one.what == "work"]
    assert path[0] == "long"
    assert path[-1] == "after"
    assert "ring" not in path
    assert (result.columns["cause_rank"][result.columns["name"] == "answer"] == -1).all()


def test_every_rank_is_simulated_and_every_run_is_the_same() -> None:
    one, other = simulate(_scenario(_answer)), simulate(_scenario(_answer), ranks="all")
    assert one.header["classes"] == 3
    assert one.makespan_ps == other.makespan_ps
    assert one.columns["end_ps"].tolist() == other.columns["end_ps"].tolist()


def test_a_flag_prints_with_what_its_kernel_holds() -> None:
    text = program_text(_scenario(_answer))
    assert "set_flag asked" in text
    assert "wait_flag answered, holding 100 sm" in text
    assert str(Flag("set_flag", "x")) == "set_flag x"


def test_a_flag_that_nobody_sets_is_an_error_that_names_it() -> None:
    with pytest.raises(RunError) as error:
        simulate(_scenario(_silent))
    assert "rank 0 proxy: waits for flag 'never' of its GPU" in str(error.value)
    assert "task 'answer' (#2) waits for its host to set flag 'answered'" in str(error.value)


def test_a_host_that_never_ends_is_an_error_even_where_all_gpus_have() -> None:
    with pytest.raises(RunError, match="rank 1 proxy: waits for flag 'never' of its GPU"):
        simulate(_scenario(_silent, program=lambda npu, case: None))


def test_a_machine_without_cards_is_refused() -> None:
    with pytest.raises(InputError, match=r"atlas_a3 has no tables \[nic\] and \[proxy\]"):
        simulate(_scenario(_answer, program=lambda npu, case: None, machine="atlas_a3").variant(
            kernels="cann_recipes_2025", cards=2))
