"""A decode layer with absorbed MLA: what a prefetch brings is what its kernels read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.die.kernels import cost_of
from simulator.model import decode
from simulator.spec.load import load_machine
from simulator.spec.model import load_model, shapes_of

R1 = shapes_of(load_model("deepseek_r1"))
CONTEXTS = ((2, 3072),) * 72
CACHE_BYTES = 72 * 3072 * 576 * 2
A2 = load_machine("atlas_a2")


def layer(fused: bool, cache_bytes: float = 0.0) -> decode.Kernels:
    kernels = decode.prolog(R1, 144, "layer", fused)
    kernels += decode.attention(R1, CONTEXTS, "mla_attention_mtp", "layer", cache_bytes)
    return kernels + decode.output_projection(R1, 144, weights="layer")


def weights_of(kernels: decode.Kernels) -> list[tuple[str, float]]:
    """The block that every kernel looks for in L2, and its bytes."""
    costs = [(work, cost_of(work, A2.chip, A2.kernels["cann_2025"])) for _, work in kernels]
    return [(work.weights, cost.weight_bytes) for work, cost in costs if work.weights or cost.weight_bytes]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("cache_bytes", [0.0, 50e6, 1e9])
def test_blocks_are_what_the_kernels_look_for_in_their_order(fused: bool, cache_bytes: float) -> None:
    looked_for = weights_of(layer(fused, cache_bytes))
    blocks = decode.mla_blocks(R1, CONTEXTS, fused, cache_bytes)
    assert looked_for == [(f"layer.{name}", size) for name, size in blocks]


def test_bytes_of_the_blocks() -> None:
    """All weights of MLA, INT8 but for the absorbed up-projections in BF16: 69.7, 16.8 and 117.4 MB."""
    blocks = dict(decode.mla_blocks(R1, CONTEXTS))
    assert [f"{name} {size / 1e6:.1f}" for name, size in blocks.items()] == ["prolog 69.7", "absorb_v 16.8", "o 117.4"]
    assert sum(blocks.values()) == R1.mla_parameters + 2 * R1.heads * R1.nope_dim * R1.kv_lora
    assert sum(blocks.values()) == sum(size for _, size in decode.mla_blocks(R1, CONTEXTS, fused=False))


def test_a_prefetched_part_of_the_cache_is_still_read_once() -> None:
    core, part, all_of_it = (dict(layer(True, size))["attention.core"] for size in (0.0, 50e6, 1e9))
    assert core.hbm_bytes == part.hbm_bytes == all_of_it.hbm_bytes == CACHE_BYTES
    assert (part.weight_bytes, all_of_it.weight_bytes) == (50e6, CACHE_BYTES)
    assert replace(part, weights="", weight_bytes=0.0, streamed_bytes=CACHE_BYTES) == core


@pytest.mark.parametrize("queries", [1, 2, 3])
@pytest.mark.parametrize("name", ["atlas_a2", "cloudmatrix384"])
def test_no_query_token_is_padded_by_the_attention_kernel(name: str, queries: int) -> None:
    """Its published share of peak is that of useful operations, and 128 heads fill a tile."""
    machine = load_machine(name)
    families = machine.kernels["cann_2025" if name == "atlas_a2" else "cann_decode_2025"]
    for family, share in (("mla_attention", 0.55), ("mla_attention_mtp", 0.6), ("mla_attention_amla", 0.868)):
        work = decode.attention(R1, ((queries, 4096),) * 96, family)[0][1]
        cost = cost_of(work, machine.chip, families)
        assert cost.compute_s(24) == pytest.approx(work.flops / (share * machine.chip.peak["cube"]["bf16"].si))


def test_all_weights_of_a_layer_have_names_so_that_a_second_micro_batch_finds_them() -> None:
    kernels = layer(True) + decode.gate(R1, 48, "layer") + decode.experts(R1, (432,), "layer")
    kernels += decode.ffn(R1, "dense", 48, 9216, "layer")
    names = [name for name, _ in weights_of(kernels)]
    assert all(names)
    assert len(set(names)) == len(names) == 8
