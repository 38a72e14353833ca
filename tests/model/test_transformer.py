"""Modules declare their weights once; precisions change their bytes and nothing else."""

from typing import get_args

import pytest

from simulator.errors import InputError
from simulator.model.library import load_transformer
from simulator.model.linear_attention import GatedDelta
from simulator.model.transformer import (
    Dense,
    Experts,
    Grouped,
    Latent,
    active_parameters,
    experts_of,
    parameters,
    weight_bytes,
    weight_dtype,
    weights,
    with_precision,
)
from simulator.model.weight import Shard
from simulator.spec.model import load_shapes

MODULES = [Latent(128, 1536, 512, 64, 128, 128), Latent(16, 0, 512, 64, 128, 128), Grouped(64, 8, 128),
           Grouped(64, 8, 64, 128, True, True, True, True), GatedDelta(32, 16, 128, 64, 4),
           Dense(1024), Dense(1024, gated=False),
           Experts(8, 2, 512), Experts(8, 2, 512, 1024, 4, 2, True, True)]  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_weights_are_named_and_cut_in_known_ways(module: Latent | Grouped | Dense | Experts) -> None:
    found = weights(module, 2048)
    assert all(weight.shard in get_args(Shard) for weight in found)
    assert all(weight.name.partition(".")[0] in ("attention", "dense", "gate", "experts", "shared") for weight in found)
    assert found[0].name.endswith(".norm")
    kinds = [(weight.name, weight.shard) for weight in found]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_product_begins_and_ends_with_hidden_values(module: Latent | Grouped | Dense | Experts) -> None:
    matrices = [weight for weight in weights(module, 2048) if weight.inputs > 1]
    assert matrices[0].inputs == 2048
    assert [weight.outputs for weight in matrices if weight.shard == "rows"] in ([2048], [])
    assert all(2048 in (weight.inputs, weight.outputs) for weight in matrices
               if weight.name not in ("attention.q_b", "attention.kv_b"))


def test_heads_of_keys_and_values_are_copies() -> None:
    queries, pairs = (weight for weight in weights(Grouped(64, 8, 128), 4096) if weight.name == "attention.qkv")
    assert (queries.outputs, queries.shard) == (64 * 128, "columns")
    assert (pairs.outputs, pairs.copies, pairs.shard) == (2 * 128, 8, "kv_heads")


@pytest.mark.parametrize("name", ["deepseek_r1", "glm_4_5", "qwen3_235b", "kimi_k2"])
def test_shapes_count_the_same_without_norms_and_biases(name: str) -> None:
    assert parameters(load_transformer(name)) == pytest.approx(load_shapes(name).parameters, rel=1e-4)


def test_queries_without_a_rank_are_one_projection() -> None:
    names = [weight.name for weight in weights(MODULES[1], 2048)]
    assert "attention.q" in names
    assert "attention.q_a" not in names


def test_something_else_is_no_module() -> None:
    with pytest.raises(TypeError, match="int is no module"):
        weights(3, 2048)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "bits"), [
    ("bf16", 16), ("fp8", 8), ("fp8_block", 8 + 32 / 16384), ("int8", 8), ("int4", 4 + 16 / 128), ("mxfp4", 4 + 8 / 32),
    ("nvfp4", 4 + 8 / 16)])
def test_bytes_have_the_scales(dtype: str, bits: float) -> None:
    assert weight_bytes(dtype, 2**20) == bits / 8 * 2**20


def test_precision_of_all_and_of_one() -> None:
    model = load_transformer("qwen3_30b_a3b")
    changed = with_precision(model, {"attention": "bf16", "all": "fp8", "kv": "fp8"})
    assert (changed.precision.attention, changed.precision.experts, changed.precision.kv) == ("bf16", "fp8", "fp8")
    assert (changed.precision.router, changed.precision.head, changed.precision.embedding) == ("bf16",) * 3
    assert (parameters(changed), active_parameters(changed)) == (parameters(model), active_parameters(model))
    dtypes = {weight.name: weight_dtype(weight, changed.precision)
              for weight in weights(changed.layers[0].feed_forward, model.hidden)}
    assert dtypes == {"gate.norm": "bf16", "gate.router": "bf16", "experts.gate_up": "fp8", "experts.down": "fp8"}


@pytest.mark.parametrize(("changes", "says"), [
    ({"expert": "fp8"}, r"precision.expert: got 'fp8': no such module \(did you mean 'experts'\?\)"),
    ({"all": "fp16"}, "precision.all: got 'fp16': must be one of fp32, bf16, fp8, fp8_block, int8, int4, mxfp4, "),
    ({"kv": "nvfp4"}, "precision.kv: got 'nvfp4': must be one of bf16, fp8, int8"),
    ({"kv": "nvfp4", "x": "y"}, "(?s)precision.kv.*precision.x"),
])
def test_unknown_precisions_are_refused(changes: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        with_precision(load_transformer("qwen3_8b"), changes)


def test_bytes_of_an_unknown_word_are_refused() -> None:
    with pytest.raises(InputError, match="'fp4' is no precision of weights"):
        weight_bytes("fp4", 1)


def test_experts_are_those_of_the_last_layer_if_places_divide_them() -> None:
    assert experts_of(load_transformer("deepseek_r1"), 8).routed == 256
    with pytest.raises(ValueError, match="256 experts do not divide over 12 ranks"):
        experts_of(load_transformer("deepseek_r1"), 12)
    with pytest.raises(InputError, match="llama_3_1_8b has no experts"):
        experts_of(load_transformer("llama_3_1_8b"))
