"""FlowMLA against what Ant Group published. Published values are never changed."""

from __future__ import annotations

import pytest

from simulator.die.memory import DoesNotFit
from simulator.stack.sglang_2025 import sliced_experts_bytes
from simulator.study.library import load_scenario
from simulator.study.simulate import prepare, simulate
from tests.published.reported import Row, reported
from tests.published.runs import run

# largest relative error that is reported for a value today; lower these when the model gets better; one that a righter
# mechanism makes worse is raised with that reason beside it
REPORTED = {
    # 0.0 before the shared expert's rows, the activation's result and quantised inputs were counted as allocated
    ("flow.h20.tp", "requests"): 0.0193,
    ("flow.h20.tp", "throughput_tok_s_per_card"): 0.005,
    ("flow.h20.dp", "fitting_requests_unsharded"): 0.0,
    ("flow.h20.flow", "requests"): 0.0,
    ("flow.h20.flow", "requests / flow_mla:h20_tp"): 0.0197,  # 0.0 before: 136 as published, the baseline 51
    # 0.063 and 0.065 before attention took whole waves of strips and experts had rows as their table drew them; then
    # 0.076 and 0.077 before the baseline held 51 requests, which need more skew to reach its published throughput; then
    # 0.092 and 0.098 before sorting rows had a part for every expert, as its table has, which the baseline feels most;
    # then 0.132 and 0.137 before results of data parallel tokens came back by an AllReduce, and tokens kept to four of
    # eight groups of experts; then 0.115 and 0.12 before a gather had the 24 CTAs of NCCL's log instead of 20;
    # then 0.0997 and 0.102 before sliced experts were Triton's, which sort by no serial kernel
    ("flow.h20.flow", "throughput_tok_s_per_card"): 0.11,
    ("flow.h20.flow", "throughput_tok_s_per_card / flow_mla:h20_tp"): 0.112,
    ("flow.h800.dp", "requests_per_card"): 0.0,
    # 0.002 while the rate between nodes was fitted on it, 0.006 before attention was planned: the baseline of H20 then
    # needs less skew, and fuller experts of H800 less time; 0.02 before rows were sorted in parallel, and the skew of
    # H20, which H800 has, was 1.34
    ("flow.h800.dp", "throughput_tok_s_per_card"): 0.086,
    ("flow.h800.flow", "requests_per_card"): 0.037,
    ("flow.h800.flow", "requests_per_card / flow_mla:h800_dp"): 0.037,
    ("flow.h800.flow", "throughput_tok_s_per_card"): 0.062,  # 0.032 before, as above
    ("flow.h800.flow", "throughput_tok_s_per_card / flow_mla:h800_dp"): 0.0505,  # 0.047 before, as above
    ("flow.hidden", "prefetch_stall_ms"): 0.0,
}


@pytest.mark.parametrize("row", reported("flow_mla"), ids=str)
def test_the_error_has_not_grown(row: Row) -> None:
    row.assert_within(REPORTED.get((row.id, row.metric), 0.0))


def test_data_parallel_attention_does_not_fit_on_h20_without_flow_mla() -> None:
    with pytest.raises(DoesNotFit, match="attention"):
        simulate(load_scenario("flow_mla:h20_dp"))


def test_the_whole_model_and_its_cache_are_counted() -> None:
    """Published: 70,272 B of cache a token; BF16 attention is 22.8 GB a card, 62.8% of it o_proj."""
    from workloads.flow_mla_memory import items

    scenario = load_scenario("flow_mla:h800_dp")
    case = scenario.case(scenario.machine_spec(), 0)
    sizes = {name: size for name, _, size in items(case, 30)}
    assert sizes["attention"] == pytest.approx(22.8e9, rel=2e-3)
    assert 61 * 2 * 16384 * 7168 / sizes["attention"] == pytest.approx(0.628, abs=1e-3)
    assert sizes["latent cache of 30 requests"] == 30 * 3072 * 70272


def test_what_flow_mla_frees_is_the_published_formula() -> None:
    """W_o (1 - 1/n) - 2 (W_o / 61) (n - 1) / n."""
    from workloads.flow_mla_memory import items

    def used(name: str) -> float:
        scenario = load_scenario(name)
        return sum(size for _, _, size in items(scenario.case(scenario.machine_spec(), 0), 0))

    whole = 61 * 2 * 16384 * 7168
    freed = whole * 7 / 8 - 2 * (whole / 61) * 7 / 8
    assert used("flow_mla:h800_dp") - used("flow_mla:h800_flow") == pytest.approx(freed, rel=1e-9)


def test_what_a_step_needs_is_counted_as_the_server_allocates_it() -> None:
    """8192 prompt tokens of 9 experts each, the shared one too; logits of 256 requests of every rank, twice."""
    from workloads.flow_mla_memory import items

    sizes = {}
    for name in ("h20_tp", "h20_flow"):
        scenario = load_scenario(f"flow_mla:{name}")
        case = scenario.case(scenario.machine_spec(), 0)
        found = [size for _, category, size in items(case, 0) if category == "activations"]
        sizes[name] = found[0], found[1]
    quantised, activated = 8192 * 7168 * (1 + 4 / 128), 2 * 8192 * 9 * 2048 // 8
    assert sizes["h20_tp"] == (2 * 7168 * 8192 * (9 + 2) + activated + quantised, 2 * 2 * 129280 * 256)
    gathered = 2 * 7168 * (8192 * (9 + 1) + 2 * 1024)  # experts write their sum over what was gathered
    assert sizes["h20_flow"] == (gathered + activated + quantised, 2 * 2 * 129280 * 256 * 8)
    assert sum(sizes["h20_flow"]) / 2**30 == pytest.approx(2.2, abs=0.02)


def test_rows_in_memory_are_rows_of_the_program() -> None:
    """Of sliced experts, in chunks of 64K tokens: as many as their products fetch in the first step, with prompts."""
    from workloads.flow_mla_memory import model_of

    scenario = load_scenario("flow_mla:qwen3_tp")
    case = scenario.case(scenario.machine_spec(), 0)
    width = case.shapes.expert_intermediate // case.ranks
    product = next(task.work for task in prepare(scenario).world.programs[0].tasks if task.name == "experts.gate_up")
    tokens = round(product.read_bytes / (2 * case.shapes.hidden))
    assert tokens > 8192
    model, ranks = model_of(case), case.ranks
    assert sliced_experts_bytes(model, tokens, ranks) == 2 * sum(product.rows) * (case.shapes.hidden + width)
    assert sliced_experts_bytes(model, 100_000, ranks) == sliced_experts_bytes(model, 65536, ranks)


def test_with_tiles_of_16_rows_the_baseline_is_near_without_a_fit_and_flow_mla_far_too_fast() -> None:
    """SGLang's tuned tiles, which count as 32 rows, and the popularity of a public table give 147 for the baseline's
    128 with nothing fitted; FlowMLA's 181 they miss by 51%: experts are bound by memory, which held SMs do not slow."""
    tiles = {"machine__kernels__sglang_2025__fused_gemm_fp8__granule": "32", "routing__skew": "0.6"}
    assert run("flow_mla:h20_tp", **tiles).metrics["throughput_tok_s_per_card"] == pytest.approx(146.6, rel=0.01)
    assert run("flow_mla:h20_flow", **tiles).metrics["throughput_tok_s_per_card"] > 1.4 * 181
