"""What library kernels compute and move."""

from __future__ import annotations

import pytest

from simulator.model import library_kernels as lib


@pytest.mark.parametrize(("quantisation", "bits"), [
    ("bf16", 16), ("fp8", 8), ("int8", 8), ("int4", 4 + 16 / 128), ("mxfp4", 4 + 8 / 32), ("nvfp4", 4 + 8 / 16)])
def test_weights_have_their_bits_and_scales(quantisation: str, bits: float) -> None:
    work = lib.linear(16, 4096, 8192, quantisation)
    assert work.family == f"gemm_{quantisation}"
    assert work.weight_bytes == 4096 * 8192 * bits / 8
    assert work.flops == 2.0 * 16 * 4096 * 8192
    assert work.write_bytes == 2.0 * 16 * 4096  # BF16 out


def test_the_chain_of_routed_experts() -> None:
    sort, up, activation, down, total = lib.routed(4, (3, 0, 5), 4096, 1536, "fp8_block", weights="layer 7")
    assert [work.family for work in (sort, up, activation, down, total)] == [
        "experts_sort_fp8_block", "grouped_gemm_fp8_block", "experts_sum_fp8_block", "grouped_gemm_fp8_block",
        "experts_sum_fp8_block"]
    assert (up.n, up.k, down.n, down.k) == (2 * 1536, 4096, 4096, 1536)
    assert (up.rows, sort.rows) == ((3, 5), (3, 0, 5))  # an expert without rows is sorted for, but not computed
    assert up.weight_bytes + down.weight_bytes == 2 * 3 * 4096 * 1536
    assert up.flops + down.flops == 2.0 * 8 * 3 * 4096 * 1536
    assert (sort.read_bytes, total.write_bytes) == (2.0 * 4 * 4096, 2.0 * 4 * 4096)
    assert activation.read_bytes == 2.0 * 8 * 2 * 1536
    assert (up.weights, down.weights) == ("layer 7.up", "layer 7.down")


def test_experts_without_a_gate_have_one_product_up() -> None:
    _, up, activation, _, _ = lib.routed(4, (3, 5), 4096, 1536, gated=False)
    assert up.n == 1536
    assert activation.read_bytes == 2.0 * 8 * 1536


def test_rows_of_other_ranks_are_gone_through() -> None:
    own, all_tokens = (lib.routed(4, (3, 5), 4096, 1536, copies=copies)[-1].rows for copies in (None, 32))
    assert (own, all_tokens) == ((0,), (24,))


def test_prompts_read_their_prefix_and_write_the_cache() -> None:
    plain, prefix = (lib.context_attention(((512, before),), 32, 8, 128) for before in (0, 1024))
    kv = 2.0 * 2 * 8 * 128  # bytes of a token's keys and values
    assert plain.read_bytes == 512 * (2.0 * 32 * 128 + kv)
    assert plain.write_bytes == 512 * (2.0 * 32 * 128 + kv)
    assert (plain.streamed_bytes, prefix.streamed_bytes) == (512 * kv, 1536 * kv)
    assert prefix.flops - plain.flops == 4.0 * 32 * 128 * 512 * 1024


def test_an_fp8_cache_is_a_family_of_half_the_bytes() -> None:
    for make in (lib.context_attention, lib.generation_attention):
        full, half = (make(((1, 4096),), 32, 8, 128, cache=cache) for cache in ("bf16", "fp8"))
        assert half.family == f"{full.family}_fp8"
        assert 2 * half.streamed_bytes == full.streamed_bytes
        assert half.flops == full.flops


def test_a_window_is_all_that_decode_reads() -> None:
    work = lib.generation_attention(((1, 4096), (1, 64)), 64, 8, 64, window=128)
    assert work.streamed_bytes == 2.0 * 2 * 8 * 64 * (128 + 64)
    assert work.flops == 4.0 * 64 * 64 * (128 + 64)


def test_mla_shares_one_latent_key() -> None:
    decode = lib.generation_mla(((1, 4096),) * 2, 128)
    assert decode.streamed_bytes == 2.0 * 2 * 4096 * 576
    assert decode.flops == 2.0 * 128 * (576 + 512) * 2 * 4096
    prompt = lib.context_mla(((512, 0),), 16)
    assert prompt.flops == 2.0 * 16 * (192 + 128) * 512 * 513 / 2
    assert lib.absorbed(4, 128, 512, 128).weight_bytes == 2.0 * 128 * 512 * 128
