"""Kernels of SGLang of 2025, counted by hand: latent and grouped-query attention, experts."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.die.kernels import cost_of
from simulator.model.library import load_transformer
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Model, weights, with_precision
from simulator.spec.load import load_machine
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


def sliced(dtype: str = "fp8_block", tokens: int = 64) -> list[tuple[str, Any]]:
    """Two rows of every expert."""
    return STACK.experts(of(R1, dtype), EXPERTS, tokens, (2,) * EXPERTS.routed, 8)


@pytest.mark.parametrize(("dtype", "element", "family"), [("fp8_block", 1, "fp8"), ("bf16", 2, "bf16")])
def test_products_of_sliced_experts_fetch_tokens_and_copy_no_rows(dtype: str, element: int, family: str) -> None:
    kernels = dict(sliced(dtype))
    up, down = kernels["experts.gate_up"], kernels["experts.down"]
    assert "experts.sort" not in kernels
    assert {up.family, down.family} == {f"fused_gemm_{family}"}
    assert up.cached_bytes == element * 64 * 7168 + 2 * 512 * 512  # read as tokens, written as rows
    assert down.cached_bytes == element * 512 * 256 + 2 * 512 * 7168
    assert up.flops + down.flops == 2 * 512 * 3 * 7168 * 256


def test_tokens_are_quantised_once_for_all_their_sliced_experts() -> None:
    assert dict(sliced())["experts.quantise"].cached_bytes == 64 * (2 * 7168 + 7168 + 4 * 56)


def test_sliced_experts_take_no_latency_for_every_row() -> None:
    """What grows with rows is bytes and arithmetic: a hundred times the tokens, and latencies are the same."""
    for name in ("h20_node", "h800_cluster"):
        machine = load_machine(name)
        few, many = ([cost_of(work, machine.chip, machine.kernels["sglang_2025"]).latency_s
                      for _, work in STACK.experts(of(R1, "fp8_block"), EXPERTS, tokens, (tokens // 32,) * 256, 8)]
                     for tokens in (64, 6400))  # fmt: skip
        assert few == many


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
