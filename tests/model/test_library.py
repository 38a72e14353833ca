"""Every model of the library has the parameters, and keeps the cache, that its publishers say."""

from dataclasses import replace

import pytest

from simulator import paths
from simulator.model.indexer import Indexer
from simulator.model.library import load_transformer
from simulator.model.linear_attention import GatedDelta
from simulator.model.transformer import (
    Dense,
    Experts,
    Grouped,
    Latent,
    Model,
    active_parameters,
    draft_parameters,
    draft_weights,
    end_weights,
    kv_bytes,
    kv_bytes_per_token,
    layer_weights,
    parameters,
    weight_bytes,
    weight_dtype,
    with_precision,
)
from simulator.parallel.ledger import state_bytes
from simulator.spec.model import load_model
from simulator.units import Quantity
from tests.conftest import ROOT

NAMES = paths.names("workloads/models")
CONFIGS = sorted((ROOT / "tests" / "data" / "configs").glob("*.json"))


def _embedding(model: Model) -> int:
    """Parameters of the embedding where it is not the head too."""
    return 0 if model.tied else model.vocabulary * model.hidden


def _stored(model: Model) -> int:
    """With MTP layers that have an embedding and a head of their own."""
    return parameters(model) + draft_parameters(model) + 2 * len(model.drafts) * _embedding(model)


def _agree(counted: float, published: Quantity, rounding: Quantity | None) -> None:
    """To 0.5%, or to the last digit of a figure that was rounded or cut."""
    last_digit = rounding.value if rounding else 0
    assert abs(counted - published.si) <= max(0.005 * published.si, last_digit), (counted, published)


def test_the_library_is_large() -> None:
    assert len(NAMES) >= 18


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_published(name: str) -> None:
    model, published = load_transformer(name), load_model(name).published
    assert published is not None
    assert published.parameters or published.stored_parameters
    if published.parameters:
        _agree(parameters(model), published.parameters, published.parameters_rounding)
    if published.stored_parameters:
        _agree(_stored(model), published.stored_parameters, None)


@pytest.mark.parametrize("name", NAMES)
def test_active_parameters_are_those_published(name: str) -> None:
    model, published = load_transformer(name), load_model(name).published
    assert published is not None
    with_experts = any(isinstance(layer.feed_forward, Experts) for layer in model.layers)
    assert with_experts == bool(published.active_parameters or published.active_and_embedding)
    active = active_parameters(model)
    if published.active_parameters:
        _agree(active, published.active_parameters, published.active_rounding)
    if published.active_and_embedding:
        _agree(active + _embedding(model), published.active_and_embedding, published.active_rounding)
    if not with_experts:
        assert active + _embedding(model) == parameters(model)


@pytest.mark.parametrize("name", [name for name in NAMES if (load_model(name).published or 0).kv_bytes_per_token])
def test_the_cache_is_that_published(name: str) -> None:
    published = load_model(name).published
    assert published is not None
    assert published.kv_bytes_per_token is not None
    assert kv_bytes_per_token(load_transformer(name), "bf16") == published.kv_bytes_per_token.si


def test_deepseek_v3_keeps_70_272_bytes_per_token() -> None:
    model = load_transformer("deepseek_r1")
    assert kv_bytes_per_token(model, "bf16") == 70_272
    assert kv_bytes(model, 4096, "bf16") == 4096 * 70_272
    assert kv_bytes_per_token(model, "fp8") * 2 == 70_272


def test_sparse_attention_caches_the_indexers_keys_in_fp8() -> None:
    model = load_transformer("glm_5")
    assert model.layers[0].attention == Latent(64, 2048, 512, 64, 192, 256, Indexer(32, 128, 2048))
    assert kv_bytes_per_token(model) == 78 * (2 * 576 + 132)
    assert kv_bytes_per_token(model, "fp8") == 78 * (656 + 132)


def _bytes(model: Model) -> float:
    """Of the weights in the checkpoint; MTP layers have an embedding and a head of their own."""
    layers = sum(weight_bytes(weight_dtype(weight, model.precision), weight.elements)
                 for layer in model.layers for weight in layer_weights(layer, model.hidden))
    drafts = [weight for layer in model.drafts
              for weight in (*layer_weights(layer, model.hidden), *draft_weights(model))]
    ends = sum(2 * weight.elements for weight in end_weights(model)) * (1 + len(model.drafts))
    return layers + ends + sum(weight_bytes(model.precision.drafts, weight.elements) for weight in drafts)


@pytest.mark.parametrize(("name", "stored"), [
    ("deepseek_r1", 680_571_043_840 + 2 * 3_918_786_560 + 4 * 41_555_600),  # F8_E4M3, BF16, F32 on the model card
    ("gpt_oss_20b", 13_761_264_768),  # total_size in model.safetensors.index.json
    ("llama_3_1_8b", 2 * 8_030_261_248),
])
def test_checkpoints_are_as_large_as_published(name: str, stored: int) -> None:
    assert _bytes(load_transformer(name)) == pytest.approx(stored, rel=0.001)


def test_windows_are_in_the_published_layers() -> None:
    def windows(name: str) -> list[int]:
        attention = [layer.attention for layer in load_transformer(name).layers]
        return [one.window for one in attention if isinstance(one, Grouped)]

    assert windows("gpt_oss_20b") == [128, 0] * 12
    assert windows("gemma_3_27b") == [1024, 1024, 1024, 1024, 1024, 0] * 10 + [1024, 1024]
    assert windows("llama_4_scout") == [8192, 8192, 8192, 0] * 12
    assert windows("mistral_7b") == [4096] * 32
    assert windows("qwen3_32b") == [0] * 64


def test_a_window_keeps_its_own_tokens_alone() -> None:
    model = load_transformer("gpt_oss_20b")
    per_layer = 2 * 8 * 64 * 2
    assert kv_bytes(model, 100) == 100 * kv_bytes_per_token(model) == 100 * 24 * per_layer
    assert kv_bytes(model, 1000) == 12 * per_layer * (1000 + 128)


def test_experts_are_in_the_published_layers() -> None:
    maverick = [isinstance(layer.feed_forward, Experts) for layer in load_transformer("llama_4_maverick").layers]
    assert maverick == [False, True] * 24
    r1 = [isinstance(layer.feed_forward, Dense) for layer in load_transformer("deepseek_r1").layers]
    assert r1 == [True] * 3 + [False] * 58


def test_linear_attention_is_in_three_of_four_layers() -> None:
    for name, heads, layers in (("qwen3_next_80b", 32, 48), ("qwen3_5_397b", 64, 60)):
        model = load_transformer(name)
        kinds = [layer.attention for layer in model.layers]
        assert [isinstance(one, GatedDelta) for one in kinds] == [True, True, True, False] * (layers // 4)
        assert kinds[0] == GatedDelta(heads, 16, 128, 128, 4)
        assert isinstance(kinds[3], Grouped)
        assert kinds[3].gated
        assert isinstance(model.drafts[0].attention, Grouped)


def test_qwen3_next_has_the_parameters_of_its_tensors() -> None:
    """To the last one: 81,324,862,720 in the safetensors, of which 1,650,471,424 are of the MTP layer."""
    model = load_transformer("qwen3_next_80b")
    assert (parameters(model), draft_parameters(model)) == (79_674_391_296, 1_650_471_424)


def test_a_state_is_kept_once_per_request() -> None:
    """64 heads of 128 x 128 in FP32 and the last 3 of 12,288 convolved values in BF16, in 45 layers."""
    model = load_transformer("qwen3_5_397b")
    assert state_bytes(model) == 45 * (64 * 128 * 128 * 4 + 3 * 12_288 * 2)
    assert state_bytes(with_precision(model, {"state": "bf16"})) == 45 * (64 * 128 * 128 * 2 + 3 * 12_288 * 2)
    assert kv_bytes_per_token(model) == 15 * 2 * 2 * 256 * 2
    assert state_bytes(load_transformer("deepseek_r1")) == 0


def test_modules_are_as_published() -> None:
    r1, gpt = load_transformer("deepseek_r1"), load_transformer("gpt_oss_120b")
    assert r1.layers[5].attention == Latent(128, 1536, 512, 64, 128, 128)
    assert r1.drafts == (r1.layers[-1],)
    assert r1.layers[5].feed_forward == Experts(256, 8, 2048, 2048, 8, 4)
    assert gpt.layers[1].attention == Grouped(64, 8, 64, sinks=True, bias=True)
    assert gpt.layers[1].feed_forward == Experts(128, 4, 2880, bias=True)
    assert (gpt.precision.experts, gpt.precision.attention, gpt.precision.kv) == ("mxfp4", "bf16", "bf16")
    assert load_transformer("gemma_3_27b").tied


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_the_same_model(config: object) -> None:
    own, library = load_transformer(str(config)), load_transformer(str(getattr(config, "stem", "")))
    assert replace(own, name=library.name) == library
