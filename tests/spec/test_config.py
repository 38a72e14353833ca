"""A config.json is read with its keys as sources, or refused with file, key, value and what is right."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.spec.model import load_model, load_shapes, override_model, read_config
from simulator.spec.typed_toml import SpecError, quantities
from tests.conftest import ROOT

CONFIGS = ROOT / "tests" / "data" / "configs"


def _config(name: str, **changes: Any) -> dict[str, Any]:
    """A published config with some keys changed, or left out (...)."""
    config = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8")) | changes
    return {key: value for key, value in config.items() if value is not ...}


def _write(folder: Path, config: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def _refusal(folder: Path, config: object) -> list[str]:
    file = _write(folder, config)
    with pytest.raises(SpecError) as caught:
        read_config(file)
    assert all(line.startswith(f"{file}: ") for line in caught.value.lines)
    return [line.removeprefix(f"{file}: ") for line in caught.value.lines]


def test_a_folder_a_file_and_a_path_are_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "my_model"
    folder.mkdir()
    file = _write(folder, _config("qwen3_8b"))
    assert load_model(folder) == load_model(file) == load_model(str(file)) == read_config(folder)
    assert load_model(folder).name == "my_model"


def test_every_number_names_file_and_key(tmp_path: Path) -> None:
    file = _write(tmp_path, _config("llama_2_7b"))
    spec = load_model(file)
    assert spec.shapes.hidden.source == f"{file}, hidden_size"
    assert spec.shapes.head_dim is not None
    assert (spec.shapes.head_dim.kind, spec.shapes.head_dim.value) == ("derived", 128)
    assert all(str(file) in number.source for _, number in quantities(spec))
    smaller = override_model(spec, {"shapes.layers": "4"})
    assert (smaller.shapes.layers.value, smaller.shapes.layers.source) == (4, "command line")


def test_missing_and_wrong_keys_are_all_named(tmp_path: Path) -> None:
    config = _config("qwen3_235b", hidden_size=..., num_hidden_layers="94", num_experts=0, tie_word_embeddings=3)
    assert _refusal(tmp_path, config) == [
        "num_hidden_layers: got '94': must be a whole number, 1 or more",
        "hidden_size: is missing: this key is required",
        "tie_word_embeddings: got 3: must be true or false",
        "num_experts: got 0: must be a whole number, 1 or more"]


@pytest.mark.parametrize(("name", "changes", "says"), [
    ("qwen3_8b", {"num_key_value_heads": 5}, "num_key_value_heads: got 5: a divisor of heads"),
    ("qwen3_235b", {"num_experts_per_tok": 129}, "num_experts_per_tok: got 129: at most routed_experts, which is 128"),
    ("qwen3_235b", {"mlp_only_layers": [3]}, "mlp_only_layers: got [3]: must be the first layers"),
    ("deepseek_r1", {"moe_layer_freq": 2}, "moe_layer_freq: got 2: must be 1"),
    ("qwen2_5_7b", {"use_sliding_window": True}, "use_sliding_window: got True: must be false"),
    ("qwen3_8b", {"full_attention_interval": 4}, "full_attention_interval: got 4: other attention than softmax"),
    ("qwen3_8b", {"model_type": "qwen3_next_vl"}, "model_type: got 'qwen3_next_vl': must be one of llama"),
    ("qwen3_8b", {"model_type": "qwen3_next"}, "linear_num_value_heads: is missing"),
    ("qwen3_next_80b", {"layer_types": ["sliding_attention"] * 48}, "layer_types: got 'sliding_attention'"),
    ("qwen3_next_80b", {"layer_types": ["full_attention"] + ["linear_attention"] * 47},
     "layer_types: got full_attention, linear_attention"),
    ("qwen3_next_80b", {"linear_num_key_heads": 12}, "linear_num_key_heads: got 12: a divisor of linear_heads, 32"),
    ("qwen3_next_80b", {"mamba_ssm_dtype": "float8"}, "mamba_ssm_dtype: got 'float8': must be one of float32, "),
    ("qwen3_8b", {"model_type": "qwen4"}, "did you mean 'qwen3'?"),
    ("qwen3_8b", {"model_type": ...}, "model_type: is missing"),
    ("qwen3_8b", {"layer_types": ["linear_attention"] * 36}, "layer_types: got 'linear_attention'"),
    ("qwen3_8b", {"layer_types": ["deepseek_sparse_attention"] * 36}, "layer_types: got 'deepseek_sparse_attention'"),
    ("glm_5", {"index_topk_freq": 4}, "index_topk_freq: got 4: must be 1"),
    ("glm_5", {"indexer_types": ["full", "shared"] * 39}, "indexer_types: got 'shared': layers that attend to what"),
    ("glm_5", {"index_topk": ...}, "index_topk: is missing"),
    ("glm_5", {"q_lora_rank": None}, "all of index_heads, index_dim, index_top_k, and q_lora, or none"),
    ("minimax_m2", {"attn_type_list": [0, 1] * 31}, "attn_type_list: got"),
    ("llama_2_7b", {"is_encoder_decoder": True}, "is_encoder_decoder: got True: encoders cannot be expressed"),
    ("gpt_oss_20b", {"layer_types": ["full_attention"] * 3}, "layer_types: got 3 layers: must be a list of"),
    ("gpt_oss_20b", {"layer_types": ["full_attention"] + ["sliding_attention"] * 23},
     "layer_types: got full_attention, sliding_attention"),
    ("llama_2_7b", {"hidden_size": 4097}, "head_dim"),
    ("llama_2_7b", {"quantization_config": {"quant_method": "bitsandbytes"}},
     "quantization_config.quant_method: got 'bitsandbytes': must be one of fp8"),
    ("llama_2_7b", {"quantization_config": {"quant_method": "gptq", "bits": 3}},
     "quantization_config.bits: got 3: must be 4"),
    ("llama_2_7b", {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
     "quantization_config.weight_block_size: got a list of 2: must be [128, 128]"),
])
def test_what_a_config_refuses(name: str, changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    assert says in "\n".join(_refusal(tmp_path, _config(name, **changes)))


JUNK = [None, True, -1, 0, 1.5, 10**400, "", "x", [], [0], ["x"], {}, {"x": 1}]


@pytest.mark.parametrize("name", ["llama_2_7b", "qwen3_235b", "deepseek_r1", "gpt_oss_20b", "llama_4_scout",
                                  "qwen3_5_397b"])
def test_any_junk_is_read_or_refused(name: str, tmp_path: Path) -> None:
    config = _config(name)
    text = config.get("text_config", config)
    for key in [*text, "layer_types", "attn_type_list", "no_rope_layers", "quantization_config"]:
        for junk in JUNK:
            changed = config | {key: junk} if text is config else config | {"text_config": text | {key: junk}}
            _read_or_refuse(_write(tmp_path, changed))


@pytest.mark.parametrize("key", ["quant_method", "quant_algo", "weight_block_size", "ignore", "config_groups",
                                 "modules_to_not_convert", "kv_cache_scheme", "bits"])
@pytest.mark.parametrize("method", ["fp8", "awq", "x", None])
def test_any_junk_of_a_quantisation_is_read_or_refused(key: str, method: str | None, tmp_path: Path) -> None:
    given = {"quant_method": method}
    for junk in [*JUNK, ["re:("], {"group_0": {"weights": 3}}, {"group_0": 3}]:
        _read_or_refuse(_write(tmp_path, _config("deepseek_r1", quantization_config=given | {key: junk})))


def _read_or_refuse(file: Path) -> None:
    mistakes: tuple[str, ...] = ()
    try:
        read_config(file)
    except SpecError as error:
        mistakes = error.lines
    assert all(line.startswith(f"{file}: ") for line in mistakes)


def test_what_is_no_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"is a folder without a config\.json"):
        load_model(tmp_path)
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        load_model(tmp_path / "config.json")
    right = "must be an object, as a config.json of Hugging Face is"
    assert _refusal(tmp_path, [1]) == [f"the file: got a list of 1: {right}"]
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(SpecError, match="not valid JSON"):
        load_model(tmp_path)


def _group(**weights: Any) -> dict[str, Any]:
    inputs = weights.pop("inputs", None)
    return {"quant_method": "compressed-tensors", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}}


@pytest.mark.parametrize(("given", "right"), [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
    ({"quant_method": "fp8"}, "fp8"),
    ({"quant_method": "awq", "bits": 4}, "int4"),
    ({"quant_method": "gptq", "bits": 4}, "int4"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ({"quant_algo": "FP8"}, "fp8"),
    (_group(type="float", num_bits=8, strategy="channel", inputs={"num_bits": 8}), "fp8"),
    (_group(type="int", num_bits=8, inputs={"num_bits": 8}), "int8"),
    (_group(type="int", num_bits=4, group_size=128), "int4"),
    (_group(type="float", num_bits=4, group_size=16), "nvfp4"),
])
def test_methods_of_quantisation(given: dict[str, Any], right: str, tmp_path: Path) -> None:
    precision = load_model(_write(tmp_path, _config("qwen3_235b", quantization_config=given))).precision
    assert precision is not None
    assert (precision.attention, precision.experts, precision.head, precision.router) == (right, right, "bf16", "bf16")


@pytest.mark.parametrize(("left_out", "quantised"), [
    ("lm_head", {"attention", "experts"}),
    ("gate", {"attention", "experts"}),
    ("re:.*self_attn.*", {"experts"}),
    ("model.layers.*.self_attn", {"experts"}),
    ("language_model.model.layers.93.self_attn*", {"experts"}),
    ("model.layers.93.mlp.experts", {"attention"}),
])
def test_modules_left_out_stay_bf16(left_out: str, quantised: set[str], tmp_path: Path) -> None:
    given = {"quant_method": "fp8", "modules_to_not_convert": [left_out]}
    precision = load_model(_write(tmp_path, _config("qwen3_235b", quantization_config=given))).precision
    assert {name for name in ("attention", "experts") if getattr(precision, name) == "fp8"} == quantised


def test_nvidias_file_beside_the_config(tmp_path: Path) -> None:
    given = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(given), encoding="utf-8")
    precision = load_model(_write(tmp_path, _config("deepseek_r1", quantization_config=...))).precision
    assert precision is not None
    assert (precision.experts, precision.kv) == ("nvfp4", "fp8")
    assert precision.source == f"{tmp_path / 'hf_quant_config.json'}, quantization"


@pytest.mark.parametrize(("name", "says"), [
    ("llama_3_1_70b", "llama_3_1_70b has no routed experts .* this program is for a mixture of experts"),
    ("gpt_oss_120b", "gpt_oss_120b has shapes that this program does not know: window, sinks"),
])
def test_programs_for_experts_refuse_other_models(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_shapes(name)


@pytest.mark.parametrize("pattern", ["re:(([a-z._0-9])*)*!", "re:(a|a)+!", "re:" + ".*a" * 6 + "!", "re:" + "a" * 1001])
def test_an_expression_that_may_take_for_ever_is_refused(pattern: str, tmp_path: Path) -> None:
    given = json.loads((CONFIGS / "qwen3_8b.json").read_text(encoding="utf-8"))
    given["quantization_config"] = {"quant_method": "fp8", "modules_to_not_convert": [pattern]}
    (tmp_path / "config.json").write_text(json.dumps(given), encoding="utf-8")
    with pytest.raises(SpecError, match=r"modules_to_not_convert: got 're:.*may take for ever"):
        load_model(tmp_path / "config.json")
