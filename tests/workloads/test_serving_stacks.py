"""Models decode on machines whose kernels were fitted for one published system, in layouts that it did not have."""

from __future__ import annotations

from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate

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
    rows = next(task.work.rows for task in sliced.world.programs[0].tasks if task.name == "experts.sort")
    assert rows[-1] == 16
    assert len(rows) == 257


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
