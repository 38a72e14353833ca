"""One server of 8 GPUs, for each of four models: prefill and decode together.

Limits of schedulers are the defaults of the engine where it is started as an API server on a GPU of 70 GB or more: vLLM
8192 tokens and 1024 requests in a step (EngineArgs.get_batch_defaults, vllm/engine/arg_utils.py). SGLang sets its limit
of requests by the memory, and chunks of prompts by that of the GPU: 8192 tokens on those of 80 GB and more is assumed
here, and as many requests as vLLM has.
"""

from __future__ import annotations

from typing import Literal

from simulator.serving.settings import CacheSettings, Instances, Load, Scheduling, Service
from simulator.study.step import StepWords, step_of

REQUESTS, TOKENS = 1024, 8192  # in a step


def llama_3_1_70b() -> Service:
    """Llama-3.1-70B on 8 H100, TP8, vLLM."""
    return _server("Llama-3.1-70B on 8 H100, TP8, vLLM", "llama_3_1_70b", "dgx_h100", "vllm", "tp=8")


def gpt_oss_120b() -> Service:
    """gpt-oss-120b on 8 H100, TP8, vLLM."""
    return _server("gpt-oss-120b on 8 H100, TP8, vLLM", "gpt_oss_120b", "dgx_h100", "vllm", "tp=8")


def qwen3_235b() -> Service:
    """Qwen3-235B-A22B on 8 H200, TP8, vLLM."""
    return _server("Qwen3-235B-A22B on 8 H200, TP8, vLLM", "qwen3_235b", "dgx_h200", "vllm", "tp=8")


def qwen3_235b_dp() -> Service:
    """Qwen3-235B-A22B on 8 H200, attention data parallel, experts expert parallel, vLLM."""
    return _server("Qwen3-235B-A22B on 8 H200, DP8 and EP8, vLLM", "qwen3_235b", "dgx_h200", "vllm", "dp=8,ep=8")


def deepseek_r1() -> Service:
    """DeepSeek-R1 on 8 H200, TP8, SGLang."""
    return _server("DeepSeek-R1 on 8 H200, TP8, SGLang", "deepseek_r1", "dgx_h200", "sglang", "tp=8")


def deepseek_r1_dp() -> Service:
    """DeepSeek-R1 on 8 H200, attention data parallel, experts expert parallel, SGLang."""
    return _server("DeepSeek-R1 on 8 H200, DP8 and EP8, SGLang", "deepseek_r1", "dgx_h200", "sglang", "dp=8,ep=8")


def _server(title: str, model: str, machine: str, stack: Literal["vllm", "sglang"], mesh: str) -> Service:
    # a page of SGLang's cache has one token; blocks of 16 are counted for both: a request then holds 8 tokens more
    scheduling = Scheduling(scheduler=stack, max_num_seqs=REQUESTS, max_num_batched_tokens=TOKENS)
    step = step_of(StepWords(model, machine, stack, mesh, "decode", {}))
    return Service(title=title, engines=Instances(step=step, scheduling=scheduling, cache=CacheSettings(block_size=16)),
                   load=Load(requests=256, concurrency=64, input_tokens=1024, output_tokens=256))  # fmt: skip
