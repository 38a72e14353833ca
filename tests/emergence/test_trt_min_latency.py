"""Effects that nobody coded: take the cause away and the effect goes with it (TensorRT-LLM at batch 1 on B200)."""

from __future__ import annotations

import pytest

from simulator.spec.load import load_machine
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
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


FEW = {"model__shapes__layers": "16"}  # what a launch saves does not depend on how many follow


def test_without_floors_it_is_several_times_faster_and_floors_are_what_most_knobs_save() -> None:
    none = FEW | NO_FLOORS
    assert iteration_ms(BASE) > 3 * iteration_ms(BASE, **NO_FLOORS)
    assert gain("fused_top_k", "true", **FEW) > 1.05
    assert gain("fused_top_k", "true", **none) == pytest.approx(1.0, abs=0.01)
    assert gain("programmatic_launch", "true", **none) == pytest.approx(1.0, abs=1e-6)


def test_a_host_that_launches_for_nothing_makes_the_graph_useless() -> None:
    free = {f"machine__host__{name}": "0 us" for name in ("launch_eager", "operator", "launch_graph")}
    assert iteration_ms(EAGER, **FEW) > 4 * iteration_ms(BASE, **FEW)
    assert iteration_ms(EAGER, **FEW, **free) == iteration_ms(BASE, **FEW, **free)


def test_an_infinite_link_leaves_the_start_up_and_the_waiting_of_all_reduce() -> None:
    fast = {"machine__fabric__0__link_rate": "inf B/s",
            "machine__collectives__one_shot__ladder__default__0__rate": "inf B/s"}
    assert 0.95 * iteration_ms(BASE) < iteration_ms(BASE, **fast) < iteration_ms(BASE)
    assert iteration_ms(BASE, knobs__engine="nccl") > 1.1 * iteration_ms(BASE)


def saved_us(name: str, **changes: str) -> float:
    """How much sooner an iteration of a few layers ends with programmatic launch."""
    apart, beside = (iteration_ms(name, **FEW, knobs__programmatic_launch=on, **changes) for on in ("false", "true"))
    return 1e3 * (apart - beside)


def own_launches(name: str) -> int:
    """Kernels of a rank that know programmatic launch: PyTorch's and products by cuBLAS do not."""
    result = run(name, **FEW)
    columns, machine = result.columns, load_machine("dgx_b200")
    foreign = [family for family, kernel in machine.kernels["trtllm_1_3"].items() if kernel.prologue is None]
    assert sorted(foreign) == ["batched_gemm_bf16", "framework", "gemm_bf16"]
    kernels = (columns["rank"] == columns["rank"][0]) & ~columns["communication"]
    others = ("attention.fuse_a", "attention.uq_qr", "attention.uk", "attention.uv", "attention.o", "gate.router",
              "embedding.lookup", "head.logits", "head.to_fp32", "head.sample")  # fmt: skip
    return int(kernels.sum() - sum((kernels & (columns["name"] == name)).sum() for name in others))


def test_programmatic_launch_saves_a_prologue_per_kernel_where_all_wait_for_each_other() -> None:
    """One stream: every kernel is on the critical path. A third of the prologue saves a third, none saves nothing."""
    prologue = {f"machine__kernels__trtllm_1_3__{family}__prologue": "{} us"
                for family, kernel in FAMILIES.items() if kernel.prologue is not None}  # fmt: skip

    def with_prologue(us: float) -> dict[str, str]:
        return {key: text.format(us) for key, text in prologue.items()}

    own_us = FAMILIES["vector"].prologue.value
    assert saved_us(BASE) == pytest.approx(own_launches(BASE) * own_us, rel=0.05)
    assert saved_us(BASE, **with_prologue(own_us / 3)) == pytest.approx(saved_us(BASE) / 3, rel=0.02)
    assert saved_us(BASE, **with_prologue(0)) == 0


def test_programmatic_launch_saves_nothing_where_something_else_takes_the_time() -> None:
    assert saved_us(EAGER) == 0  # the host
    # the shared expert beside the routed ones hides its own; the sum that joins two streams waits for both
    hidden = saved_us(BASE) - saved_us(BASE, knobs__shared_beside="true")
    columns = run(BASE, **FEW).columns
    lost = [name.startswith("shared.") or name == "finalize.add_shared" for name in columns["name"]]
    count = (lost & (columns["rank"] == columns["rank"][0])).sum()
    assert hidden == pytest.approx(count * FAMILIES["vector"].prologue.value, rel=0.01)


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


def test_a_smart_router_takes_the_imbalance_away_and_gains_nothing_where_there_is_none() -> None:
    """Each half of the GPUs holds all experts and computes every other active one."""
    fixed, chosen = run(FINAL), run("trt_min_latency:smart_router")
    assert chosen.metrics["waiting_comm_ms"] < 0.2 * fixed.metrics["waiting_comm_ms"]
    assert 1.0 < fixed.metrics["iteration_ms"] / chosen.metrics["iteration_ms"] < 1.03
    even = [simulate(one.scenario.variant(routing=type(one.scenario.routing)())) for one in (fixed, chosen)]
    assert even[0].metrics["iteration_ms"] == pytest.approx(even[1].metrics["iteration_ms"], rel=2e-3)


def test_more_draft_tokens_touch_more_experts() -> None:
    spans = [run(FINAL, batch__draft_tokens=depth).metrics["block_experts_ms"] for depth in ("0", "3", "5")]
    assert spans[0] < spans[1] < spans[2]


def test_a_fifth_query_token_needs_a_second_wave_of_attention_and_larger_tiles_do_not() -> None:
    def core_us(depth: int, **changes: str) -> float:
        columns = run(GTC, batch__draft_tokens=str(depth), **changes).columns
        rows = (columns["name"] == "attention.core") & (columns["layer"] == 30)
        return float((columns["end_ps"][rows] - columns["start_ps"][rows])[0]) / 1e6

    larger = {"machine__kernels__trtllm_1_3__mla__tile_keys": "256"}
    assert core_us(3) == pytest.approx(core_us(0), rel=0.01)
    assert core_us(4) > core_us(3) + 1.0
    assert core_us(4, **larger) == pytest.approx(core_us(3, **larger), rel=0.01)


def test_roles_give_the_unfolded_run_to_the_picosecond() -> None:
    small = load_scenario(GTC).replace({"model.shapes.layers": "6"})
    assert simulate(small).makespan_ps == simulate(small, ranks="all").makespan_ps


@pytest.mark.parametrize(("changes", "message"), [
    ({"layout.tensor_parallel": "2"}, "layout.tensor_parallel 2 x layout.expert_parallel 2 = 4 ranks, but there are 8"),
    ({"knobs.smart_router": "true"}, "two copies .* = 16 ranks"),
    ({"model.shapes.heads": "60"}, "60 heads do not divide over 8 ranks"),
    ({"batch.accepted": "1,2,2.5"}, "accepted has 3 values, for 0 to 2 draft tokens, but batch.draft_tokens is 3"),
])  # fmt: skip
def test_what_cannot_be_run_is_refused(changes: dict[str, str], message: str) -> None:
    from simulator.errors import InputError

    with pytest.raises(InputError, match=message):
        simulate(load_scenario(FINAL).replace(changes))
