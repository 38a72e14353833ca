"""Runs of scenarios at the edge: what there is to say of hardly anything."""

from __future__ import annotations

import pytest

from simulator.study.library import load_scenario
from simulator.study.scenario import Workload
from simulator.study.simulate import simulate

NOTHING = Workload(
    program=lambda npu, case: None,
    groups=lambda case: {},
    place=lambda case, rank: {},
    memory=lambda case: (),
    measures=lambda case, seconds: {"iteration_ms": seconds * 1e3},
)


@pytest.mark.parametrize("ranks", ["roles", "all"])
@pytest.mark.parametrize("record", [True, False])
def test_a_program_that_does_nothing_takes_no_time(ranks: str, record: bool) -> None:
    result = simulate(load_scenario("a3_prefill:dp").variant(workload=NOTHING, expected=()), ranks=ranks, record=record)
    assert result.makespan_ps == 0
    assert result.metrics["iteration_ms"] == result.metrics.get("communication_share", 0.0) == 0.0


def test_a_start_up_is_blamed_for_the_collectives_of_its_engine_and_not_for_puts() -> None:
    result = simulate(load_scenario("cm384_decode:decode_low_even").replace({"model.shapes.layers": "6"}))
    late = [one for one in result.critical.segments if one.bound_by == "latency"]
    assert {"put", "all_gather"} <= {one.kind for one in late}
    theirs = sum(one.to_ps - one.from_ps for one in late if one.kind not in ("put", "collect"))
    (share,) = (row["share"] for row in result.parameters if row["name"] == "collectives.aiv_small.startup")
    assert share == pytest.approx(theirs / result.makespan_ps)
