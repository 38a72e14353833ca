"""Latent attention of DeepSeek-R1: products by their sizes, rows and totals by hand."""

from __future__ import annotations

import pytest

from simulator.die.kernels import Work
from simulator.model import mla
from simulator.spec.load import load_machine
from simulator.spec.model import load_model, shapes_of

R1 = shapes_of(load_model("deepseek_r1"))
KERNELS = mla.prefill(R1, (4096, 1024), "flash_attention_ntd")
TOKENS = 4096 + 1024


def products(kernels: mla.Kernels) -> dict[str, tuple[int, int, str]]:
    return {name: (work.k, work.n, work.dtype) for name, work in kernels if work.kind == "gemm"}


def test_the_products_of_a_layer() -> None:
    assert products(KERNELS) == {
        "attention.q_a": (7168, 1536, "int8"),
        "attention.kv_a": (7168, 512 + 64, "int8"),
        "attention.q_b": (1536, 128 * (128 + 64), "int8"),
        "attention.kv_b": (512, 128 * (128 + 128), "bf16"),
        "attention.o": (128 * 128, 7168, "int8"),
    }
    assert {work.rows for _, work in KERNELS if work.kind == "gemm"} == {(TOKENS,)}


def test_weights_read_are_the_parameters_of_the_module() -> None:
    read = sum(work.weight_bytes / (2 if work.dtype == "bf16" else 1) for _, work in KERNELS)
    assert read == R1.mla_parameters


def test_attention_is_causal_in_each_prompt_and_sees_no_other() -> None:
    flash = dict(KERNELS)["attention.flash"]
    assert flash.flops == 2 * 128 * (192 + 128) * (4096 * 4097 + 1024 * 1025) / 2
    assert flash.scores == mla.causal((4096, 1024))


def test_heads_split_over_ranks_add_up() -> None:
    whole = mla.up_projections(R1, 512, 128) + mla.attention(R1, mla.causal((512,)), 128, "flash_attention_tnd")
    part = mla.up_projections(R1, 512, 32) + mla.attention(R1, mla.causal((512,)), 32, "flash_attention_tnd")
    assert sum(work.flops for _, work in whole) == 4 * sum(work.flops for _, work in part)


@pytest.mark.parametrize("family", ["flash_attention_ntd", "flash_attention_tnd"])
def test_every_kernel_exists_on_the_machine_and_moves_bytes(family: str) -> None:
    families = load_machine("atlas_a3").kernels["cann_recipes_2025"]
    for name, work in mla.prefill(R1, (64,), family):
        assert work.family in families, name
        assert work.hbm_bytes > 0, name


def test_what_is_quantised_is_read_as_int8() -> None:
    works: dict[str, Work] = dict(KERNELS)
    for name in ("attention.q_a", "attention.kv_a", "attention.q_b", "attention.o"):
        quantise = works[f"{name}.quantise"]
        assert quantise.write_bytes == works[name].read_bytes + 4 * TOKENS  # and a scale per token
