"""What trtllm-bench makes of a model and lengths: its worked example, its steps, and points that were measured so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.model.library import load_transformer
from simulator.model.transformer import Model, with_precision
from simulator.serving.measured import measured
from simulator.serving.trtllm_bench import layout_of, limits

GIB = 2**30
POINT: dict[str, Any] = {
    "id": "a", "source_kind": "trtllm_doc", "family": "llama-8b", "quantisation": "fp8", "gpu_key": "H100",
    "fw_key": "trtllm", "layout": {"tp": 1, "pp": 1, "ep": None, "attention_dp": 1}, "isl": 128, "osl": 2048,
    "request_rate": "inf (all queued)",
}  # fmt: skip


def small(dtype: str = "fp8") -> Model:
    kv = {"bf16": "bf16"}.get(dtype, "fp8")
    return with_precision(load_transformer("llama_3_1_8b"), {"all": dtype, "kv": kv})


def asked(*of: Any) -> tuple[int, int]:
    found = limits(*of)
    return int(found["scheduling.max_num_seqs"]), int(found["scheduling.max_num_batched_tokens"])


def test_the_worked_example() -> None:
    assert asked(small(), 80 * GIB, 1, 1, 128, 2048) == (640, 2048)


def test_a_prompt_fits_in_a_step_beside_all_that_decode() -> None:
    most, tokens = asked(small(), 80 * GIB, 1, 1, 20000, 2000)
    assert (most, tokens) == (64, 20064)


def test_more_memory_and_smaller_weights_let_in_more() -> None:
    most = [asked(small(dtype), memory * GIB, 1, 1, 1000, 1000)[0]
            for dtype, memory in (("bf16", 80), ("fp8", 80), ("nvfp4", 80), ("nvfp4", 180))]  # fmt: skip
    assert most == sorted(most)
    assert most[0] < most[-1]


def test_a_stage_of_a_pipeline_has_its_share() -> None:
    alone, staged = asked(small(), 80 * GIB, 1, 1, 1000, 1000), asked(small(), 80 * GIB, 1, 2, 1000, 1000)
    assert staged[0] == pytest.approx(alone[0], rel=0.2), "twice the memory, half of the requests in a stage"


def test_every_rank_has_a_head() -> None:
    narrow = replace(small(), layers=tuple(
        replace(one, attention=replace(one.attention, kv_heads=1)) for one in small().layers))  # type: ignore[type-var]
    lengths = 30000, 30000  # few requests: no limit hides what differs
    assert asked(narrow, 80 * GIB, 8, 1, *lengths) == asked(small(), 80 * GIB, 8, 1, *lengths)
    assert asked(narrow, 80 * GIB, 1, 1, *lengths) != asked(small(), 80 * GIB, 1, 1, *lengths)


def test_a_point_of_its_tables_goes_to_the_engine_without_a_server_and_all_at_once() -> None:
    known = measured(POINT)
    engines = known.service.engines
    assert (known.concurrency, len(known.requests)) == (0, 3000)
    assert not known.requests.arrival_s.any()
    assert known.service.front.request_ms == known.service.front.input_token_us == 0.0
    assert engines.scheduling.max_num_seqs == 640
    assert engines.cache.free_gpu_memory_fraction == 0.95
    assert engines.capture[-4:] == (512, 1024, 2048, 4096)
    assert "kv=fp8" in engines.step.knobs.precision  # type: ignore[union-attr]


@pytest.mark.parametrize(("changes", "dp"), [
    ({}, 8), ({"source_kind": "inferencex"}, 1), ({"family": "llama-70b"}, 1),
    ({"layout": {"tp": 1, "ep": 4, "pp": 1, "attention_dp": 4}}, 4),
], ids=str)  # fmt: skip
def test_attention_is_data_parallel_in_tables_of_models_with_experts(changes: dict[str, Any], dp: int) -> None:
    point = POINT | {"family": "qwen3-235b", "layout": {"tp": 8, "pp": 1, "ep": None, "attention_dp": 1}} | changes
    layout = layout_of(point)
    assert layout["attention_dp"] == dp
    assert layout["tp"] == (1 if dp > 1 else 8)


def test_what_a_point_says_of_itself_goes_before() -> None:
    engines = measured(POINT | {"settings": {"scheduling.max_num_seqs": 128}}).service.engines
    assert engines.scheduling.max_num_seqs == 128
    assert engines.scheduling.max_num_batched_tokens == 2048


def test_a_cache_of_a_model_in_16_bits_is_in_16_bits() -> None:
    engines = measured(POINT | {"quantisation": "bf16"}).service.engines
    assert "kv=fp8" not in engines.step.knobs.precision  # type: ignore[union-attr]
