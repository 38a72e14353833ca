"""In what a checkpoint has its weights: the `quantization_config` of a config.json as a table of precisions.

Router, embedding and head stay BF16: no method quantises them unless told to, and published checkpoints do not. A
module is quantised where all its projections are; one left out of some layers alone counts as its last layer has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from simulator.spec.typed_toml import line

_MODELOPT = {"FP8": "fp8", "FP8_PB_WO": "fp8_block", "FP8_PB_REAL": "fp8_block", "NVFP4": "nvfp4", "MXFP4": "mxfp4",
             "W4A16_AWQ": "int4"}
_METHODS = "fp8, fbgemm_fp8, compressed-tensors, modelopt, awq, gptq, mxfp4"
_LEFT_OUT = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
_WRAPPERS = ("", "language_model.", "model.language_model.")


def precision_table(whole: Mapping[str, Any], text: Mapping[str, Any], path: Path,
                    mistakes: list[str]) -> dict[str, str] | None:
    """The table of precisions, with its source; None where nothing is quantised. Appends to `mistakes`.

    whole, text: the config, and the part of it that describes the language model. NVIDIA's checkpoints keep theirs in
    hf_quant_config.json beside the config.
    """
    given = whole.get("quantization_config") or text.get("quantization_config")
    source = f"{path}, quantization_config"
    beside = path.with_name("hf_quant_config.json")
    if not given and path.name == "config.json" and beside.is_file():
        given = json.loads(beside.read_text(encoding="utf-8")).get("quantization")
        source = f"{beside}, quantization"
    if not given:
        return None
    try:
        dtype = _dtype(given)
    except ValueError as error:
        mistakes.append(f"{path}: quantization_config.{error}")
        return None
    left_out = [pattern for key in _LEFT_OUT for pattern in given.get(key) or ()]
    table = {module: dtype for module, names in _projections(text)
             if not any(_matches(pattern, name) for pattern in left_out for name in names)}
    if given.get("quant_method") == "mxfp4":
        table = {"experts": dtype}  # its integration in transformers knows experts alone
    return {**table, **_cache(given), "source": source}


def _dtype(given: Mapping[str, Any]) -> str:
    """The precision of what is quantised; ValueError with key, value and what is right."""
    method, algorithm = given.get("quant_method"), given.get("quant_algo")
    if algorithm is not None:
        if algorithm not in _MODELOPT:
            raise ValueError(_wrong("quant_algo", algorithm, f"must be one of {', '.join(_MODELOPT)}"))
        return _MODELOPT[algorithm]
    if method == "fp8":
        return _block(given.get("weight_block_size"), "weight_block_size")
    if method == "fbgemm_fp8":
        return "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("awq", "gptq"):
        if given.get("bits") != 4:
            raise ValueError(_wrong("bits", given.get("bits"), "must be 4"))
        return "int4"
    if given.get("config_groups"):
        found = {_of_group(group) for group in given["config_groups"].values()}
        if len(found) > 1:
            raise ValueError(_wrong("config_groups", ", ".join(sorted(found)), "must all be of one precision"))
        return found.pop()
    raise ValueError(_wrong("quant_method", method, f"must be one of {_METHODS}"))


def _of_group(group: Mapping[str, Any]) -> str:
    """The precision of one group of compressed-tensors (or of modelopt, which writes them alike)."""
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    kind, bits, size = weights.get("type"), weights.get("num_bits"), weights.get("group_size")
    if (kind, bits) == ("float", 8):
        return _block(weights.get("block_structure"), "config_groups.weights.block_structure")
    if (kind, bits) == ("int", 8) and inputs:
        return "int8"
    if (kind, bits) == ("int", 4) and not inputs:
        return "int4"
    if (kind, bits) == ("float", 4) and size in (16, 32):
        return "nvfp4" if size == 16 else "mxfp4"
    right = "must be float of 8 bits, int of 8 with int activations, int of 4 alone, float of 4 in groups of 16 or 32"
    raise ValueError(_wrong("config_groups.weights", f"{kind} of {bits} bits", right))


def _block(size: Sequence[int] | None, key: str) -> str:
    """FP8 per tensor (or channel), or in blocks."""
    if size is None:
        return "fp8"
    if list(size) != [128, 128]:
        raise ValueError(_wrong(key, list(size), "must be [128, 128], or left out for a scale per tensor"))
    return "fp8_block"


def _wrong(key: str, got: Any, right: str) -> str:
    return line("", key, got, right).removeprefix(": ")


def _cache(given: Mapping[str, Any]) -> dict[str, str]:
    """The precision of the cache, where it is said."""
    scheme = given.get("kv_cache_quant_algo") or given.get("kv_cache_scheme")
    if isinstance(scheme, dict) and scheme.get("num_bits") == 8:
        return {"kv": "fp8" if scheme.get("type") == "float" else "int8"}
    words = {"FP8": "fp8", "INT8": "int8"}
    return {"kv": words[str(scheme).upper()]} if str(scheme).upper() in words else {}


def _projections(config: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """(module, names of its projections in the checkpoint) of the last layer, of MTP layers the one behind it."""
    layers = config.get("num_hidden_layers")
    last = f"model.layers.{layers - 1 if isinstance(layers, int) else 0}"
    latent = config.get("kv_lora_rank") is not None
    queries = "q_b_proj" if config.get("q_lora_rank") else "q_proj"
    yield "attention", [f"{last}.self_attn.{part}" for part in (queries, *(("kv_b_proj",) if latent else ()), "o_proj")]
    yield "dense", ["model.layers.0.mlp.gate_proj", "model.layers.0.feed_forward.gate_proj"]
    yield "experts", [f"{last}.{block}.experts.0.gate_proj" for block in ("mlp", "block_sparse_moe", "feed_forward")]
    yield "shared", [f"{last}.mlp.shared_experts.gate_proj", f"{last}.feed_forward.shared_expert.gate_proj"]
    yield "drafts", [f"model.layers.{layers}.mlp.experts.0.gate_proj"]


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern of modules left out means a projection: "re:...", "*" for anything, or parts of the name."""
    names = [f"{wrapper}{name}" for wrapper in _WRAPPERS]
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], one) for one in names)
    if "*" in pattern:
        return any(fnmatchcase(one, pattern) or fnmatchcase(one, f"{pattern}.*") for one in names)
    return any(f".{pattern}." in f".{one}." for one in names)
