"""Grouped-query attention counted by hand, and what of it a rank has that splits its heads with others."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.model import gqa, serving
from simulator.spec.model import load_shapes

QWEN, GLM, R1 = load_shapes("qwen3_235b"), load_shapes("glm_4_5"), load_shapes("deepseek_r1")


def total(kernels: list, field: str, kind: str = "gemm") -> float:
    return sum(getattr(work, field) for _, work in kernels if work.kind == kind)


def test_parameters_are_those_that_the_names_say() -> None:
    assert QWEN.parameters == pytest.approx(235e9, rel=0.002)
    assert GLM.parameters == pytest.approx(355e9, rel=0.01)
    assert QWEN.attention_parameters == 4096 * (64 + 2 * 4) * 128 + 64 * 128 * 4096


def test_keys_and_values_are_cached_once_until_ranks_outnumber_heads() -> None:
    assert [QWEN.kv_values_of(ranks) for ranks in (1, 2, 4, 8, 16)] == [1024, 512, 256, 256, 256]
    assert [GLM.kv_heads_of(ranks) for ranks in (8, 16)] == [1, 1]
    assert [R1.kv_values_of(ranks) for ranks in (1, 8)] == [576, 576]  # a latent is everybody's


@pytest.mark.parametrize(("ranks", "heads"), [(1, 64), (4, 16), (8, 8)])
def test_a_layer_reads_its_share_of_the_weights_once(ranks: int, heads: int) -> None:
    kernels = gqa.projections(QWEN, 4, heads, "bf16") + serving.output(QWEN, 4, heads, "bf16")
    kv = max(4 // ranks, 1) * 2 * 128
    assert total(kernels, "weight_bytes") == 2 * 4096 * (2 * heads * 128 + kv)


def test_decode_reads_every_cached_key_and_value_once() -> None:
    (_, work), = gqa.decode_attention(QWEN, ((1, 100), (1, 50)), 8)
    assert work.streamed_bytes == 2 * 150 * 256
    assert work.flops == 2 * 8 * (128 + 128) * 150
    (_, whole), = gqa.decode_attention(QWEN, ((1, 100), (1, 50)), 64)
    assert whole.streamed_bytes == 4 * work.streamed_bytes


def test_a_group_of_heads_reads_its_keys_once_in_prompts_too() -> None:
    (_, work), = gqa.prompt_attention(QWEN, (512,), 64, "bf16")
    assert work.read_bytes == 2 * 512 * 128 * (64 + 2 * 4)
    assert work.flops == pytest.approx(2 * 64 * 256 * 512 * 512 / 2, rel=0.01)


def test_a_program_for_latent_attention_refuses_another() -> None:
    with pytest.raises(InputError, match="qwen3_235b has grouped-query attention"):
        _ = QWEN.mla_parameters
