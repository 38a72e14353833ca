"""FlowMLA's program on models with few heads of keys and values: what nobody coded, memory and signs."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.study.library import load_scenario
from simulator.study.scenario import Case
from simulator.study.simulate import simulate
from tests.published.runs import run
from workloads.flow_mla_memory import items, request_bytes, requests

BRIEF = {"batch.cached_tokens": "2048", "batch.samples": "2", "model.shapes.layers": "5", "batch.requests": "8"}


def case_of(name: str, **changes: str) -> Case:
    scenario = load_scenario(f"flow_mla:{name}").replace(changes)
    return scenario.case(scenario.machine_spec(), 0)


def held_by(name: str) -> int:
    """Requests that fit on all ranks together; nothing is simulated."""
    case = case_of(name)
    return requests(case) * (1 if case.knobs.attention == "tp" else case.ranks)


def metric(name: str, key: str) -> float:
    return run(f"flow_mla:{name}").metrics[key]


@pytest.mark.parametrize(
    ("model", "cards", "copies"), [("qwen3", 4, 1), ("qwen3", 8, 2), ("qwen3", 16, 4), ("glm", 8, 1), ("glm", 16, 2)]
)
def test_tensor_parallelism_keeps_a_cache_of_few_heads_more_than_once(model: str, cards: int, copies: int) -> None:
    """As often as there are cards for each head of keys and values: 4 in Qwen3, 8 in GLM-4.5."""
    split, whole = case_of(f"{model}_tp", cards=str(cards)), case_of(f"{model}_dp")
    assert split.ranks == cards
    assert request_bytes(split) * cards == copies * request_bytes(whole)


def test_of_the_projections_only_a_copied_head_is_more_than_a_share() -> None:
    kept = {name: size for name, _, size in items(case_of("qwen3_tp"), 0)}["attention"]
    qkv, o, norms = 4096 * 128 * (8 + 2), 64 * 128 * 4096 / 8, 4096 + 2 * 128
    assert kept == 94 * 2 * (qkv + o + norms)  # of queries an eighth, of keys and values a quarter


def test_what_sharding_frees_is_the_formula_of_flow_mla_on_another_model() -> None:
    """W (1 - 1/n) - 2 (W / layers) (n - 1) / n."""
    def used(name: str) -> float:
        return sum(size for _, _, size in items(case_of(name), 0))

    one = 2 * 64 * 128 * 4096
    assert used("qwen3_dp") - used("qwen3_flow") == pytest.approx((94 - 2) * one * 7 / 8, rel=1e-9)


def test_sharding_lets_in_more_than_either_layout_without_it() -> None:
    held = {name: held_by(f"qwen3_{name}") for name in ("tp", "dp", "flow", "flow_all")}
    assert held["dp"] < held["tp"] < held["flow"] < held["flow_all"]
    tp, flow = (metric(name, "throughput_tok_s_per_card") for name in ("qwen3_tp", "qwen3_flow"))
    assert flow > tp  # by little: the AllReduce that brings all results back takes most of what more requests give
    assert held_by("glm_flow") > held_by("glm_tp") > held_by("glm_dp")


def test_a_gather_of_all_projections_outlasts_two_layers() -> None:
    """On NVLink of 200 GB/s o_proj is hidden; with the queries it is not, and the batch gained is not worth it."""
    assert metric("qwen3_flow", "prefetch_stall_ms") == 0.0
    assert metric("qwen3_flow_all", "prefetch_stall_ms") > 10.0
    assert metric("qwen3_flow_all", "throughput_tok_s_per_card") < metric("qwen3_flow", "throughput_tok_s_per_card")


@pytest.mark.parametrize("name", ["qwen3_tp", "qwen3_flow", "glm_flow"])
def test_roles_give_the_unfolded_run_to_the_picosecond(name: str) -> None:
    scenario = load_scenario(f"flow_mla:{name}").replace(BRIEF)
    assert simulate(scenario).makespan_ps == simulate(scenario, ranks="all").makespan_ps


def test_a_module_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match=r"knobs.sharded has q_b: attention of qwen3_235b has qkv, o"):
        simulate(load_scenario("flow_mla:qwen3_flow").replace({"knobs.sharded": "q_b,o"}))


def test_heads_that_are_split_leave_nothing_to_shard() -> None:
    with pytest.raises(InputError, match=r"knobs.sharded has o: with knobs.attention tp"):
        simulate(load_scenario("flow_mla:h20_tp").replace({"knobs.sharded": "o"}))


def test_copy_engines_do_not_gather_over_nodes() -> None:
    """They drive NVLink, not a network card."""
    with pytest.raises(InputError, match="engine 'copy_engine' does not leave a node, and group 'shards' has members"):
        simulate(load_scenario("flow_mla:h800_flow_32").replace({"knobs.gather_engine": "copy_engine", **BRIEF}))
