"""Decode on Ascend: what a prefetch brings is what its kernels read, and every module has kernels of its precision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.die.kernels import Work, cost_of
from simulator.errors import InputError
from simulator.model.library import transformer_of
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Dense, Experts, Model, weights, with_precision
from simulator.parallel.prefetch import blocks
from simulator.spec.load import load_machine
from simulator.spec.model import load_model
from simulator.stack.cann_decode import CannDecode, decoding

R1 = with_precision(transformer_of(load_model("deepseek_r1")), {"all": "int8"})
MLA = R1.layers[0].attention
REQUESTS = MicroBatch(decodes=((2, 3072),) * 72)
CACHE_BYTES = 72 * 3072 * 576 * 2
A2 = load_machine("atlas_a2")

Kernels = list[tuple[str, Work]]


def attention(stack: CannDecode, model: Model = R1, batch: MicroBatch = REQUESTS) -> Kernels:
    mla = model.layers[0].attention
    return [*stack.inputs(model, mla, batch.tokens, 1, False), *stack.attend(model, mla, batch, 1, 1),
            *stack.output(model, mla, batch.tokens, 1)]


def weights_of(kernels: Kernels) -> list[tuple[str, float]]:
    """The block that every kernel looks for in L2, and its bytes."""
    costs = [(work, cost_of(work, A2.chip, A2.kernels["cann_2025"])) for _, work in kernels]
    return [(work.weights, cost.weight_bytes) for work, cost in costs if work.weights or cost.weight_bytes]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("cache_bytes", [0.0, 50e6, 1e9])
def test_blocks_are_what_the_kernels_look_for_in_their_order(fused: bool, cache_bytes: float) -> None:
    kernels = attention(CannDecode(fused_prolog=fused, cached_bytes=cache_bytes))
    assert weights_of(kernels) == list(blocks(kernels))


def test_bytes_of_the_blocks() -> None:
    """All weights of MLA, INT8 but for the absorbed up-projections in BF16: 69.7, 16.8 and 117.4 MB."""
    found = dict(blocks(attention(CannDecode())))
    assert [f"{name} {size / 1e6:.1f}" for name, size in found.items()] == ["prolog 69.7", "absorb_v 16.8", "o 117.4"]
    matrices = [one for one in weights(MLA, R1.hidden) if one.inputs > 1]
    stored = sum(one.elements * (2 if one.name == "attention.kv_b" else 1) for one in matrices)
    assert sum(found.values()) == stored
    assert sum(found.values()) == sum(size for _, size in blocks(attention(CannDecode(fused_prolog=False))))


def test_a_prefetched_part_of_the_cache_is_still_read_once() -> None:
    core, part, all_of_it = (dict(attention(CannDecode(cached_bytes=size)))["attention.core"]
                             for size in (0.0, 50e6, 1e9))  # fmt: skip
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
        batch = MicroBatch(decodes=((queries, 4096),) * 96)
        work = CannDecode(attention=family).attend(R1, MLA, batch, 1, 1)[0][1]
        cost = cost_of(work, machine.chip, families)
        assert cost.compute_s(24) == pytest.approx(work.flops / (share * machine.chip.peak["cube"]["bf16"].si))


def ffns(stack: CannDecode, model: Model) -> Kernels:
    found: Kernels = []
    for layer in (model.layers[0], model.layers[-1]):
        ffn = layer.feed_forward
        if isinstance(ffn, Dense):
            found += stack.dense(model, ffn, 48, 1, True)
        else:
            found += [*stack.route(model, ffn, 48), *stack.experts(model, ffn, 0, (432,), 1)]
    return found


def test_all_weights_of_a_layer_have_names_so_that_a_second_micro_batch_finds_them() -> None:
    names = [name for name, _ in weights_of(attention(CannDecode()) + ffns(CannDecode(), R1))]
    assert all(names)
    assert len(set(names)) == len(names) == 8


def test_a_stack_names_only_what_l2_is_asked_for() -> None:
    some = CannDecode(in_l2=("attention",))
    assert [name for name, _ in blocks(attention(some) + ffns(some, R1))] == ["prolog", "absorb_v", "o"]


@pytest.mark.parametrize("model", ["qwen3_235b", "llama_3_1_70b", "deepseek_r1"])
@pytest.mark.parametrize("dtype", ["int8", "bf16"])
@pytest.mark.parametrize(("machine", "generation"), [("cloudmatrix384", "cann_decode_2025"), ("atlas_a2", "cann_2025")])
def test_every_kernel_has_a_family_on_its_machine(model: str, dtype: str, machine: str, generation: str) -> None:
    precise, spec = with_precision(transformer_of(load_model(model)), {"all": dtype}), load_machine(machine)
    stack, batch = decoding(precise, "decode"), MicroBatch(decodes=((1, 1000),) * 8)
    kernels = attention(stack, precise, batch) + ffns(stack, precise)
    if isinstance(ffn := precise.layers[-1].feed_forward, Experts):
        kernels += stack.experts(precise, ffn, 0, (32, 48), 1)
    assert all(cost_of(work, spec.chip, spec.kernels[generation]).onchip_bytes > 0 for _, work in kernels)
    int8 = [name for name, work in kernels for one in (work, *work.parts) if one.dtype == "int8"]
    assert bool(int8) == (dtype == "int8")


def test_a_precision_or_a_phase_without_kernels_is_refused_with_what_would_do() -> None:
    with pytest.raises(InputError, match=r"attention=fp8_block.*take int8 or bf16; set knobs.precision"):
        decoding(transformer_of(load_model("deepseek_r1")), "decode")
    with pytest.raises(InputError, match=r"decode alone: batch.phase=mixed"):
        decoding(R1, "mixed")
