"""How measured services were launched, where a campaign's scripts say more than its table of results.

InferenceX (SemiAnalysisAI/InferenceX, formerly InferenceMAX: `benchmarks/`, one script for each model, precision, GPU
and framework, which serve `vllm`, `sglang.launch_server` or `trtllm-serve`) publishes a model, a precision, a layout;
its scripts also choose the data type of the cache, kernels of routed experts, and fusions: read from them below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from simulator.errors import InputError

CAMPAIGNS = ("inferencex", "inferencex_snapshot", "nebius_inferencex")
"""`source_kind` of points that were measured with these scripts."""


OWN = ("knobs.", "routing.", "machine.")
"""What a point may set by itself."""


class Launch(NamedTuple):
    """Settings of a family's scripts; frameworks, gpus: of which (none: all). until: of points before this date."""

    family: str
    settings: Mapping[str, str]
    frameworks: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    until: str = ""


FP8_CACHE = {"knobs.precision": "kv=fp8"}
LAUNCHES = (
    # --kv-cache-dtype fp8; kv_cache_config: dtype: fp8
    Launch("llama-70b", FP8_CACHE),
    Launch("gpt-oss-120b", FP8_CACHE, gpus=("B200",)),
    Launch("deepseek-v3arch", FP8_CACHE, ("trtllm",)),
    Launch("deepseek-v3arch", FP8_CACHE, ("sglang",), ("B200",)),
    # no --compilation-config, in releases that fused AllReduce and norm only where it said so; the date is inferred
    Launch("llama-70b", {"knobs.norm_in_all_reduce": "false"}, ("vllm",), ("H100", "H200"), until="2025-12"),
    # VLLM_MXFP4_USE_MARLIN=1; Blackwell: VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1, and the like of TensorRT-LLM
    Launch("gpt-oss-120b", {"knobs.precision": "experts=mxfp4_marlin"}, ("vllm",), ("H100", "H200")),
)


def launch_settings(point: Mapping[str, Any]) -> dict[str, str]:
    """Settings that the scripts behind a measured point made, and then those that it names itself (`settings`)."""
    found: dict[str, str] = {}
    for one in LAUNCHES if point.get("source_kind") in CAMPAIGNS else ():
        if _is_of(point, one):
            found = merged(found, one.settings)
    return merged(found, _own(point))


def merged(settings: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Both, where precisions of different modules stand beside each other."""
    both = {**settings, **more}
    words = [given["knobs.precision"] for given in (settings, more) if given.get("knobs.precision")]
    return {**both, "knobs.precision": ",".join(words)} if words else both


def _own(point: Mapping[str, Any]) -> dict[str, str]:
    own = point.get("settings") or {}
    if not isinstance(own, Mapping):
        raise InputError(f'settings: got {own!r}: an object such as {{"knobs.precision": "kv=fp8"}} is right')
    for key in own:
        if not str(key).startswith(OWN):
            raise InputError(f"settings: {key}: a point's own are those of {', '.join(OWN)}; the rest follows from "
                             "layout, concurrency, isl and osl")
    return {str(key): _text(value) for key, value in own.items() if value is not None}


def _text(value: Any) -> str:
    """As a command line has it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_of(point: Mapping[str, Any], launch: Launch) -> bool:
    date, framework = str(point.get("date") or ""), str(point.get("fw_key", point.get("framework", ""))).lower()
    return (point.get("family") == launch.family
            and (not launch.frameworks or framework in launch.frameworks)
            and (not launch.gpus or point.get("gpu_key") in launch.gpus)
            and (not launch.until or "" < date < launch.until))  # fmt: skip
