"""Effects that nobody coded: take the cause away and the effect goes with it (FlowMLA)."""

from __future__ import annotations

import pytest

from simulator.spec.load import load_machine
from simulator.spec.typed_toml import quantities
from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate
from tests.published.runs import run
from workloads.flow_mla_memory import requests

FLOW, ONE = "flow_mla:h20_flow", "flow_mla:h20_batch_1"
CTAS = "machine__collectives__nccl_background__cores__sm"
SHORT = {"batch.cached_tokens": "2048", "batch.samples": "2"}  # two decode iterations instead of the whole run
EIGHT_LAYERS = {"model__shapes__layers": "8"}
BRIEF = {key.replace(".", "__"): text for key, text in SHORT.items()}


def tpot(name: str = FLOW, **changes: str) -> float:
    return run(name, **changes).metrics["tpot_ms"]


def stall(name: str, **changes: str) -> float:
    return run(name, **changes).metrics["prefetch_stall_ms"]


def short(**changes: str) -> Result:
    return run(FLOW, **BRIEF, **changes)


def fitting(name: str, changes: dict[str, str] | None = None) -> int:
    """Requests that fit on a data parallel rank; nothing is simulated."""
    scenario = load_scenario(name).replace(changes or {})
    return requests(scenario.case(scenario.machine_spec(), 0))


def test_a_gather_that_holds_no_sms_slows_no_kernel() -> None:
    """Copy engines instead of CTAs: every kernel gets all the SMs that it wants, and memory has room for both."""
    free, held = short(knobs__gather_engine="copy_engine"), short()
    assert held.metrics["tpot_ms"] > 1.1 * free.metrics["tpot_ms"]
    assert free.metrics["compute_stretch"] == pytest.approx(1.0, abs=0.01)
    alone = {kernel: set() for kernel in ("experts.gate_up", "attention.o")}  # type: dict[str, set[int]]
    for kernel, times in alone.items():
        rows = (free.columns["name"] == kernel) & (free.columns["layer"] == 30)
        times |= set(free.columns["solo_ps"][rows].tolist())
        assert len(times) == 1
    rows = (held.columns["name"] == "experts.gate_up") & (held.columns["layer"] == 30)
    assert held.columns["solo_ps"][rows].max() > 1.2 * max(alone["experts.gate_up"])


def test_tpot_has_its_least_between_too_few_and_too_many_ctas() -> None:
    times = {count: tpot(ONE, **{CTAS: str(count)}) for count in (1, 2, 4, 8, 16, 32)}
    best = min(times, key=lambda count: times[count])
    assert 1 < best < 32
    assert times[1] > 1.5 * times[best]
    assert stall(ONE, **{CTAS: "1"}) > 5 > 0.1 > stall(ONE, **{CTAS: "16"})


def test_nvlink_without_limit_takes_the_held_sms_back_sooner() -> None:
    rungs = {key.replace(".", "__"): "1000 TB/s" for key, _ in quantities(load_machine("h20_node"))
             if key.startswith("collectives.nccl_background.ladder") and key.endswith("rate")}
    endless = {f"machine__{key}": text for key, text in rungs.items()}
    endless |= {"machine__collectives__nccl_background__rate_per_core": "inf B/s",
                "machine__fabric__node__link_rate": "inf B/s"}
    fast = short(**endless).metrics["tpot_ms"]
    assert short(knobs__gather_engine="copy_engine").metrics["tpot_ms"] < 1.05 * fast
    assert fast < short().metrics["tpot_ms"]


def test_one_buffer_makes_attention_wait() -> None:
    """With two the gather has two layers; with one it has what is left of a layer after o_proj."""
    assert stall(ONE) == 0.0
    assert stall(ONE, knobs__buffers="1") > 0.2
    assert stall(ONE, knobs__buffers="3") == 0.0


def test_a_gather_without_bandwidth_is_what_the_iteration_lasts() -> None:
    """24 CTAs at 1.2 GB/s together: an iteration lasts as long as its 61 gathers of seven shards of 14.7 MB."""
    slow = run(ONE, machine__collectives__nccl_background__rate_per_core="0.05 GB/s")
    assert slow.metrics["prefetch_stall_ms"] > 0.9 * slow.metrics["tpot_ms"]


def test_floors_are_a_good_part_of_batch_1_only() -> None:
    floors = {f"machine__{key.replace('.', '__')}": "0 us" for key, _ in quantities(load_machine("h20_node"))
              if key.startswith("kernels.") and key.endswith(".floor")}
    at_one = 1.0 - tpot(ONE, **floors) / tpot(ONE)
    at_many = 1.0 - short(**floors).metrics["tpot_ms"] / short().metrics["tpot_ms"]
    assert at_one > 0.14  # 0.15 before the shared expert became a choice more: seven launches a layer less
    assert 0.0 < at_many < 0.1


def test_captured_graphs_cost_the_host_next_to_nothing() -> None:
    free = {"machine__host__launch_graph": "0 us", "machine__host__device_read": "0 us"}
    assert 0.995 * tpot(ONE) < tpot(ONE, **free) < tpot(ONE)
    slow = tpot(ONE, machine__host__launch_graph="5 ms")  # nothing runs while the host launches the next graph
    assert slow == pytest.approx(tpot(ONE) + 5.0, rel=0.01)


def test_padding_to_captured_sizes_costs_time_and_no_tokens() -> None:
    padded, exact = short(), short(knobs__pad_to_captured="false")
    assert padded.metrics["tpot_ms"] > exact.metrics["tpot_ms"]
    assert padded.metrics["requests"] == exact.metrics["requests"]


def test_a_batch_beyond_the_largest_graph_is_launched_kernel_by_kernel_and_not_padded() -> None:
    beyond = {"batch__requests": "17", "knobs__captured": "16"}
    free = {f"machine__host__{name}": "0 us" for name in ("launch_eager", "operator", "launch_graph")}
    exact = short(batch__requests="17", knobs__pad_to_captured="false", **free)
    assert short(**beyond, **free).makespan_ps == exact.makespan_ps
    slow = short(**beyond, machine__host__launch_eager="100 us").metrics["tpot_ms"]
    assert slow > 61 * 25 * 0.1 > exact.metrics["tpot_ms"]


def test_memory_decides_how_many_requests_there_are() -> None:
    more, fewer = {"machine.chip.hbm.capacity": "100 GiB"}, {"knobs.buffers": "6"}
    assert fitting(FLOW, more) > fitting(FLOW) > fitting(FLOW, fewer)
    assert fitting("flow_mla:h800_flow_32") > fitting("flow_mla:h800_flow")
    assert short().metrics["requests"] == 8 * fitting(FLOW, SHORT)


def test_a_gather_over_nodes_costs_little_until_network_cards_are_slow() -> None:
    """Rings take an eighth of what they move over network cards; slow ones are in the way of the tokens' exchanges."""
    over, inside = "flow_mla:h800_flow_32", "flow_mla:h800_flow"
    usual = {**BRIEF, **EIGHT_LAYERS, "batch__requests": "86"}
    slow = {**usual, "machine__fabric__cluster__link_rate": "5 GB/s"}
    assert stall(inside, **usual) == stall(inside, **slow) == 0.0
    assert tpot(over, **usual) < 1.1 * tpot(inside, **usual)
    assert tpot(over, **slow) > 1.5 * tpot(inside, **slow)


def test_results_that_come_back_whole_cost_twice_the_bytes() -> None:
    """An AllReduce of everybody's tokens against a ReduceScatter: half as much again for both exchanges of a layer."""
    ways = ("all_reduce", "reduce_scatter")
    few = {**BRIEF, **EIGHT_LAYERS, "batch__requests": "30"}
    whole, scattered = (run("flow_mla:h800_dp", **few, knobs__combine=way) for way in ways)
    bytes_of = {}
    for name, result in (("ffn.all_reduce", whole), ("ffn.reduce_scatter", scattered), ("ffn.all_gather", whole)):
        rows = (result.columns["name"] == name) & (result.columns["layer"] == 6) & (result.columns["rank"] == 0)
        bytes_of[name] = result.columns["wire_bytes"][rows].sum()
    assert bytes_of["ffn.all_reduce"] == 2 * bytes_of["ffn.reduce_scatter"] == 2 * bytes_of["ffn.all_gather"]
    assert whole.metrics["tpot_ms"] > 1.15 * scattered.metrics["tpot_ms"]


def test_sharding_the_queries_too_lets_more_requests_in() -> None:
    assert fitting("flow_mla:h20_queries_too") > 1.5 * fitting(FLOW)
    assert fitting("flow_mla:kimi_flow") > fitting("flow_mla:kimi_dp")


@pytest.mark.parametrize("name", [FLOW, "flow_mla:h20_tp", "flow_mla:h800_flow"])
def test_roles_give_the_unfolded_run_to_the_picosecond(name: str) -> None:
    scenario = load_scenario(name).replace({**SHORT, "model.shapes.layers": "5", "batch.requests": "8"})
    assert simulate(scenario).makespan_ps == simulate(scenario, ranks="all").makespan_ps
