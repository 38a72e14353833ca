"""Effects that nobody coded: take the cause away and the effect goes with it (TensorRT-LLM at batch 1 on B200)."""

from __future__ import annotations

import pytest

from simulator.ladder import scenarios_of
from simulator.library import load_scenario
from simulator.machine.spec import load_machine
from simulator.simulation import simulate
from tests.published.runs import run

BASE, GTC, FINAL, EAGER = (f"trt_min_latency:{name}" for name in ("base", "gtc", "final", "eager"))
FAMILIES = load_machine("dgx_b200").kernels["trtllm_1_3"]
NO_FLOORS = {f"machine__kernels__trtllm_1_3__{family}__floor": "0 us" for family in FAMILIES} | {
    f"machine__kernels__trtllm_1_3__{family}__serial_per_k": "0 us"
    for family, kernel in FAMILIES.items()
    if hasattr(kernel, "serial_per_k")
}


def iteration_ms(name: str, **changes: str) -> float:
    return run(name, **changes).metrics["iteration_ms"]


def gain(knob: str, value: str, name: str = BASE, **changes: str) -> float:
    """How many times faster one knob makes it."""
    return iteration_ms(name, **changes) / iteration_ms(name, **changes, **{f"knobs__{knob}": value})


def test_without_floors_it_is_several_times_faster_and_floors_are_what_most_knobs_save() -> None:
    assert iteration_ms(BASE) > 3 * iteration_ms(BASE, **NO_FLOORS)
    assert gain("fused_top_k", "true") > 1.05
    assert gain("fused_top_k", "true", **NO_FLOORS) == pytest.approx(1.0, abs=0.01)
    assert gain("programmatic_launch", "true", **NO_FLOORS) == pytest.approx(1.0, abs=1e-6)


def test_a_host_that_launches_for_nothing_makes_the_graph_useless() -> None:
    free = {"machine__host__launch_eager": "0 us", "machine__host__launch_graph": "0 us"}
    assert iteration_ms(EAGER) > 4 * iteration_ms(BASE)
    assert iteration_ms(EAGER, **free) == iteration_ms(BASE, **free)


def test_an_infinite_link_leaves_the_start_up_and_the_waiting_of_all_reduce() -> None:
    fast = {"machine__fabric__0__link_rate": "inf B/s",
            "machine__collectives__one_shot__ladder__default__0__rate": "inf B/s"}
    assert 0.95 * iteration_ms(BASE) < iteration_ms(BASE, **fast) < iteration_ms(BASE)
    assert iteration_ms(BASE, knobs__engine="nccl") > 1.1 * iteration_ms(BASE)


def test_programmatic_launch_saves_a_prologue_per_kernel_that_knows_it() -> None:
    """PyTorch's kernels and products by cuBLAS do not; the rest gives the 3% that are published."""
    result = run(BASE)
    columns = result.columns
    kernels = (columns["rank"] == columns["rank"][0]) & ~columns["communication"]
    foreign = ("attention.fuse_a", "attention.uq_qr", "attention.uk", "attention.uv", "attention.o", "gate.router",
               "embedding.lookup", "head.logits", "head.to_fp32", "head.sample")  # fmt: skip
    own = int(kernels.sum() - sum((kernels & (columns["name"] == name)).sum() for name in foreign))
    saved_us = 1e3 * (iteration_ms(BASE) - iteration_ms(BASE, knobs__programmatic_launch="true"))
    assert saved_us == pytest.approx(own * FAMILIES["vector"].prologue.value, rel=0.05)
    states = dict(scenarios_of(load_scenario(BASE)))
    after = simulate(states["programmatic dependent launch"]).metrics["iteration_ms"]
    before = simulate(states["AllReduce with add, norm and quantise"]).metrics["iteration_ms"]
    assert before / after == pytest.approx(1.03, abs=0.01)


def test_the_shared_expert_hides_beside_the_routed_ones_because_it_leaves_them_cores() -> None:
    assert gain("shared_beside", "true") > 1.15
    columns = run(GTC).columns
    shared = (columns["name"] == "shared.gate_up") & (columns["layer"] == 30)
    router = (columns["name"] == "gate.router") & (columns["layer"] == 30)
    assert columns["start_ps"][shared][0] == columns["start_ps"][router][0]


def test_fuse_a_finds_its_weights_on_chip_because_they_came_under_the_all_reduce() -> None:
    def fuse_a_us(**changes: str) -> float:
        columns = run(FINAL, **changes).columns
        rows = (columns["name"] == "attention.fuse_a") & (columns["layer"] == 30)
        return (columns["end_ps"][rows] - columns["start_ps"][rows])[0] / 1e6

    assert 3.0 < fuse_a_us() < 4.0  # published
    assert fuse_a_us(machine__chip__l2__capacity="8 MB") > 1.6 * fuse_a_us()
    prefetch = run(FINAL).measured.kind_ps["prefetch"]
    assert prefetch > 0


def test_even_routing_takes_the_waiting_away() -> None:
    drawn = run("trt_min_latency:cutlass_ep8")
    even = simulate(load_scenario("trt_min_latency:cutlass_ep8").variant(routing=type(drawn.scenario.routing)()))
    assert drawn.metrics["waiting_comm_ms"] > 10 * even.metrics["waiting_comm_ms"]
    assert even.metrics["iteration_ms"] < drawn.metrics["iteration_ms"]


def test_imbalance_decides_how_the_experts_are_split() -> None:
    """With even routing whole experts (EP8) are best; with drawn routing their ranks wait for the busiest one."""
    drawn = [run(f"trt_min_latency:{name}") for name in ("cutlass_ep8", "cutlass")]
    even = [simulate(one.scenario.variant(routing=type(one.scenario.routing)())) for one in drawn]
    assert even[0].metrics["iteration_ms"] < even[1].metrics["iteration_ms"]
    assert drawn[0].metrics["iteration_ms"] > drawn[1].metrics["iteration_ms"]


def test_more_draft_tokens_touch_more_experts() -> None:
    spans = [run(FINAL, batch__draft_tokens=depth).metrics["block_experts_ms"] for depth in ("0", "3", "5")]
    assert spans[0] < spans[1] < spans[2]


def test_roles_give_the_unfolded_run_to_the_picosecond() -> None:
    small = load_scenario(GTC).replace({"model.shapes.layers": "6"})
    assert simulate(small).makespan_ps == simulate(small, ranks="all").makespan_ps


def test_a_split_that_leaves_ranks_without_experts_is_refused() -> None:
    from simulator.errors import InputError

    with pytest.raises(InputError, match="4 ranks"):
        simulate(load_scenario(FINAL).replace({"layout.tensor_parallel": "2"}))
