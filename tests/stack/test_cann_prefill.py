"""Prefill kernels of CANN: products by their sizes, and rows and bytes from one kernel to the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.die.kernels import Work, cost_of
from simulator.errors import InputError
from simulator.model.library import load_transformer
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Dense, Experts, Grouped, Latent, Model, weights, with_precision
from simulator.spec.load import load_machine
from simulator.stack.cann import DEPLOYED, RECIPES
from simulator.stack.cann_prefill import CannPrefill
from simulator.stack.stacks import Kernels, stack_of

INT8 = {"all": "int8", "kv_b": "bf16", "router": "fp32"}
R1 = with_precision(load_transformer("deepseek_r1"), INT8)
QWEN = with_precision(load_transformer("qwen3_235b"), {"all": "int8"})
LLAMA = load_transformer("llama_3_1_70b")
PROMPTS = ((4096, 0), (1024, 0))
TOKENS = 4096 + 1024
BATCH = MicroBatch(0, (), PROMPTS, 2)


def attention_of(model: Model) -> Latent | Grouped:
    return model.layers[0].attention


def experts_of(model: Model) -> Experts:
    ffn = model.layers[-1].feed_forward
    assert isinstance(ffn, Experts)
    return ffn


def dense_of(model: Model) -> Dense:
    ffn = model.layers[0].feed_forward
    assert isinstance(ffn, Dense)
    return ffn


def attend(model: Model, batch: MicroBatch = BATCH, tp: int = 1, stack: CannPrefill = RECIPES) -> Kernels:
    """A whole block of attention: from hidden states to hidden states, of 1/tp of the heads."""
    attention = attention_of(model)
    return [*stack.inputs(model, attention, batch.tokens, tp, False), *stack.attend(model, attention, batch, tp, 1),
            *stack.output(model, attention, batch.tokens, tp)]


def every_kernel(model: Model, batch: MicroBatch, stack: CannPrefill = RECIPES) -> Kernels:
    kernels = [*RECIPES.norm(model, batch.tokens, "attention"), *attend(model, batch, stack=stack)]
    for ffn in {layer.feed_forward for layer in model.layers}:
        if isinstance(ffn, Dense):
            kernels += RECIPES.dense(model, ffn, batch.tokens, 1, False)
            continue
        kernels += [*RECIPES.route(model, ffn, batch.tokens), *RECIPES.to_rows(model, ffn, batch.tokens),
                    *RECIPES.split_sizes(ffn), *RECIPES.shared(model, ffn, batch.tokens, 1, False),
                    *RECIPES.experts(model, ffn, 0, (8, 8), 1), *RECIPES.finalize(model, ffn, batch.tokens, True)]
    return [*kernels, *RECIPES.embed(model, batch.tokens, 4), *RECIPES.head(model, 2, 4)]


def total(kernels: Kernels, field: str) -> float:
    return float(sum(getattr(work, field) for _, work in kernels))


# --- attention --------------------------------------------------------------------------------------------------------


def test_the_products_of_latent_attention() -> None:
    products = {name: (work.k, work.n, work.dtype) for name, work in attend(R1) if work.kind == "gemm"}
    assert products == {
        "attention.q_a": (7168, 1536, "int8"),
        "attention.kv_a": (7168, 512 + 64, "int8"),
        "attention.q_b": (1536, 128 * (128 + 64), "int8"),
        "attention.kv_b": (512, 128 * (128 + 128), "bf16"),
        "attention.o": (128 * 128, 7168, "int8"),
    }
    assert {work.rows for _, work in attend(R1) if work.kind == "gemm"} == {(TOKENS,)}


@pytest.mark.parametrize("model", [R1, QWEN, LLAMA], ids=lambda model: model.name)
def test_weights_read_are_those_that_the_module_declares(model: Model) -> None:
    declared = sum(one.elements for one in weights(attention_of(model), model.hidden) if one.inputs > 1)
    read = sum(work.weight_bytes / (2 if work.dtype == "bf16" else 1) for _, work in attend(model))
    assert read == declared


@pytest.mark.parametrize("model", [R1, QWEN, LLAMA], ids=lambda model: model.name)
def test_heads_split_over_ranks_add_up(model: Model) -> None:
    """Latents are of all heads; everything else is a share."""
    whole, part = ([(name, work) for name, work in attend(model, tp=tp) if not name.startswith(("attention.q_a",
                    "attention.kv_a"))] for tp in (1, 4))  # fmt: skip
    assert total(whole, "flops") == 4 * total(part, "flops")
    assert total(whole, "weight_bytes") == 4 * total(part, "weight_bytes")


def test_attention_is_causal_in_each_prompt_and_sees_no_other() -> None:
    flash = dict(attend(R1))["attention.flash"]
    assert flash.flops == 2 * 128 * (192 + 128) * (4096 * 4097 + 1024 * 1025) / 2


def test_what_is_cached_before_a_prompt_is_expanded_with_it() -> None:
    works = dict(attend(R1, MicroBatch(0, (), ((1024, 3072),), 1)))
    assert works["attention.kv_b"].rows == (4096,)
    assert works["attention.q_b"].rows == (1024,)
    assert works["attention.flash"].scores == ((1024, 4096, True),)


def test_a_window_bounds_what_a_query_sees() -> None:
    attention = attention_of(LLAMA)
    assert isinstance(attention, Grouped)
    near = dict(RECIPES.attend(LLAMA, replace(attention, window=512), BATCH, 1, 1))["attention.flash"]
    assert near.flops < 0.4 * dict(RECIPES.attend(LLAMA, attention, BATCH, 1, 1))["attention.flash"].flops


def test_latents_gathered_are_what_the_next_piece_reads() -> None:
    attention = attention_of(R1)
    assert isinstance(attention, Latent)
    for stack in (RECIPES, DEPLOYED):
        assert sum(values for _, values in stack.latents(attention)) == 1536 + 576


# --- feed-forward -----------------------------------------------------------------------------------------------------


def test_the_router_scores_every_expert_in_fp32() -> None:
    works = dict(RECIPES.route(R1, experts_of(R1), TOKENS))
    router = works["gate.router"]
    assert (router.rows, router.k, router.n, router.dtype) == ((TOKENS,), 7168, 256, "fp32")
    assert works["gate.cast"].write_bytes == router.read_bytes


@pytest.mark.parametrize("tokens", [0, 1024])
def test_experts_read_their_weights_and_compute_three_products_for_every_row(tokens: int) -> None:
    kernels = RECIPES.experts(R1, experts_of(R1), tokens, (100, 0, 300), 1)
    assert total(kernels, "weight_bytes") == 2 * 3 * 7168 * 2048  # the expert without rows stays in HBM
    assert total(kernels, "flops") == 2 * 400 * 3 * 7168 * 2048


def test_what_one_kernel_writes_the_next_one_reads() -> None:
    works = dict(RECIPES.experts(R1, experts_of(R1), 0, (100, 300), 1))
    assert works["experts.gate_up"].out_dtype == "int32"
    assert works["experts.gate_up"].write_bytes == works["experts.swiglu"].read_bytes
    assert works["experts.swiglu"].write_bytes == works["experts.down"].read_bytes + 4 * 400  # a scale per row
    assert works["experts.down"].write_bytes == works["experts.unsort"].read_bytes


def test_what_is_quantised_is_read_as_int8_with_a_scale_per_row() -> None:
    kernels = [*attend(R1), *RECIPES.dense(R1, dense_of(R1), TOKENS, 1, False)]
    works: dict[str, Work] = dict(kernels)
    for name in ("attention.q_a", "attention.kv_a", "attention.q_b", "attention.o"):
        assert works[f"{name}.quantise"].write_bytes == works[name].read_bytes + 4 * TOKENS
    assert works["dense.quantise"].write_bytes == works["dense.gate_up"].read_bytes + 4 * TOKENS


def test_what_was_quantised_before_a_gather_is_not_again() -> None:
    for kernels in (RECIPES.inputs(R1, attention_of(R1), TOKENS, 1, True),
                    RECIPES.inputs(QWEN, attention_of(QWEN), TOKENS, 8, True),
                    RECIPES.dense(R1, dense_of(R1), TOKENS, 8, True),
                    RECIPES.shared(R1, experts_of(R1), TOKENS, 8, True)):
        assert not [name for name, _ in kernels if name.endswith("quantise")]
    assert [name for name, _ in RECIPES.pack(R1, TOKENS, "attention")] == ["attention.quantise"]
    assert not RECIPES.pack(LLAMA, TOKENS, "attention")


def test_rows_sent_are_rows_computed() -> None:
    sort = dict(RECIPES.to_rows(R1, experts_of(R1), TOKENS))["init_routing.sort"]
    assert sort.write_bytes == TOKENS * 8 * (7168 * RECIPES.wire_bytes + RECIPES.scale_bytes)


def test_finalize_reads_all_rows_of_a_token_or_their_sum_and_the_shared_expert() -> None:
    by_row, by_token = (dict(RECIPES.finalize(R1, experts_of(R1), TOKENS, rows)) for rows in (True, False))
    assert by_row["finalize.sum"].read_bytes == TOKENS * 9 * 7168 * 2
    assert by_token["finalize.add_shared"].read_bytes == TOKENS * 2 * 7168 * 2
    assert not RECIPES.finalize(QWEN, experts_of(QWEN), TOKENS, False)  # it has none


def test_vocabulary_shards_cover_the_vocabulary() -> None:
    assert 32 * dict(RECIPES.head(R1, 64, 32))["head.logits"].n >= R1.vocabulary
    assert dict(RECIPES.head(R1, 64, 1))["head.logits"].n == R1.vocabulary


# --- any model --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("machine", "stack"), [("atlas_a2", DEPLOYED), ("atlas_a3", RECIPES)])
@pytest.mark.parametrize("model", [R1, QWEN, LLAMA, load_transformer("qwen3_30b_a3b")], ids=lambda model: model.name)
def test_every_kernel_exists_and_has_something_to_do(model: Model, machine: str, stack: CannPrefill) -> None:
    families = load_machine(machine).kernels[stack.name]
    kernels = every_kernel(model, BATCH, stack)
    assert {work.family for _, work in kernels} <= set(families)
    assert len({name for name, _ in kernels}) == len(kernels)
    assert all(work.hbm_bytes > 0 for _, work in kernels)


def test_attention_of_the_earlier_generation_moves_more_on_chip() -> None:
    a2, a3 = load_machine("atlas_a2"), load_machine("atlas_a3")  # of one die
    earlier, later = (dict(attend(R1, stack=stack))["attention.flash"] for stack in (DEPLOYED, RECIPES))
    before = cost_of(earlier, a2.chip, a2.kernels["cann_2025"]).onchip_bytes
    after = cost_of(later, a3.chip, a3.kernels["cann_recipes_2025"]).onchip_bytes
    assert before == pytest.approx(1.15 * after, rel=0.01)


def test_a_rank_without_prompts_launches_what_needs_none() -> None:
    kernels = every_kernel(R1, MicroBatch())
    assert {name for name, _ in kernels if "attention" in name or "dense" in name or "shared" in name} == set()


def test_bf16_needs_no_scales_and_twice_the_bytes() -> None:
    stack = stack_of("cann_recipes_2025", LLAMA, "prefill")
    assert (stack.wire_bytes, stack.scale_bytes) == (2.0, 0.0)
    assert not [name for name, _ in attend(LLAMA) if name.endswith("quantise")]
    assert stack_of("cann_2025", R1, "prefill") == DEPLOYED


def test_a_precision_that_no_kernel_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="precision fp8: kernels of CANN take bf16 or int8"):
        attend(with_precision(R1, {"attention": "fp8"}))
