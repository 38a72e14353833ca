"""Faults of runs of the library: what is conserved, what costs nothing, and signs that were published."""

from __future__ import annotations

import pytest

from simulator.observe.columns import Columns
from simulator.spec.faults import faults_of
from simulator.study.library import load_scenario
from simulator.study.scenario import Scenario
from simulator.study.simulate import simulate
from simulator.study.struck import struck
from tests.law.timeline_laws import check_timeline

FEW = {"model.shapes.layers": "4"}
CASES = {
    "a3_prefill:microbatch": FEW,  # two streams
    "trt_min_latency:base": FEW,  # one captured graph
    "transformer:decode": {"model.shapes.layers": "2", "knobs.graph": "never"},  # eager launches
}
DRAWN = ("about every 1 ms: rank * clock 0.5 for 200 us", "about every 1 ms: rank * hbm 0.3 for 200 us",
         "about every 1 ms: host * paused for 100 us", "about every 1 ms: link rank*.nic0 flaps 10 us for 200 us")
NO_TIME = ("10 us: rank 1 clock 0.5 for 0 s", "20 us: rank 0 hbm 0.1 for 0 s", "30 us: host 1 paused for 0 s",
           "40 us: link rank1.nic0 cut for 0 s")


def small(name: str) -> Scenario:
    return load_scenario(name).replace(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_faults_of_zero_length_cost_nothing(name: str) -> None:
    still = simulate(small(name)).columns
    struck_columns = simulate(small(name).variant(faults=faults_of(NO_TIME)), ranks="all").columns
    every = simulate(small(name), ranks="all").columns
    for column in ("issued_ps", "ready_ps", "start_ps", "end_ps"):
        assert struck_columns[column].tolist() == every[column].tolist()
    assert set(still["end_ps"].tolist()) == set(every["end_ps"].tolist())


def conserved(columns: Columns) -> dict[str, float]:
    counted = {name: float((columns[name] * columns["multiplicity"]).sum()) for name in ("flops", "l2_bytes",
                                                                                           "wire_bytes")}  # fmt: skip
    return counted | {"tasks": int(columns["multiplicity"].sum())}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_tasks_operations_and_bytes_are_conserved_through_every_fault(name: str, seed: int) -> None:
    found = struck(small(name).variant(faults=faults_of(DRAWN)), seed=seed)
    check_timeline(found.after.columns)
    assert len(found.aftermaths[-1].faults) > 1
    assert found.aftermaths[-1].late.moved > 0
    assert conserved(found.after.columns) == pytest.approx(conserved(found.before.columns))


@pytest.mark.parametrize("name", CASES)
def test_roles_are_all_ranks_whatever_strikes(name: str) -> None:
    faults = faults_of(["100 us: rank 1 clock 0.5 for 500 us", "0 s: host 0 paused for 50 us", "0 s: rank 1 hbm 0.7"])
    roles, every = (simulate(small(name).variant(faults=faults), ranks=mode).makespan_ps for mode in ("roles", "all"))
    assert roles == every


@pytest.mark.slow
def test_one_straggler_of_288_dies_is_waited_for_by_all() -> None:
    """Large-scale expert parallelism: dispatch, which all dies wait in, grows by what one die computes longer."""
    scenario = load_scenario("cm384_decode:decode_50ms").replace({"model.shapes.layers": "5"})
    found = struck(scenario.variant(faults=faults_of(["0 s: rank 100 clock 0.8"])))
    (one,) = found.aftermaths
    assert one.late.felt is not None
    assert one.late.noticed is not None
    assert one.late.felt.rank == 100 != one.late.noticed.rank
    assert one.cost_ps > 0.03 * found.before.makespan_ps
    assert found.after.own["dispatch_us"] > 1.5 * found.before.own["dispatch_us"]
    assert found.after.own["least_dispatch_us"] == pytest.approx(found.before.own["least_dispatch_us"], rel=0.02)
