"""Kernels from shapes: operations and bytes counted by hand."""

from __future__ import annotations

import pytest

from simulator.die.kernels import Work
from simulator.model import ops
from simulator.spec.load import load_machine

FAMILIES = set(load_machine("atlas_a3").kernels["cann_recipes_2025"])


def test_a_product() -> None:
    work = ops.gemm(3, 5, 7, weights="w")
    assert (work.kind, work.family, work.weights) == ("gemm", "gemm_int8", "w")
    assert work.flops == 2 * 3 * 5 * 7
    assert (work.read_bytes, work.weight_bytes, work.write_bytes) == (3 * 7, 5 * 7, 3 * 5 * 2)
    assert work.hbm_bytes == 21 + 35 + 30


@pytest.mark.parametrize(("dtype", "out", "family", "operand", "result"), [
    ("int8", "int32", "gemm_int8_int32", 1, 4), ("bf16", "bf16", "gemm_bf16", 2, 2),
    ("fp32", "fp32", "gemm_fp32", 4, 4)])
def test_data_types_size_operands_and_results(
    dtype: str, out: str, family: str, operand: int, result: int
) -> None:
    work = ops.gemm(3, 5, 7, dtype, out)
    assert work.family == family
    assert (work.read_bytes, work.weight_bytes, work.write_bytes) == (21 * operand, 35 * operand, 15 * result)
    assert family in FAMILIES


def test_groups_without_rows_cost_nothing() -> None:
    work = ops.grouped_gemm((2, 0, 4), 5, 7)
    assert work.rows == (2, 4)
    assert work.flops == 2 * 6 * 5 * 7
    assert work.weight_bytes == 2 * 5 * 7
    assert ops.grouped_gemm((0, 0), 5, 7).hbm_bytes == 0
    assert ops.grouped_gemm((8,), 5, 7).kind == "gemm"


def test_attention_counts_the_causal_half() -> None:
    full = ops.flash_attention(((4, 4, False),), 2, 6, 3)
    causal = ops.flash_attention(((4, 4, True),), 2, 6, 3)
    assert full.flops == 2 * 2 * (6 + 3) * 16
    assert causal.flops == 2 * 2 * (6 + 3) * 10
    assert full.hbm_bytes == causal.hbm_bytes == 2 * (4 * 6 + 4 * (6 + 3) + 4 * 3) * 2


def test_attention_of_several_sequences_adds_up() -> None:
    one, other = ((8, 8, True),), ((2, 10, True),)
    both = ops.flash_attention(one + other, 2, 6, 3)
    alone = [ops.flash_attention(sequence, 2, 6, 3) for sequence in (one, other)]
    assert both.flops == sum(work.flops for work in alone)
    assert both.hbm_bytes == sum(work.hbm_bytes for work in alone)


@pytest.mark.parametrize(("work", "read", "written"), [
    (ops.add_rms_norm(3, 10), 2 * 3 * 10 * 2, 2 * 3 * 10 * 2),
    (ops.rms_norm(3, 10), 60, 60),
    (ops.quantise(3, 10), 60, 3 * (10 + 4)),
    (ops.copy(30), 60, 60),
    (ops.copy(30, 4.0), 120, 120),
    (ops.swiglu_quantise(3, 10), 3 * 20 * 4, 3 * (10 + 4)),
])
def test_passes_over_memory(work: Work, read: float, written: float) -> None:
    assert (work.read_bytes, work.write_bytes) == (read, written)
    assert (work.family, work.kind, work.flops) == ("vector", "vector", 0)
