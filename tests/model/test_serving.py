"""Kernels of a serving layer counted by hand."""

from __future__ import annotations

import pytest

from simulator.model import serving
from simulator.spec.model import load_shapes

R1 = load_shapes("deepseek_r1")


def total(kernels: list, field: str, kind: str = "gemm") -> float:
    return sum(getattr(work, field) for _, work in kernels if work.kind == kind)


@pytest.mark.parametrize(("dtype", "element"), [("fp8", 1), ("bf16", 2)])
def test_a_layer_reads_every_weight_of_attention_once(dtype: str, element: int) -> None:
    kernels = serving.projections(R1, 4, 128, dtype) + serving.output(R1, 4, 128, dtype)
    kernels += serving.prompt_attention(R1, (4,), 128, dtype)
    assert total(kernels, "weight_bytes") == element * R1.mla_parameters
    assert [name for name, _ in kernels if name.endswith("quantise")] == (
        [f"attention.{name}.quantise" for name in ("qkv_a", "q_b", "o", "kv_b")] if dtype == "fp8" else [])


def test_absorbed_products_do_the_work_of_kv_b() -> None:
    kernels = serving.decode_attention(R1, ((1, 100), (1, 50)), 128)
    assert total(kernels, "flops") == 2 * 2 * 512 * 128 * 256
    assert total(kernels, "flops", "attention") == 2 * 128 * (576 + 512) * 150
    assert total(kernels, "streamed_bytes", "attention") == 2 * 576 * 150


def test_slices_of_experts_are_as_wide_as_their_share() -> None:
    kernels = serving.experts(R1, 6, (3, 0, 2), 256, "fp8")
    assert total(kernels, "weight_bytes", "grouped_gemm") == 2 * 3 * 7168 * 256
    assert total(kernels, "flops", "grouped_gemm") == 2 * 5 * 3 * 7168 * 256


def test_rows_are_sorted_out_of_the_tokens_of_every_local_expert() -> None:
    """Experts without rows take time too."""
    work = dict(serving.experts(R1, 6, (3, 0, 2), 256, "fp8"))["experts.sort"]
    assert (work.rows, work.flops) == ((3, 0, 2), 0.0)
    assert (work.read_bytes, work.write_bytes) == (2 * 6 * 7168, 2 * 5 * 7168)


def test_quantising_reads_bf16_and_writes_fp8_with_a_scale_per_block() -> None:
    work = serving.quantise(10, 256)
    assert (work.read_bytes, work.write_bytes) == (5120, 2560 + 10 * 2 * 4)
