"""A Hugging Face config.json as the tables of a model's typed file, each number with its key as source.

What a family of models is made of follows the classes of the same `model_type` in huggingface/transformers
(src/transformers/models/*/configuration_*.py and modeling_*.py); defaults of keys left out are those of the classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.paths import did_you_mean
from simulator.spec.quantization import precision_table, with_state
from simulator.spec.typed_toml import SpecError, line

_COMMON = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
           "vocabulary": "vocab_size", "tied": "tie_word_embeddings"}
_GROUPED = {**_COMMON, "kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
_DENSE = {**_GROUPED, "dense_intermediate": "intermediate_size"}
_LATENT = {**_COMMON, "q_lora": "q_lora_rank", "kv_lora": "kv_lora_rank", "rope_dim": "qk_rope_head_dim",
           "nope_dim": "qk_nope_head_dim", "v_dim": "v_head_dim"}
_LOCAL = {"routed_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok",
          "expert_intermediate": "intermediate_size"}
_ROUTED = {"routed_experts": "n_routed_experts", "experts_per_token": "num_experts_per_tok",
           "shared_experts": "n_shared_experts", "expert_intermediate": "moe_intermediate_size",
           "dense_layers": "first_k_dense_replace", "dense_intermediate": "intermediate_size",
           "expert_groups": "n_group", "groups_per_token": "topk_group"}
_INDEXER = {"index_heads": "index_n_heads", "index_dim": "index_head_dim", "index_top_k": "index_topk"}
_ALL_EXPERTS = {"dense_layers": 0, "shared_experts": 0}
_MTP = {"mtp_layers": "num_nextn_predict_layers"}
_BIAS = {"attention_bias": "attention_bias"}
_LINEAR = {"linear_heads": "linear_num_value_heads", "linear_key_heads": "linear_num_key_heads",
           "linear_key_dim": "linear_key_head_dim", "linear_v_dim": "linear_value_head_dim",
           "linear_conv": "linear_conv_kernel_dim", "full_every": "full_attention_interval"}


@dataclass(frozen=True)
class _Family:
    """How the models of a `model_type` write their shapes.

    keys: number of the typed file -> key of the config. facts: what all of them have, without a key. defaults: of keys
    left out (beside those in _DEFAULTS). fixed: what a key must be, where another value would mean another model.
    """

    keys: Mapping[str, str]
    facts: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)


_LLAMA = _Family({**_DENSE, **_BIAS}, fixed={"mlp_bias": False})
_WINDOW = {"window": "sliding_window", "window_every": "layer_types"}
_MISTRAL = _Family({**_DENSE, **_WINDOW})
_DEEPSEEK = _Family({**_LATENT, **_ROUTED, **_MTP}, fixed={"attention_bias": False, "moe_layer_freq": 1})
_SPARSE = _Family({**_DEEPSEEK.keys, **_INDEXER},
                  fixed={**_DEEPSEEK.fixed, "index_topk_freq": 1, "index_topk_pattern": None})
_QWEN_3 = _Family({**_DENSE, **_BIAS}, {"qk_norm": 1}, fixed={"use_sliding_window": False})
_QWEN_3_MOE = _Family({**_DENSE, **_BIAS, "routed_experts": "num_experts", "experts_per_token": "num_experts_per_tok",
                       "expert_intermediate": "moe_intermediate_size", "dense_layers": "mlp_only_layers",
                       "moe_every": "decoder_sparse_step"},
                      {"qk_norm": 1, "shared_experts": 0}, {"decoder_sparse_step": 1, "mlp_only_layers": []},
                      {"use_sliding_window": False})
_QWEN_NEXT = {"full_attention_interval": 4}
_QWEN_NEXT_FACTS = {"qk_norm": 1, "attention_gate": 1}
_QWEN_NEXT_MOE = {**_GROUPED, **_BIAS, **_LINEAR, "routed_experts": "num_experts",
                  "experts_per_token": "num_experts_per_tok", "expert_intermediate": "moe_intermediate_size",
                  "shared_intermediate": "shared_expert_intermediate_size"}
_MOE_FACTS = {**_QWEN_NEXT_FACTS, "shared_experts": 1, "shared_gate": 1}
_QWEN_3_5_MTP = {"mtp_layers": "mtp_num_hidden_layers"}
_QWEN_3_5 = _Family({**_DENSE, **_BIAS, **_LINEAR, **_QWEN_3_5_MTP}, _QWEN_NEXT_FACTS, _QWEN_NEXT,
                    {"attn_output_gate": True})
_QWEN_3_5_MOE = _Family({**_QWEN_NEXT_MOE, **_QWEN_3_5_MTP}, {**_MOE_FACTS, "dense_layers": 0}, _QWEN_NEXT,
                        {"attn_output_gate": True})
_LLAMA_4 = _Family({**_DENSE, **_BIAS, **_LOCAL, "dense_intermediate": "intermediate_size_mlp",
                    "moe_every": "interleave_moe_layer_step", "window": "attention_chunk_size",
                    "window_every": "no_rope_layer_interval", "qk_norm": "use_qk_norm"},
                   {"dense_layers": 0, "shared_experts": 1},
                   {"interleave_moe_layer_step": 1, "no_rope_layer_interval": 4, "use_qk_norm": True})
_GEMMA_3 = _Family({**_DENSE, **_BIAS, "window": "sliding_window", "window_every": "sliding_window_pattern"},
                   {"qk_norm": 1},
                   {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
                    "sliding_window": 4096, "sliding_window_pattern": 6, "tie_word_embeddings": True})
_FAMILIES = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "phi3": _MISTRAL,
    "mixtral": _Family({**_GROUPED, **_LOCAL, **_WINDOW}, _ALL_EXPERTS),
    "qwen2": _Family(_DENSE, {"attention_bias": 1}, fixed={"use_sliding_window": False}),
    "qwen3": _QWEN_3,
    "qwen3_vl_text": _QWEN_3,
    "qwen3_moe": _QWEN_3_MOE,
    "qwen3_vl_moe_text": _QWEN_3_MOE,
    "qwen3_next": _Family({**_QWEN_NEXT_MOE, "dense_layers": "mlp_only_layers", "moe_every": "decoder_sparse_step",
                           "dense_intermediate": "intermediate_size"},
                          {**_MOE_FACTS, "mtp_layers": 1},
                          {**_QWEN_NEXT, "decoder_sparse_step": 1, "mlp_only_layers": []}),
    "qwen3_5": _QWEN_3_5,
    "qwen3_5_text": _QWEN_3_5,
    "qwen3_5_moe": _QWEN_3_5_MOE,
    "qwen3_5_moe_text": _QWEN_3_5_MOE,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _SPARSE,
    "glm_moe_dsa": _SPARSE,
    "kimi_k2": _DEEPSEEK,
    "glm4_moe": _Family({**_GROUPED, **_BIAS, **_ROUTED, **_MTP, "qk_norm": "use_qk_norm"},
                        defaults={"use_qk_norm": False}),
    "gpt_oss": _Family({**_GROUPED, **_BIAS, **_LOCAL, **_WINDOW},
                       {**_ALL_EXPERTS, "sinks": 1, "expert_bias": 1}, {"layer_types": 2, "attention_bias": True}),
    "llama4": _LLAMA_4,
    "llama4_text": _LLAMA_4,
    "minimax_m2": _Family({**_GROUPED, **_LOCAL, "qk_norm": "use_qk_norm"}, _ALL_EXPERTS, {"use_qk_norm": True},
                          {"shared_intermediate_size": 0}),
    "gemma3": _GEMMA_3,
    "gemma3_text": _GEMMA_3,
}  # fmt: skip

_DEFAULTS = {"tie_word_embeddings": False, "attention_bias": False, "num_key_value_heads": None, "head_dim": None,
             "sliding_window": None, "attention_chunk_size": None, "q_lora_rank": None, "n_group": None,
             "topk_group": None, "num_nextn_predict_layers": 0, "first_k_dense_replace": 0, "n_shared_experts": 0,
             "intermediate_size_mlp": None, "layer_types": None, "mtp_num_hidden_layers": 0}
_MAY_BE_0 = {"mtp_layers", "dense_layers", "shared_experts"}
_SWITCHES = {"tied", "attention_bias", "qk_norm"}
_OPTIONAL = {"q_lora", "window", "window_every", "kv_heads", "head_dim", "expert_groups", "groups_per_token",
             "dense_intermediate", "full_every"}
_SOFTMAX = {"full_attention", "sliding_attention", "chunked_attention"}
_SPARSE_LAYER = "deepseek_sparse_attention"


_DELTA = {"full_attention", "linear_attention"}
"""Kinds of layers of families whose linear attention is the gated delta rule."""


def config_file(path: Path) -> Path:
    """The config.json itself, where its folder is given; SpecError where that has none."""
    if not path.is_dir():
        return path
    if not (path / "config.json").is_file():
        raise SpecError([f"{path}: is a folder without a config.json: give the folder of a model from Hugging Face"])
    return path / "config.json"


def config_tables(path: Path) -> dict[str, Any]:
    """The tables of a typed file that say the same; SpecError with all that is missing, wrong or cannot be expressed.

    Of a multimodal model its `text_config` alone is read. A model is named after its folder, or after the file where
    that is not called config.json.
    """
    whole = _read(path)
    inner = whole.get("text_config")
    text = {**{key: whole[key] for key in ("model_type", "tie_word_embeddings") if key in whole},
            **inner} if isinstance(inner, dict) else whole  # fmt: skip
    mistakes = list(_foreign(text, path))
    if mistakes:
        raise SpecError(mistakes)
    family = _FAMILIES[text["model_type"]]
    shapes = _shapes(text, family, path, mistakes)
    precision = precision_table(whole, text, path, mistakes)
    if "linear_heads" in family.keys:
        precision = with_state(precision, text, path, mistakes)
    if mistakes:
        raise SpecError(mistakes)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return {"name": name, "title": f"{name} ({text['model_type']})",
            "doc": f"Read from {path}.", "shapes": shapes, **({"precision": precision} if precision else {})}


def in_words_of_config(mistake: str, tables: Mapping[str, Any]) -> str:
    """A line of a SpecError about the tables, with the config's key in place of the typed file's."""
    for name, number in tables["shapes"].items():
        key = number["source"].rpartition(", ")[2]
        if " " not in key:
            mistake = mistake.replace(f": shapes.{name}: ", f": {key}: ")
    return mistake


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in a file; SpecError where it cannot be read or is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError([f"{path}: cannot be read: {error.strerror}"]) from None
    except (ValueError, RecursionError) as error:
        raise SpecError([f"{path}: not valid JSON: {error}"]) from None
    if not isinstance(found, dict):
        raise SpecError([line(str(path), "the file", found, "must be an object, as a config.json of Hugging Face is")])
    return found


def _foreign(config: Mapping[str, Any], path: Path) -> Iterator[str]:
    """What makes it another kind of model than can be expressed."""
    linear = "other attention than softmax over all keys or a window (linear, sparse, state space) cannot be expressed"
    kinds, family = config.get("layer_types"), _FAMILIES.get(str(config.get("model_type")))
    delta = family is not None and "full_every" in family.keys
    known = _DELTA if delta else _SOFTMAX
    passed = known | ({_SPARSE_LAYER} if config.get("index_topk") else set())
    for other in sorted({str(one) for one in kinds} - passed if isinstance(kinds, list) else ()):
        yield line(str(path), "layer_types", other, f"{linear}: must be one of {', '.join(sorted(known))}")
    if config.get("full_attention_interval") is not None and not delta:
        yield line(str(path), "full_attention_interval", config["full_attention_interval"], linear)
    types = config.get("attn_type_list")
    if types is not None and (not isinstance(types, list) or any(one != 1 for one in types)):
        yield line(str(path), "attn_type_list", config["attn_type_list"], f"{linear}: every layer must be of type 1")
    indexers = config.get("indexer_types")
    if isinstance(indexers, list) and set(indexers) != {"full"}:
        yield line(str(path), "indexer_types", next(one for one in indexers if one != "full"),
                   "layers that attend to what the indexer of another layer chose cannot be expressed: must be full")
    if config.get("is_encoder_decoder"):
        yield line(str(path), "is_encoder_decoder", True, "encoders cannot be expressed: a decoder alone is wanted")
    kind: Any = config.get("model_type")
    if kind is None:
        yield f"{path}: model_type: is missing: must be one of {', '.join(_FAMILIES)}"
    elif not isinstance(kind, str) or kind not in _FAMILIES:
        hint = did_you_mean(str(kind), _FAMILIES)
        yield line(str(path), "model_type", kind, f"must be one of {', '.join(_FAMILIES)}{hint}")


def _shapes(config: Mapping[str, Any], family: _Family, path: Path, mistakes: list[str]) -> dict[str, Any]:
    """The table of shapes; appends to `mistakes`."""
    for key, right in family.fixed.items():
        if config.get(key) not in (None, right):
            mistakes.append(line(str(path), key, config[key], f"must be {json.dumps(right)}: others are not known"))
    shapes = {}
    for name, key in family.keys.items():
        if name == "full_every" and config.get("layer_types") is not None:
            key = "layer_types"  # which says the same, layer by layer
        try:
            number = _number(name, key, config, family)
        except ValueError as error:
            mistakes.append(f"{path}: {key}: {error}")
            continue
        if number is not None:
            given = config.get(key) is not None
            source = key if given else f"{key} (not given: the default of {config['model_type']})"
            shapes[name] = {"value": number, "unit": "1", "kind": "published", "source": f"{path}, {source}"}
    for name, fact in family.facts.items():
        shapes[name] = {"value": fact, "unit": "1", "kind": "published",
                        "source": f"{path}, model_type (of all {config['model_type']} models)"}
    return _without_idle(shapes) | _derived(shapes, path)


def _number(name: str, key: str, config: Mapping[str, Any], family: _Family) -> int | None:
    """One number; None where the model has none of it. ValueError says what was written and what is right."""
    value = config.get(key)
    if value is None:
        defaults = _DEFAULTS | dict(family.defaults)
        if key not in defaults:
            raise ValueError("is missing: this key is required")
        value = defaults[key]
    if name in ("window_every", "full_every") and config.get("layer_types") is not None:
        return _period(config, "layer_types", "full_attention")
    if name == "window_every" and config.get("no_rope_layers"):
        return _period(config, "no_rope_layers", 0)
    if name == "dense_layers" and isinstance(value, list):
        if value != list(range(len(value))):
            raise ValueError(f"got {value}: must be the first layers, 0, 1, ... without a gap")
        return len(value)
    if name in _SWITCHES and isinstance(value, bool):
        return int(value)
    if value is None and name in _OPTIONAL:
        return None
    least = 0 if name in _MAY_BE_0 else 1
    wanted = "true or false" if name in _SWITCHES else f"a whole number, {least} or more"
    if name in _SWITCHES or isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"got {value!r}: must be {wanted}")
    if value >= 2**53:
        raise ValueError(f"got a number of {len(str(value))} digits: must be less than 2**53")
    return value


def _period(config: Mapping[str, Any], key: str, full_word: Any) -> int | None:
    """Of how many layers the last sees all; None where none does. ValueError where they do not alternate so."""
    kinds, layers = config[key], config.get("num_hidden_layers")
    full = [kind == full_word for kind in kinds] if isinstance(kinds, list) else []
    if len(full) != layers:
        raise ValueError(f"got {len(full)} layers: must be a list of num_hidden_layers, {layers}")
    period = full.index(True) + 1 if True in full else 0
    if any(one != (period > 0 and (layer + 1) % period == 0) for layer, one in enumerate(full)):
        raise ValueError(f"got {', '.join(map(str, kinds[:8]))}, ...: the last of every so many layers must be the "
                         "one that sees all")
    return period or None


def _without_idle(shapes: dict[str, Any]) -> dict[str, Any]:
    """Without what says that there is nothing: 0 for a switch, one group of experts, experts in every layer."""
    idle = {name for name in _SWITCHES if name in shapes and not shapes[name]["value"]}
    if shapes.get("expert_groups", {"value": 1})["value"] == 1:
        idle |= {"expert_groups", "groups_per_token"}
    idle |= {name for name in ("moe_every", "window_every") if name in shapes and shapes[name]["value"] == 1}
    if shapes.get("full_every", {"value": 0})["value"] == 1:  # no layer is linear
        idle |= set(_LINEAR)
    if "window" not in shapes or shapes.get("window_every", {"value": 0})["value"] == 1:
        idle |= {"window", "window_every"}
    return {name: number for name, number in shapes.items() if name not in idle}


def _derived(shapes: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Heads of keys and values, and their size, where a config leaves them to its class."""
    if "kv_lora" in shapes or "heads" not in shapes or "hidden" not in shapes:
        return {}
    heads, hidden = shapes["heads"]["value"], shapes["hidden"]["value"]
    rules = {"kv_heads": (heads, "num_attention_heads"),
             "head_dim": (hidden / heads, "hidden_size / num_attention_heads")}
    return {name: {"value": value, "unit": "1", "kind": "derived", "source": f"{path}, where it is not given",
                   "expression": expression}
            for name, (value, expression) in rules.items() if name not in shapes}
