"""Runs of scenarios at the edge: what there is to say of hardly anything."""

from __future__ import annotations

import gc

import pytest

from simulator.errors import InputError
from simulator.program.rank import Rank
from simulator.study.library import load_scenario
from simulator.study.scenario import Case, Scenario, Workload
from simulator.study.simulate import simulate

NOTHING = Workload(
    program=lambda npu, case: None,
    groups=lambda case: {},
    coordinates=lambda case, rank: {},
    memory=lambda case: (),
    measures=lambda case, seconds: {"iteration_ms": seconds * 1e3},
)


@pytest.mark.parametrize("ranks", ["roles", "all"])
@pytest.mark.parametrize("record", [True, False])
def test_a_program_that_does_nothing_takes_no_time(ranks: str, record: bool) -> None:
    result = simulate(load_scenario("a3_prefill:dp").variant(workload=NOTHING, expected=()), ranks=ranks, record=record)
    assert result.makespan_ps == 0
    assert result.metrics["iteration_ms"] == result.metrics.get("communication_share", 0.0) == 0.0


def test_runs_one_after_the_other_leave_nothing_behind() -> None:
    """Cycles among what a run made are found by the next one, and do not stay for good."""
    small = load_scenario("a3_prefill:dp").replace({"model.shapes.layers": "4", "batch.requests": "32", "cards": "1",
                                                    "layout.expert_parallel": "2"})  # fmt: skip
    objects = []
    for _ in range(6):
        simulate(small)
        objects.append(len(gc.get_objects()))
    assert max(objects[2:]) - min(objects[2:]) < 200, objects


def test_a_start_up_is_blamed_for_the_collectives_of_its_engine_and_not_for_puts() -> None:
    result = simulate(load_scenario("cm384_decode:decode_low_even").replace({"model.shapes.layers": "6"}))
    late = [one for one in result.critical.segments if one.bound_by == "latency"]
    assert {"put", "all_gather"} <= {one.kind for one in late}
    theirs = sum(one.to_ps - one.from_ps for one in late if one.kind not in ("put", "collect"))
    (share,) = (row["share"] for row in result.parameters if row["name"] == "collectives.aiv_small.startup")
    assert share == pytest.approx(theirs / result.makespan_ps)


@pytest.mark.parametrize(("numbers", "bound", "parameters"), [
    ({}, "HBM share gemm_bf16", {"chip.hbm.peak", "kernels.vllm.gemm_bf16.hbm_share"}),
    ({"machine.kernels.vllm.gemm_bf16.hbm_share": "1", "machine.chip.hbm.efficiency": "0.5"}, "HBM",
     {"chip.hbm.peak", "chip.hbm.efficiency"}),
])  # fmt: skip
def test_a_product_held_back_by_its_way_of_reading_hbm_is_bound_by_memory(
    numbers: dict[str, str], bound: str, parameters: set[str]
) -> None:
    base = {"model": "llama_3_1_8b", "machine": "dgx_h100", "kernels": "vllm", "layout.tp": "1", "cards": "1",
            "model.shapes.layers": "4", "machine.kernels.vllm.gemm_bf16.hbm_share": "0.4"}  # fmt: skip
    result = simulate(load_scenario("transformer:decode").replace(base | numbers))
    wide = result.columns["name"] == "dense.gate_up"
    assert set(result.columns["bound_by"][wide].tolist()) == {bound}
    assert parameters <= {row["name"] for row in result.parameters}


def exchanging() -> Scenario:
    """Eight dies of Atlas A3 that exchange 8 MB with each other and 1 MB in their packages."""

    def program(npu: Rank, _: Case) -> None:
        npu.group("world").all_to_all("turn", 8_000_000, "sdma")
        npu.group("package").all_to_all("swap", 1_000_000, "sdma")

    packages = [(rank, rank + 1) for rank in range(0, 8, 2)]
    workload = Workload(
        program=program, groups=lambda case: {"world": [tuple(range(8))], "package": packages},
        coordinates=lambda case, rank: {}, memory=lambda case: [],
        measures=lambda case, seconds: {"latency_s": seconds},
    )  # fmt: skip
    return load_scenario("a3_prefill:dp").variant(name="exchanging", cards=4, workload=workload, expected=())


def test_a_cut_link_is_a_setting_and_roles_are_all_ranks() -> None:
    changes = {"machine.fabric.cut": "die 2 - die 3", "machine.fabric.slow": "die 5 to node 0: 0.25"}
    as_it_is, changed = exchanging(), exchanging().replace(changes)
    few, all_ranks = (simulate(changed, ranks=ranks) for ranks in ("roles", "all"))
    assert few.makespan_ps == all_ranks.makespan_ps > simulate(as_it_is).makespan_ps
    assert (few.header["changed"], few.header["unread"]) == (changes, [])
    assert 1 < few.header["classes"] < 8


def test_links_that_a_scenario_cannot_cut_are_refused() -> None:
    with pytest.raises(InputError, match=r"^exchanging: machine.fabric.cut: got 'die 2 - die 9': there is no 'die 9'"):
        simulate(exchanging().replace({"machine.fabric.cut": "die 2 - die 9"}))
    with pytest.raises(InputError, match=r"^exchanging: links are missing, and no way leads from die 0 to die 2"):
        simulate(exchanging().replace({"machine.fabric.cut": "die 2 - node 0, die 3 - node 0"}))
    with pytest.raises(InputError, match=r"atlas_a3: fabric.cut: got 'die 2': 'die 2': write"):
        exchanging().replace({"machine.fabric.cut": "die 2"})
    with pytest.raises(InputError, match=r"no such setting \(did you mean 'machine.fabric.slow'\?\)"):
        exchanging().replace({"fabric.slow": "die 2 - die 3: 0.5"})
