"""Models decode on machines whose kernels were fitted for one published system, in layouts that it did not have."""

from __future__ import annotations

from simulator.die.kernels import Work
from simulator.study.library import load_scenario
from simulator.study.scenario import Scenario
from simulator.study.simulate import Result, prepare, simulate
from simulator.study.step import StepWords, step_of

SGLANG = {"kernels": "sglang_2025", "model.shapes.layers": "8"}
H20 = {"machine": "h20_node", "model": "deepseek_r1", "layout.tp": "8", "batch.requests": "16"}
H800 = {"machine": "h800_cluster", "model": "qwen3_235b", "layout.tp": "8", "batch.requests": "16"}
SHARED_OUT = {"layout.tp": "1", "layout.dp": "8", "layout.ep": "8", "knobs.exchange": "all_to_all"}


def run(*changes: dict[str, str]) -> Result:
    merged = {key: text for one in changes for key, text in one.items()}
    return simulate(load_scenario("transformer:decode").replace(SGLANG | merged))


def names(result: Result) -> set[str]:
    return set(result.columns["name"].tolist())


def test_the_shared_expert_is_one_more_choice_where_experts_are_sliced() -> None:
    sliced, whole = run(H20), run(H20, SHARED_OUT)
    assert "shared.gate_up" not in names(sliced)
    assert {"shared.gate_up", "shared.add"} <= names(whole)
    rows = next(task.work.rows for task in sliced.world.programs[0].tasks if task.name == "experts.gate_up")
    assert rows[-1] == 16
    assert sum(rows) == 16 * (8 + 1)


def test_both_machines_decode_both_kinds_of_attention() -> None:
    for changes in (H20, H800, {**H800, **SHARED_OUT}):
        assert run(changes).metrics["tpot_ms"] > 0
    core = {task.work.family for task in run(H800).world.programs[0].tasks if task.name == "attention.core"}
    assert core == {"gqa_decode"}


def test_two_batches_hide_communication_that_one_shows() -> None:
    many = {**H800, **SHARED_OUT, "batch.requests": "512"}
    one, two = run(many), run(many, {"knobs.schedule": "two_batches"})
    assert two.metrics["hidden_comm_ms"] > one.metrics["hidden_comm_ms"]
    assert two.metrics["exposed_comm_ms"] < one.metrics["exposed_comm_ms"]


# --- what a stack does of itself --------------------------------------------------------------------------------------


def step(model: str, machine: str, stack: str, **settings: str) -> Scenario:
    """A decode step over eight GPUs, of eight layers."""
    named = {key.replace("__", "."): text for key, text in settings.items()}
    return step_of(StepWords(model, machine, stack, "tp=8", "decode", {"knobs.layers": "4"} | named))


def beside(scenario: Scenario) -> bool:
    """Whether the shared expert has a stream of its own."""
    return any(task.stream == "shared" for task in prepare(scenario).world.programs[0].tasks)


def test_the_shared_expert_runs_beside_the_routed_ones_where_graphs_are_small() -> None:
    assert beside(step("deepseek_r1", "dgx_b200", "sglang", batch__requests="64"))
    assert not beside(step("deepseek_r1", "dgx_b200", "sglang", batch__requests="1025", batch__context="256"))
    assert not beside(step("deepseek_r1", "dgx_b200", "sglang", knobs__graph="never"))
    assert not beside(step("deepseek_r1", "dgx_b200", "sglang", knobs__schedule="one_stream"))
    assert not beside(step("qwen3_235b", "dgx_b200", "sglang")), "it has none"


def test_sglang_fuses_the_shared_expert_before_blackwell() -> None:
    fused = names(simulate(step("deepseek_r1", "dgx_h200", "sglang")))
    assert "shared.gate_up" not in fused
    assert "shared.gate_up" in names(simulate(step("deepseek_r1", "dgx_h200", "vllm")))


def test_a_norm_is_part_of_its_all_reduce_or_follows_it() -> None:
    """One kernel less for each of two AllReduces of a layer; not on chips before FP8."""
    fused, apart = (simulate(step("llama_3_1_70b", "dgx_h100", "vllm", knobs__norm_in_all_reduce=text))
                    for text in ("true", "false"))
    assert names(apart) - names(fused)
    assert apart.makespan_ps > fused.makespan_ps
    assert names(simulate(step("llama_3_1_70b", "dgx_h100", "vllm"))) == names(fused)
    assert names(simulate(step("llama_3_1_70b", "dgx_a100", "vllm"))) == names(apart)


def test_products_of_quantised_inputs_are_faster_than_with_the_kernel_that_quantises() -> None:
    """vLLM: all but attention's output projection, whose input attention writes in BF16."""
    programs = prepare(step("llama_3_1_70b", "dgx_h100", "vllm", knobs__precision="all=fp8")).world.programs
    families = {task.name: task.work.family for task in programs[0].tasks if isinstance(task.work, Work)}
    assert families["attention.o"] == "gemm_fp8"
    assert families["attention.qkv"] == families["dense.down"] == "gemm_fp8_scaled"
