"""Some layers stand for all: the law is the run of the whole model."""

from __future__ import annotations

import pytest

from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate

EVEN = {"routing.skew": "none"}
H200 = EVEN | {"machine": "dgx_h200"}
SPREAD = H200 | {"model": "qwen3_235b", "layout.tp": "1", "layout.dp": "8", "layout.ep": "8", "batch.requests": "64",
                 "knobs.exchange": "all_to_all"}  # fmt: skip


def run(phase: str, changes: dict[str, str]) -> Result:
    return simulate(load_scenario(f"transformer:{phase}").replace(changes))


def step_ms(result: Result) -> float:
    return result.metrics["ttft_ms" if "ttft_ms" in result.metrics else "iteration_ms"]


# --- equal to the whole -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("phase", "changes"), [
    ("decode", {"model": "llama_3_1_70b"}),
    ("prefill", {"model": "llama_3_1_70b"}),
    ("mixed", {"model": "llama_3_1_70b"}),
    ("decode", {"model": "llama_3_1_70b", "knobs.graph": "never", "machine.host.launch_eager": "30 us"}),
    ("decode", {"model": "llama_3_1_70b", "knobs.schedule": "two_batches"}),
    ("decode", {"model": "llama_3_1_70b", "batch.drafts": "2"}),
    ("decode", H200 | {"model": "qwen3_235b"}),
    ("prefill", SPREAD | {"knobs.schedule": "two_batches"}),
    ("decode", SPREAD | {"knobs.schedule": "side_by_side", "batch.spread": "0.3"}),
    ("decode", H200 | {"model": "qwen3_5_397b"}),
    ("prefill", H200 | {"model": "qwen3_5_397b"}),
], ids=str)  # fmt: skip
def test_layers_that_are_alike_take_as_long_as_all_of_them(phase: str, changes: dict[str, str]) -> None:
    whole, few = run(phase, changes), run(phase, changes | {"knobs.layers": "4"})
    assert step_ms(few) == pytest.approx(step_ms(whole), rel=1e-6)
    assert few.ledger.used_bytes == whole.ledger.used_bytes
    for name in ("throughput_tok_s", "throughput_tok_s_per_card"):
        assert few.metrics[name] == pytest.approx(whole.metrics[name], rel=1e-6)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("changes", [
    EVEN | {"model": "gpt_oss_120b"},
    {"model": "gemma_3_27b", "layout.tp": "2", "cards": "2"},
    H200 | {"model": "deepseek_r1"},
    H200 | {"model": "llama_4_scout"},
    H200 | {"model": "glm_4_5", "knobs.precision": "all=fp8", "knobs.schedule": "single_batch"},
], ids=lambda one: one["model"])  # fmt: skip
def test_windows_and_dense_layers_among_others_are_within_half_a_percent(phase: str, changes: dict[str, str]) -> None:
    whole, few = run(phase, changes), run(phase, changes | {"knobs.layers": "1"})
    assert step_ms(few) == pytest.approx(step_ms(whole), rel=0.005)


def test_without_a_timeline_nothing_is_said_of_the_whole() -> None:
    result = simulate(load_scenario("transformer:decode").replace({"knobs.layers": "4"}), record=False)
    assert not {"tpot_ms", "iteration_ms", "throughput_tok_s"} & set(result.metrics)
