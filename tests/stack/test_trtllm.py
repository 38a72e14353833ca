"""What TensorRT-LLM sends to experts where attention is data parallel."""

from __future__ import annotations

import pytest

from simulator.model.library import load_transformer
from simulator.model.transformer import with_precision
from simulator.stack.stacks import stack_of
from simulator.study.simulate import simulate
from simulator.study.step import StepWords, step_of

HOPPER, BLACKWELL = ("bf16", "fp8"), ("bf16", "fp8", "nvfp4")


@pytest.mark.parametrize(("dtype", "chip", "sent"), [
    ("nvfp4", BLACKWELL, 0.5 + 1 / 16), ("fp8_block", BLACKWELL, 1 + 4 / 128), ("fp8_block", HOPPER, 2.0),
    ("fp8", HOPPER, 1.0), ("bf16", BLACKWELL, 2.0),
])  # fmt: skip
def test_tokens_are_sent_as_experts_take_them(dtype: str, chip: tuple[str, ...], sent: float) -> None:
    model = with_precision(load_transformer("qwen3_30b_a3b"), {"all": dtype})
    stack = stack_of("trtllm", model, "decode", chip)
    assert stack.wire_bytes == sent
    assert stack.gathered_bytes == 2.0, "nothing quantises what dense blocks gather"


@pytest.mark.parametrize(("kernels", "dtype", "sent"), [("trtllm", "nvfp4", 0.5 + 1 / 16), ("vllm", "nvfp4", 2.0)])
def test_one_gather_of_a_layer_brings_tokens_with_scales_and_choices(kernels: str, dtype: str, sent: float) -> None:
    settings = {"batch.requests": "64", "knobs.precision": f"all={dtype}", "model.shapes.layers": "1",
                "knobs.exchange": "all_gather"}  # fmt: skip
    words = StepWords("qwen3_30b_a3b", "dgx_b200", kernels, "dp=4,ep=4", "decode", settings)
    columns = simulate(step_of(words)).columns
    gathers = columns["kind"] == "all_gather"
    assert list(columns["name"][gathers]) == ["dispatch.tokens"] * 4, "one of each rank"
    tokens, others, hidden, choices = 16, 3, 2048, 8 * 8
    assert set(columns["wire_bytes"][gathers]) == {tokens * others * (hidden * sent + choices)}
