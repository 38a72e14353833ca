"""The service that a measured point is of, and the requests that it was given, in Braid's words.

A campaign measures a closed loop: c requests are in flight, and as many follow as the campaign has prompts (ten times c
unless the point says so); all of them are simulated, from an idle server to the last token, as its clients saw them.
Lengths are even in [ratio x length, length] where the campaign draws them, else all alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from simulator import np
from simulator.errors import InputError
from simulator.paths import did_you_mean, names
from simulator.serving import trtllm_bench
from simulator.serving.arrivals import arrivals
from simulator.serving.drafting import draft_settings
from simulator.serving.formats import MAX_TOKENS
from simulator.serving.launches import (
    CAMPAIGNS,
    CAPTURED,
    OFFLINE,
    captured_rows,
    framework_of,
    launch_settings,
    merged,
    of_server,
    of_step,
    own_settings,
    prompts_at_once,
)
from simulator.serving.lengths import uniform
from simulator.serving.requests import Requests, independent
from simulator.serving.settings import CacheSettings, Front, Host, Instances, Scheduling, Service
from simulator.study.step import StepWords, step_of

MACHINES = {"A100": "dgx_a100", "H100": "dgx_h100", "H200": "dgx_h200", "B200": "dgx_b200", "GB200": "gb200_nvl72",
            "H20": "hgx_h20", "H800": "h800_cluster"}  # fmt: skip
FAMILIES = {"llama-70b": "llama_3_1_70b", "llama-8b": "llama_3_1_8b", "llama-405b": "llama_3_1_405b",
            "llama2-70b": "llama_2_70b", "llama2-7b": "llama_2_7b", "mistral 7b": "mistral_7b",
            "qwen3-32b": "qwen3_32b", "qwen3-30b": "qwen3_30b_a3b", "qwen3-235b": "qwen3_235b",
            "qwen3-coder-480b": "qwen3_coder_480b", "qwen3-next-80b": "qwen3_next_80b",
            "qwen3.5-397b": "qwen3_5_397b", "deepseek-v3arch": "deepseek_r1", "kimi-k2": "kimi_k2",
            "deepseek-v3.2": "deepseek_v3_2", "glm-5": "glm_5",
            "gpt-oss-120b": "gpt_oss_120b", "gpt-oss-20b": "gpt_oss_20b",
            "llama4-maverick": "llama_4_maverick", "llama4-scout": "llama_4_scout"}  # fmt: skip
"""Families of models that are told apart by their shapes alone."""
PRECISIONS = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "fp4": "nvfp4", "int4": "int4",
              "int4_wo": "int4", "mxfp4": "mxfp4", "int8": "int8", "bf16": "bf16", "bf16/native": ""}  # fmt: skip


CHECKPOINTS = {
    ("deepseek-v3arch", "fp8"): "",  # as DeepSeek published it: blocks of 128 x 128
    ("deepseek-v3arch", "fp8_block"): "",
    ("deepseek-v3.2", "fp8"): "",
    ("glm-5", "fp8"): "",
    ("deepseek-v3arch", "nvfp4"): "all=nvfp4,attention=bf16",  # nvidia/DeepSeek-R1-0528-FP4, model card
    ("deepseek-v3arch", "fp4"): "all=nvfp4,attention=bf16",
    ("kimi-k2", "nvfp4"): "all=nvfp4,attention=bf16",  # nvidia/Kimi-K2-Thinking-NVFP4, model card
    ("kimi-k2", "fp4"): "all=nvfp4,attention=bf16",
    ("kimi-k2", "int4"): "all=bf16,experts=int4",  # moonshotai/Kimi-K2-Thinking, model card: the experts alone
    ("kimi-k2", "int4_wo"): "all=bf16,experts=int4",
}
"""By family and published word: what checkpoints of that family quantise."""


MOST_REQUESTS = 10_000_000
"""Of one point."""
ROUNDS = 10
"""Prompts of a campaign, for each request in flight (num_prompts of InferenceX's scripts)."""
RATIOS = {**dict.fromkeys(CAMPAIGNS, 0.8), "sglang_cookbook": 1e-6, "sglang_cookbook_jsx": 1e-6}
"""Shortest over longest length, where a campaign draws them."""


class NotExpressible(InputError):  # noqa: N818
    """A point of which something cannot be said in Braid's words; the text is the reason."""


class Measured(NamedTuple):
    """concurrency: requests in flight in a closed loop; 0: they come at their times."""

    service: Service
    requests: Requests
    concurrency: int


def measured(point: Mapping[str, Any]) -> Measured:
    """Of one replica; NotExpressible or another of Braid's errors where it cannot be."""
    if draft_settings(point) is None:
        raise NotExpressible(f"speculative: {point['speculative']}")
    concurrency, rate = _load(point)
    return Measured(_service(point), _requests(point, concurrency, rate), concurrency)


def gpus_of(point: Mapping[str, Any]) -> tuple[int, int]:
    """GPUs of a replica, and how many replicas there are. Engines that prefill and decode apart are one."""
    parts = parts_of(point)
    ranks = sum(part.workers * part.ranks for part in parts.values())
    replicas, rest = divmod(_whole("n_gpus", point.get("n_gpus") or ranks), ranks)
    if rest or not replicas or (len(parts) > 1 and replicas > 1):
        raise NotExpressible(f"{point['n_gpus']} GPUs are no whole replicas of "
                             f"{' and '.join(part.words for part in parts.values())}")
    return ranks, replicas


def mean_lengths(point: Mapping[str, Any]) -> tuple[float, float]:
    """Tokens of prompts and outputs."""
    prompt, output = (point.get(f"{side}_mean", point.get(side)) for side in ("isl", "osl"))
    if not isinstance(prompt, int | float) or not isinstance(output, int | float) or prompt < 1 or output < 1:
        raise NotExpressible("no isl or osl")
    if max(prompt, output) > MAX_TOKENS:
        raise NotExpressible(f"isl is {prompt:g}, osl {output:g}: each must be at most {MAX_TOKENS} tokens")
    return prompt, output


def _load(point: Mapping[str, Any]) -> tuple[int, float]:
    """Requests in flight, or a second (inf: all at once), of one replica."""
    _, replicas = gpus_of(point)
    concurrency, rate = point.get("replica_concurrency"), point.get("request_rate")
    if concurrency is None and isinstance(point.get("concurrency"), int):
        concurrency = max(round(point["concurrency"] / replicas), min(point["concurrency"], 1))
    if isinstance(concurrency, int) and concurrency >= 1:
        return concurrency, 0.0
    if str(rate).startswith("inf"):
        return 0, float("inf")
    if isinstance(rate, int | float) and rate > 0:
        return 0, rate / replicas
    raise NotExpressible("no concurrency and no request_rate: no load")


def _requests(point: Mapping[str, Any], concurrency: int, rate: float) -> Requests:
    prompt, output = mean_lengths(point)
    total = point.get("num_prompts")
    count = _whole("num_prompts", total) // gpus_of(point)[1] if total else 0
    count = count or ROUNDS * concurrency or prompts_at_once(point, prompt, output)
    if count > MOST_REQUESTS:
        raise NotExpressible(f"{count} requests: at most {MOST_REQUESTS:,} can be simulated")
    ratio = point.get("range_ratio") or RATIOS.get(str(point.get("source_kind")), 1.0)
    if not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise NotExpressible(f"range_ratio is {ratio!r}: it must be a number above 0, at most 1")
    random = np.random.default_rng(0)
    lengths = [uniform(count, max(round(2 * mean / (1 + ratio)), 1), ratio, random) for mean in (prompt, output)]
    times = np.zeros(count) if concurrency else arrivals(count, rate, seed=1)  # not the draws of lengths
    return independent(times, *lengths)


def _service(point: Mapping[str, Any]) -> Service:
    framework, launched = framework_of(point), launch_settings(point)
    if framework not in CAPTURED:
        raise NotExpressible(f"framework {framework}: there are {', '.join(CAPTURED)}")
    parts = {role: _instances(point, part, framework, launched) for role, part in parts_of(point).items()}
    front = Front(**of_server(launched, "front"))
    return Service(title=str(point["id"]), front=front, **parts)


def _instances(point: Mapping[str, Any], part: _Engines, framework: str, launched: Mapping[str, str]) -> Instances:
    machine = MACHINES.get(str(point.get("gpu_key")), str(point.get("machine", "")))
    if not machine:
        raise NotExpressible(f"gpu_key {point.get('gpu_key')}: no such machine; there are {', '.join(MACHINES)}, or "
                             "`machine` names one of the library")
    precision, drafts = precision_of(point), draft_settings(point) or {}
    settings = merged({"knobs.precision": precision} if precision else {}, of_step(launched)) | drafts
    step = step_of(StepWords(_model(point), machine, framework, part.words, "decode", settings))
    if point.get("source_kind") in OFFLINE:
        prompt, output = (round(mean) for mean in mean_lengths(point))
        knobs: Any = step.knobs
        model, memory_bytes = knobs.model_of(step.transformer()), step.machine_spec().chip.hbm.capacity.si
        limits = trtllm_bench.limits(model, memory_bytes, part.tp * part.dp, part.pp, prompt, output)
        launched = {**launched, **limits, **own_settings(point)}
    scheduling = Scheduling(scheduler=framework, **of_server(launched, "scheduling"))
    cache = CacheSettings(enable_prefix_caching=False, **of_server(launched, "cache"))
    capture = captured_rows(point, 1 + int(drafts.get("batch.drafts", 0)))
    return Instances(count=part.workers, step=step, capture=capture, scheduling=scheduling, cache=cache,
                     host=Host(**of_server(launched, "host")))  # fmt: skip


def _model(point: Mapping[str, Any]) -> str:
    family, model = str(point.get("family", "")), str(point.get("model", ""))
    if family in FAMILIES:
        return FAMILIES[family]
    if model in names("workloads/models") or model.endswith((".json", ".toml")):
        return model
    hint = did_you_mean(model or family, (*FAMILIES, *names("workloads/models")))
    raise NotExpressible(f"model {model or family}: not in the library{hint}; family or model names one, or a "
                         "config.json")


class _Engines(NamedTuple):
    """Engines that are alike, by their axes as frameworks name them: tp is all ranks that share a request, dp groups of
    them."""

    workers: int
    tp: int
    pp: int
    ep: int
    dp: int

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def words(self) -> str:
        return f"tp={self.tp},dp={self.dp},pp={self.pp},ep={self.ep}"


def parts_of(point: Mapping[str, Any]) -> dict[str, _Engines]:
    """One replica by what its engines are for, in the words of a service: "engines", and "prefill" where they prefill
    and decode apart."""
    layout, mode = trtllm_bench.layout_of(point), point.get("mode") or "agg"
    if mode != "disagg":
        return {"engines": _engines("layout", layout)}
    if not isinstance(layout, Mapping) or not {"prefill", "decode"} <= set(layout):
        raise NotExpressible("mode disagg: layout has no prefill and decode")
    return {role: _engines(f"layout.{name}", layout[name]) for role, name in (("prefill", "prefill"),
                                                                             ("engines", "decode"))}  # fmt: skip


def _engines(where: str, layout: Any) -> _Engines:
    """From axes as campaigns name them: tp or tp_size, ep or moe_ep_size, attention_dp or attention_dp_size."""
    layout = layout if isinstance(layout, Mapping) else {}
    given = {name: layout.get(name) or layout.get(f"{name}_size") for name in ("tp", "pp", "attention_dp")}
    given["ep"] = layout.get("ep") or layout.get("moe_ep_size")
    if not given["tp"]:
        raise NotExpressible(f"no {where} with tp")
    tp, pp, ep, dp = (_whole(f"{where}.{name}", given[name] or 1) for name in ("tp", "pp", "ep", "attention_dp"))
    return _Engines(_whole(f"{where}.num_workers", layout.get("num_workers") or 1), tp, pp, ep, dp)


def _whole(key: str, value: Any) -> int:
    """A count as a point has it: a number, or one as text."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        found = 0
    if found < 1:
        raise NotExpressible(f"{key} is {value!r}: it must be a whole number, at least 1")
    return found


def precision_of(point: Mapping[str, Any]) -> str:
    """Settings of `knobs.precision`; none where the checkpoint's own is meant, as with MXFP4 of gpt-oss.

    What is published of a family is one word for all its matrices; its checkpoints may quantise fewer.
    """
    family = str(point.get("family", ""))
    if family.startswith("gpt-oss"):  # on Blackwell with activations in FP8: vLLM's and TensorRT-LLM's recipes for it
        return "experts=mxfp4_fp8" if str(point.get("gpu_key")) in ("B200", "GB200") else ""
    model = str(point.get("model", ""))
    if model.startswith("Qwen/") and model.endswith("-FP8"):  # blocks of 128 x 128, by its model cards
        return "all=fp8_block"
    word = str(point.get("gemm_quant") or point.get("quantisation") or "")
    if (family, word) in CHECKPOINTS:
        return CHECKPOINTS[family, word]
    gemm = word
    moe = str(point.get("moe_quant") or gemm)
    for word in (gemm, moe):
        if word not in PRECISIONS and word:
            raise NotExpressible(f"quantisation {word}: none of {', '.join(PRECISIONS)}")
    dense, experts = PRECISIONS.get(gemm, ""), PRECISIONS.get(moe, "")
    return f"all={dense},experts={experts}" if dense and experts else ""
