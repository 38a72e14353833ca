"""Kernels of SGLang of 2025, counted by hand: latent and grouped-query attention, experts."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.model.library import load_transformer
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Model, weights, with_precision
from simulator.stack.sglang_2025 import STACK, captured_bytes, graph_size, prompt_step_bytes, sliced_experts_bytes
from simulator.stack.stacks import stack_of

R1, QWEN = load_transformer("deepseek_r1"), load_transformer("qwen3_235b")
MLA, GQA, EXPERTS = R1.layers[0].attention, QWEN.layers[0].attention, R1.layers[-1].feed_forward
DECODE, PROMPT = MicroBatch(decodes=((1, 100), (1, 50))), MicroBatch(prompts=((512, 0),))


def total(kernels: list, field: str, kind: str = "gemm") -> float:
    return sum(getattr(work, field) for _, work in kernels if work.kind == kind)


def of(model: Model, dtype: str) -> Model:
    return with_precision(model, {"all": dtype, "router": "bf16", "kv": "bf16"})


@pytest.mark.parametrize(("dtype", "element"), [("fp8_block", 1), ("bf16", 2)])
def test_a_layer_reads_every_weight_of_attention_once(dtype: str, element: int) -> None:
    model, prompt = of(R1, dtype), MicroBatch(prompts=((4, 0),))
    kernels = STACK.inputs(model, MLA, 4, 1, False) + STACK.attend(model, MLA, prompt, 1, 1)
    kernels += STACK.output(model, MLA, 4, 1)
    matrices = sum(one.elements for one in weights(MLA, 7168) if one.inputs > 1)
    assert total(kernels, "weight_bytes") == element * matrices
    assert [name for name, _ in kernels if name.endswith("quantise")] == (
        [f"attention.{name}.quantise" for name in ("qkv_a", "q_b", "kv_b", "o")] if element == 1 else [])


def test_absorbed_products_do_the_work_of_kv_b() -> None:
    kernels = STACK.attend(of(R1, "bf16"), MLA, DECODE, 1, 1)
    absorbed = [(name, work) for name, work in kernels if "absorb" in name]
    assert total(absorbed, "flops") == 2 * 2 * 512 * 128 * 256
    assert total(kernels, "flops", "attention") == 2 * 128 * (576 + 512) * 150
    assert total(kernels, "streamed_bytes", "attention") == 2 * 576 * 150


@pytest.mark.parametrize(("ranks", "heads"), [(1, 64), (4, 16), (8, 8)])
def test_a_rank_reads_its_share_of_grouped_query_weights_once(ranks: int, heads: int) -> None:
    model = of(QWEN, "bf16")
    kernels = STACK.inputs(model, GQA, 2, ranks, False) + STACK.output(model, GQA, 2, ranks)
    assert total(kernels, "weight_bytes") == 2 * 4096 * (2 * heads * 128 + max(4 // ranks, 1) * 2 * 128)


def test_decode_reads_every_cached_key_and_value_once() -> None:
    split, whole = (dict(STACK.attend(of(QWEN, "bf16"), GQA, DECODE, tp, 1))["attention.core"] for tp in (8, 1))
    assert split.streamed_bytes == 2 * 150 * 256
    assert split.flops == 2 * 8 * (128 + 128) * 150
    assert whole.streamed_bytes == 4 * split.streamed_bytes


def test_a_group_of_heads_reads_its_keys_once_in_prompts_too() -> None:
    work = dict(STACK.attend(of(QWEN, "bf16"), GQA, PROMPT, 1, 1))["attention.flash"]
    assert work.hbm_bytes + work.cached_bytes >= 2 * 512 * 128 * (64 + 2 * 4)
    assert work.flops == pytest.approx(2 * 64 * 256 * 512 * 512 / 2, rel=0.01)


def experts(rows: tuple[int, ...]) -> list[tuple[str, Any]]:
    return STACK.experts(of(R1, "fp8_block"), EXPERTS, 6, rows, 8)


def test_slices_of_experts_are_as_wide_as_their_share() -> None:
    kernels = experts((3, 0, 2))
    assert total(kernels, "weight_bytes", "grouped_gemm") == 2 * 3 * 7168 * 256
    assert total(kernels, "flops", "grouped_gemm") == 2 * 5 * 3 * 7168 * 256


def test_rows_are_sorted_out_of_the_tokens_of_every_local_expert() -> None:
    """Experts without rows take time too."""
    work = dict(experts((3, 0, 2)))["experts.sort"]
    assert (work.rows, work.flops, work.cached_bytes) == ((3, 0, 2), 0.0, 2 * (6 + 5) * 7168)


def test_quantising_reads_bf16_and_writes_fp8_with_a_scale_per_block() -> None:
    work = dict(experts((3, 0, 2)))["experts.down.quantise"]
    assert work.cached_bytes == 5 * (2 * 256 + 256 + 2 * 4)


def test_the_most_specific_name_of_a_stack_wins() -> None:
    assert stack_of("sglang_2025", R1, "decode") is STACK
    assert stack_of("sglang_0_5", R1, "decode").name == "sglang"


@pytest.mark.parametrize(("tokens", "size"), [(1, 1), (3, 4), (5, 8), (17, 24), (29, 30), (31, 31)])
def test_decode_is_padded_to_the_next_graph_that_there_is(tokens: int, size: int) -> None:
    assert graph_size(tokens, 30) == size


def test_a_step_needs_more_where_own_tokens_are_gathered() -> None:
    own, gathered = (prompt_step_bytes(of(R1, "bf16"), 1024, groups, 8, 8) for groups in (1, 8))
    assert own == 2 * 7168 * 1024 * (1 + 1 + 1 + 1)  # in, residual, sum, and a row of local experts
    assert gathered == 2 * 7168 * 1024 * (8 * (1 + 1 + 1) + 2)
    assert captured_bytes(R1, 256, 8) == 8 * captured_bytes(R1, 256, 1)


def test_quantised_experts_need_room_for_their_input() -> None:
    plain, quantised = (sliced_experts_bytes(of(R1, dtype), 100, 8) for dtype in ("bf16", "fp8_block"))
    assert quantised - plain == 100 * 7168 * (1 + 4 / 128)
