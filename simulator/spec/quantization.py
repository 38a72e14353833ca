"""In what a checkpoint has its weights: the `quantization_config` of a config.json as a table of precisions.

Router, embedding and head stay BF16: no method quantises them unless told to, and published checkpoints do not. A
module is quantised where all its projections are; one left out of some layers alone counts as its last layer has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from simulator.spec.typed_toml import line

_MODELOPT = {"FP8": "fp8", "FP8_PB_WO": "fp8_block", "FP8_PB_REAL": "fp8_block", "NVFP4": "nvfp4", "MXFP4": "mxfp4",
             "W4A16_AWQ": "int4"}
_METHODS = "fp8, fbgemm_fp8, compressed-tensors, modelopt, awq, gptq, mxfp4"
_STATES = {"float32": "fp32", "bfloat16": "bf16"}
_LEFT_OUT = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
MOST_SIGNS, MOST_REPEATS = 1000, 5
"""Of a regular expression in a config.json, which is data: none may take more than a fraction of a second."""
_GROUP_REPEATED, _REPEATS = re.compile(r"\)[*+{?]"), re.compile(r"[*+{]")
_WRAPPERS = ("", "language_model.", "model.language_model.")


def precision_table(whole: Mapping[str, Any], text: Mapping[str, Any], path: Path,
                    mistakes: list[str]) -> dict[str, str] | None:
    """The table of precisions, with its source; None where nothing is quantised. Appends to `mistakes`.

    whole, text: the config, and the part of it that describes the language model. NVIDIA's checkpoints keep theirs in
    hf_quant_config.json beside the config.
    """
    given, source = whole.get("quantization_config") or text.get("quantization_config"), f"{path}, quantization_config"
    beside = path.with_name("hf_quant_config.json")
    try:
        if not given and path.name == "config.json" and beside.is_file():
            given, source = _beside(beside), f"{beside}, quantization"
        if not given:
            return None
        dtype, left_out = _dtype(_object(given)), _left_out(given)
    except _WrongError as error:
        mistakes.append(f"{source.replace(', ', ': ')}{error}")
        return None
    table = {module: dtype for module, names in _projections(text)
             if not any(_matches(pattern, name) for pattern in left_out for name in names)}
    if given.get("quant_method") == "mxfp4":
        table = {"experts": dtype}  # its integration in transformers knows experts alone
    return {**table, **_cache(given), "source": source}


def with_state(table: dict[str, str] | None, text: Mapping[str, Any], path: Path,
               mistakes: list[str]) -> dict[str, str] | None:  # fmt: skip
    """The table with what states of linear attention are kept in, where the config says so. Appends to `mistakes`."""
    word = text.get("mamba_ssm_dtype")
    if word is None:
        return table
    if not isinstance(word, str) or word not in _STATES:
        mistakes.append(line(str(path), "mamba_ssm_dtype", word, f"must be one of {', '.join(_STATES)}"))
        return table
    source = f"{path}, mamba_ssm_dtype"
    if table:
        source = f"{table['source']}; mamba_ssm_dtype"
    return {**(table or {}), "state": _STATES[word], "source": source}


class _WrongError(ValueError):
    """What is wrong in a configuration: its text is ".key: got VALUE: what is right"."""

    def __init__(self, key: str, got: Any, right: str) -> None:
        super().__init__(line("", key and f".{key}", got, right).removeprefix(": "))


def _beside(file: Path) -> Any:
    """The quantisation in hf_quant_config.json."""
    try:
        return _object(json.loads(file.read_text(encoding="utf-8"))).get("quantization")
    except (OSError, ValueError, RecursionError) as error:
        raise _WrongError("", str(error), "must be a file of JSON with an object") from None


def _object(given: Any, key: str = "") -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise _WrongError(key, given, "must be an object")
    return given


def _left_out(given: Mapping[str, Any]) -> list[str]:
    """Patterns of modules that are not quantised, by any of the keys that methods have for them."""
    for key in _LEFT_OUT:
        found = given.get(key)
        if not isinstance(found, list | None) or not all(isinstance(one, str) for one in found or ()):
            raise _WrongError(key, found, "must be a list of names or patterns")
        for pattern in found or ():
            _check(pattern, key)
    return [pattern for key in _LEFT_OUT for pattern in given.get(key) or ()]


def _check(pattern: str, key: str) -> None:
    """Refuses what is no regular expression."""
    try:
        re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
    except re.error as error:
        raise _WrongError(key, pattern, f"is no regular expression: {error}") from None
    if pattern.startswith("re:") and (len(pattern) > MOST_SIGNS or _GROUP_REPEATED.search(pattern)
                                      or len(_REPEATS.findall(pattern)) > MOST_REPEATS):
        right = (f"is a regular expression that may take for ever: at most {MOST_SIGNS} signs, {MOST_REPEATS} of them "
                 "*, + or {, and none of these behind a group, are right")
        raise _WrongError(key, pattern, right)


def _dtype(given: Mapping[str, Any]) -> str:
    """The precision of what is quantised; _WrongError where it is none that is known."""
    method, algorithm = given.get("quant_method"), given.get("quant_algo")
    if algorithm is not None:
        if str(algorithm) not in _MODELOPT:
            raise _WrongError("quant_algo", algorithm, f"must be one of {', '.join(_MODELOPT)}")
        return _MODELOPT[str(algorithm)]
    if method == "fp8":
        return _block(given.get("weight_block_size"), "weight_block_size")
    if method == "fbgemm_fp8":
        return "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("awq", "gptq"):
        if given.get("bits") != 4:
            raise _WrongError("bits", given.get("bits"), "must be 4")
        return "int4"
    if given.get("config_groups"):
        groups = _object(given["config_groups"], "config_groups").values()
        found = {_of_group(_object(group, "config_groups")) for group in groups}
        if len(found) > 1:
            raise _WrongError("config_groups", ", ".join(sorted(found)), "must all be of one precision")
        return found.pop()
    raise _WrongError("quant_method", method, f"must be one of {_METHODS}")


def _of_group(group: Mapping[str, Any]) -> str:
    """The precision of one group of compressed-tensors (or of modelopt, which writes them alike)."""
    weights, inputs = _object(group.get("weights") or {}, "config_groups.weights"), group.get("input_activations")
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
    raise _WrongError("config_groups.weights", f"{kind} of {bits} bits", right)


def _block(size: Any, key: str) -> str:
    """FP8 per tensor (or channel), or in blocks."""
    if size is None:
        return "fp8"
    if size != [128, 128]:
        raise _WrongError(key, size, "must be [128, 128], or left out for a scale per tensor")
    return "fp8_block"


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
