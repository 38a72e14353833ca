"""How measured services were launched, where a campaign's scripts say more than its table of results.

InferenceX (SemiAnalysisAI/InferenceX, formerly InferenceMAX: `benchmarks/`, one script for each model, precision, GPU
and framework, which serve `vllm`, `sglang.launch_server` or `trtllm-serve`) publishes a model, a precision, a layout;
its scripts also choose the data type of the cache, kernels of routed experts, fusions, and tokens of a step: read from
them below. What they leave is as the frameworks have it by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from simulator.errors import InputError
from simulator.serving import trtllm_bench
from simulator.serving.settings import Instances, Scheduling, Service, changed
from simulator.study.step import StepWords, step_of

CAMPAIGNS = ("inferencex", "inferencex_snapshot", "nebius_inferencex")
"""`source_kind` of points that were measured with these scripts."""
OFFLINE = (trtllm_bench.CAMPAIGN,)
AT_ONCE = 2048
"""Requests that are simulated where a load has no number of its own."""


def prompts_at_once(point: Mapping[str, Any], prompt: float, output: float) -> int:
    """Requests of a load that has no number of its own."""
    known = trtllm_bench.REQUESTS if point.get("source_kind") in OFFLINE else {}
    return known.get((round(prompt), round(output)), AT_ONCE)


OF_STEP, OF_SERVER = ("knobs.", "routing.", "machine."), ("scheduling.", "cache.", "host.", "front.")
"""What a point may set by itself: of a step, and of the engine and the servers around it."""


class Launch(NamedTuple):
    """Settings of a family's scripts ("": of every one); frameworks, gpus, quantisations: of which (none: all). until:
    of points before this date; lengths: with this nominal isl and osl; below_tp: with fewer tensor-parallel ranks (0:
    any); in_flight: with so many requests or more; mode: "agg", where prefill and decode are together ("": any);
    campaigns: `source_kind` of points that they are behind."""

    family: str
    settings: Mapping[str, str]
    frameworks: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    until: str = ""
    lengths: tuple[int, int] = (0, 0)
    below_tp: int = 0
    in_flight: int = 0
    mode: str = ""
    quantisations: tuple[str, ...] = ()
    campaigns: tuple[str, ...] = CAMPAIGNS


TOKENS = "scheduling.max_num_batched_tokens"
BALANCE = "scheduling.attention_dp_config"
AHEAD = {"scheduling.async_scheduling": "true"}
"""vLLM: set by the scripts of 2025, the default since; SGLang: overlap schedule; TensorRT-LLM: overlap scheduler."""
_VLLM = {"front.request_ms": "6", "front.input_token_us": "4", "host.request_us": "20", "host.overlapped": "false"}
HOSTS: Mapping[str, Mapping[str, str]] = {
    "vllm": _VLLM,
    "sglang": _VLLM,
    "trtllm": {"front.request_ms": "6", "front.input_token_us": "8", "host.request_us": "30"},
}
"""What HTTP, tokeniser and host take of a request, of a token of its prompt, and of a token that it is given: fitted on
half of a sample of measured points (`results/calibration.md`). SGLang's are vLLM's: its points tell nothing of them."""
DEFAULTS: Mapping[str, Mapping[str, str]] = {
    # vllm/engine/arg_utils.py: 8192 tokens for a server on GPUs of 70 GiB and more; vllm/config/cache.py
    "vllm": AHEAD | {TOKENS: "8192", "cache.gpu_memory_utilization": "0.9"},
    # sglang/srt/server_args.py: chunked_prefill_size; mem_fraction_static of what 8 GPUs get
    "sglang": AHEAD | {TOKENS: "8192", "cache.gpu_memory_utilization": "0.85"},
    # tensorrt_llm/llmapi/llm_args.py: max_num_tokens, enable_chunked_prefill, KvCacheConfig; executor_request_queue.py
    "trtllm": AHEAD | {TOKENS: "8192", "scheduling.enable_chunked_prefill": "false", "scheduling.max_num_seqs": "2048",
                       "scheduling.shared_queue": "true",
                       "cache.gpu_memory_utilization": "1", "cache.free_gpu_memory_fraction": "0.9"},
}  # fmt: skip
CAPTURED: Mapping[str, tuple[int, ...]] = {
    # cudagraph_capture_sizes of vllm/config/vllm.py
    "vllm": (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)),
    # capture_bs of sglang/srt/server_args.py
    "sglang": (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16)),
    # _generate_cuda_graph_batch_sizes of tensorrt_llm/llmapi/llm_args.py, with padding
    "trtllm": (1, 2, 4, *range(8, 129, 8), 256, 512, 1024, 2048),
}


def captured_rows(point: Mapping[str, Any], queries: int) -> tuple[int, ...]:
    """Requests of captured graphs where each has so many query tokens: vLLM's sizes are of tokens, in multiples of
    those of a request; the others' are of requests."""
    framework = framework_of(point)
    sizes = trtllm_bench.CAPTURED if point.get("source_kind") in OFFLINE else CAPTURED[framework]
    return tuple(sorted({-(-size // queries) for size in sizes})) if framework == "vllm" else sizes


FP8_CACHE = {"knobs.precision": "kv=fp8"}
WAIT_60 = {f"{BALANCE}.enable_balance": "true", f"{BALANCE}.timeout_iters": "60", f"{BALANCE}.batching_wait_iters": "0"}
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
    # --max_num_tokens, and of DeepSeek concurrency + isl + 64, rounded up, at least 8192
    Launch("llama-70b", {TOKENS: "16384"}, ("trtllm",)),
    Launch("llama-70b", {"scheduling.batch_wait_timeout_iters": "20", "scheduling.batch_wait_max_tokens_ratio": "0.9"},
           ("trtllm",), lengths=(1024, 1024), below_tp=8),
    *(Launch("deepseek-v3arch", {"scheduling.batch_wait_timeout_iters": steps,
                                 "scheduling.batch_wait_max_tokens_ratio": share}, ("trtllm",), ("B200",),
             lengths=(1024, 1024), in_flight=in_flight, quantisations=("fp8",))
      for in_flight, steps, share in ((64, "40", "0.8"), (256, "0", "0"))),
    Launch("gpt-oss-120b", {TOKENS: "20000", "cache.free_gpu_memory_fraction": "0.85"}, ("trtllm",)),
    Launch("deepseek-v3arch", {TOKENS: "8512", "cache.free_gpu_memory_fraction": "0.8"}, ("trtllm",)),
    # attention_dp_config, of scripts with DP_ATTENTION; nothing where attention is not data parallel
    Launch("deepseek-v3arch", WAIT_60, ("trtllm",), mode="agg"),
    Launch("gpt-oss-120b", {f"{BALANCE}.enable_balance": "true"}, ("trtllm",), ("B200",), mode="agg"),
    # --chunked-prefill-size, --mem-fraction-static
    Launch("deepseek-v3arch", {TOKENS: "32768", "cache.gpu_memory_utilization": "0.82"}, ("sglang",), ("H200",)),
    Launch("deepseek-v3arch", {TOKENS: "16384", "cache.gpu_memory_utilization": "0.85"}, ("sglang",), ("B200",)),
    # --scheduler-recv-interval
    *(Launch(family, {"scheduling.scheduler_recv_interval": steps}, ("sglang",), ("B200",), in_flight=in_flight,
             mode="agg")
      for family in ("deepseek-v3arch", "qwen3.5-397b") for in_flight, steps in ((1, "10"), (16, "30"))),
    # --gpu-memory-utilization
    Launch("kimi-k2", {"cache.gpu_memory_utilization": "0.95"}, ("vllm",)),
    # --chunked-prefill-size, --mem-fraction-static; --kv-cache-dtype fp8_e4m3 --mamba-ssm-dtype bfloat16 but for BF16
    Launch("qwen3.5-397b", {TOKENS: "32768", "cache.gpu_memory_utilization": "0.82"}, ("sglang",),
           quantisations=("bf16",)),
    Launch("qwen3.5-397b", {TOKENS: "16384", "cache.gpu_memory_utilization": "0.8",
                            "knobs.precision": "kv=fp8,state=bf16"}, ("sglang",), quantisations=("fp8", "fp4")),
    # --enable-prefix-caching, of which vLLM makes align (experimental/token_position_decode_slo); no prompts are alike
    Launch("qwen3.5-397b", {"scheduling.mamba_cache_mode": "align"}, ("vllm",), campaigns=("inferencex_slo",)),
    # trtllm-bench (trtllm_bench.py): no server; --kv_cache_free_gpu_mem_fraction; _KV_CACHE_MAP of utils/general.py has
    # keys and values of FP8 and NVFP4 models in FP8; llm_options.yml of gpt-oss on Blackwell and of DeepSeek
    Launch("", {"front.request_ms": "0", "front.input_token_us": "0", "cache.free_gpu_memory_fraction": "0.95"},
           campaigns=OFFLINE),
    *(Launch(family, FP8_CACHE, campaigns=OFFLINE, quantisations=("fp8", "fp4")) for family in (
        "llama-8b", "llama-70b", "llama-405b", "llama4-maverick", "qwen3-30b", "qwen3-235b", "deepseek-v3arch")),
    Launch("gpt-oss-120b", FP8_CACHE, gpus=("B200", "GB200"), campaigns=OFFLINE),
    Launch("deepseek-v3arch", WAIT_60, campaigns=OFFLINE),
)  # fmt: skip


def launch_settings(point: Mapping[str, Any]) -> dict[str, str]:
    """Settings by default, then those that the scripts behind a measured point made, and those that it names itself
    (`settings`)."""
    framework = framework_of(point)
    found = {**DEFAULTS.get(framework, {}), **HOSTS.get(framework, {})}
    for one in LAUNCHES:
        if _is_of(point, one):
            found = merged(found, one.settings)
    return merged(found, own_settings(point))


def framework_of(point: Mapping[str, Any]) -> str:
    """By the name that stacks have."""
    return str(point.get("fw_key", point.get("framework", ""))).lower()


def of_step(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that say what a step is."""
    return {key: value for key, value in settings.items() if key.startswith(OF_STEP)}


def of_server(settings: Mapping[str, str], part: str) -> dict[str, Any]:
    """Those of a part of the service, by its own names; of its parts as tables."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if key.startswith(f"{part}."):
            *inner, name = key.split(".")[1:]
            place = found
            for one in inner:
                place = place.setdefault(one, {})
            place[name] = value
    return found


def merged(settings: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Both, where precisions of different modules stand beside each other."""
    both = {**settings, **more}
    words = [given["knobs.precision"] for given in (settings, more) if given.get("knobs.precision")]
    return {**both, "knobs.precision": ",".join(words)} if words else both


def own_settings(point: Mapping[str, Any]) -> dict[str, str]:
    """Those that a point names itself; InputError for what follows from its layout and load."""
    own = point.get("settings") or {}
    if not isinstance(own, Mapping):
        raise InputError(f'settings: got {own!r}: an object such as {{"knobs.precision": "kv=fp8"}} is right')
    for key in own:
        if not str(key).startswith(OF_STEP + OF_SERVER):
            raise InputError(f"settings: {key}: a point's own are those of {', '.join(OF_STEP + OF_SERVER)}; the rest "
                             "follows from layout, concurrency, isl and osl")
    return {str(key): _text(value) for key, value in own.items() if value is not None}


def _text(value: Any) -> str:
    """As a command line has it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_of(point: Mapping[str, Any], launch: Launch) -> bool:
    date, framework, concurrency = str(point.get("date") or ""), framework_of(point), point.get("concurrency")
    tp = int((point.get("layout") or {}).get("tp") or 1)
    return (launch.family in ("", point.get("family")) and point.get("source_kind") in launch.campaigns
            and (not launch.quantisations or point.get("quantisation") in launch.quantisations)
            and (not launch.frameworks or framework in launch.frameworks)
            and (not launch.gpus or point.get("gpu_key") in launch.gpus)
            and (not launch.below_tp or tp < launch.below_tp)
            and (not launch.in_flight or (isinstance(concurrency, int) and concurrency >= launch.in_flight))
            and (not launch.mode or launch.mode == (point.get("mode") or "agg"))
            and (not any(launch.lengths) or launch.lengths == (point.get("isl"), point.get("osl")))
            and (not launch.until or "" < date < launch.until))  # fmt: skip


def one_engine(words: StepWords) -> Service:
    """A service of one engine, launched as its stack is by default: scheduler, limits, captured graphs, host times."""
    step = step_of(words)
    framework = next((name for name in CAPTURED if step.kernels.startswith(name)), "vllm")
    title = f"{step.transformer().name}, an engine on {step.cards} cards of {words.machine}, {step.kernels}"
    scheduling = Scheduling.model_validate({"scheduler": framework})
    engines = Instances(step=step, scheduling=scheduling, capture=CAPTURED[framework])
    defaults = {**DEFAULTS[framework], **HOSTS[framework]}
    return changed(Service(name="alike engines", title=title, engines=engines),
                   {key if key.startswith("front.") else f"engines.{key}": text for key, text in defaults.items()})
