"""Steps that hosts launch kernel by kernel against what is published of them."""

from __future__ import annotations

import pytest

from simulator.program.task import Program
from simulator.replay.tape import launch_s
from simulator.spec.load import load_machine
from simulator.stack import trtllm
from simulator.study.simulate import Result, simulate
from simulator.study.step import StepWords, step_of


def prefill_ms(tokens: int, *words: str) -> float:
    """How long it takes."""
    return prefill(tokens, *words).makespan_ps / 1e9


def prefill(tokens: int, model: str = "deepseek_r1", machine: str = "dgx_h200", stack: str = "sglang",
            mesh: str = "tp=8") -> Result:
    """One prompt."""
    prompt = {"batch.requests": "1", "batch.context": str(tokens)}
    words = StepWords(model, machine, stack, mesh, "prefill", prompt)
    return simulate(step_of(words))


def test_a_short_prompt_takes_what_the_host_takes_to_launch_it() -> None:
    """sgl-project/sglang, pull request 12160: 82.6 ms for one token without graphs (fitted), and for up to 100."""
    assert prefill_ms(1) == pytest.approx(82.6, rel=0.03)
    assert prefill_ms(96) == pytest.approx(prefill_ms(1), rel=0.03)


def test_compiled_pieces_of_vllm_take_half_of_what_one_piece_takes() -> None:
    """vllm-project/vllm, pull requests 20059 and 20050: Qwen2.5-7B on an A100, 56 ms in one piece (fitted)."""
    assert prefill_ms(1, "qwen2_5_7b", "dgx_a100", "vllm", "tp=1") == pytest.approx(28, rel=0.03)


def test_qwen3_next_is_bound_by_the_host_where_its_batch_is_not_captured() -> None:
    """vllm-project/vllm, issue 27222: 13,900 tokens/s of 1,024 requests on 4 B200 make steps of 74 ms, 49 with graphs;
    with all kernels hidden under it the host would take 74 ms, with none 25."""
    one = prefill(1, "qwen3_next_80b", "dgx_b200", "vllm", "tp=4,ep=4")
    assert 25 < one.makespan_ps / 1e9 < 74
    assert one.metrics["host_bound_ms"] > 0.5 * one.metrics["latency_ms"]


def test_tensorrt_llm_dispatches_a_kernel_every_35_us() -> None:
    """NVIDIA/TensorRT-LLM, pull request 12653, on 8 Blackwell GPUs (fitted)."""
    program = Program([], operators=trtllm.OPERATORS)
    assert launch_s(program, load_machine("dgx_b200")) == pytest.approx(35e-6, rel=0.02)
