"""DeepSeek-R1 on 8 GB200, attention data parallel and experts expert parallel: prompts at once, and waiting for others.

Published by NVIDIA, "ADP Balance Strategy" (TensorRT-LLM, docs/source/blogs/tech_blog/blog10): 16,000 requests with
803 tokens of prompt and 3,653 of output on average, both widely spread; prompts placed by their tokens, and then with
`timeout_iters` 50 as well. Its average balance of the first, 54.1%, is to the digit what its throughputs with even
groups and without give (39,552 / 25,664 - 1): as a share of the time these are 64.9%.

Assumed: lengths are even from 1 to twice their mean (the source shows a long tail as a picture); weights in NVFP4 with
attention in BF16 and a cache in FP8, as NVIDIA serves this model on Blackwell; 512 requests of a GPU: all prompts are
said to be computed within 12,000 steps, and 16,000 requests of 3,653 steps then need 470 places. With fewer requests
less of the time has prompts in it, so balance is better and waiting gains less.

Steps of so many sizes are simulated: minutes the first time, ten seconds from then on.
"""

from __future__ import annotations

from simulator.serving.launches import one_engine
from simulator.serving.settings import Load, Service, changed
from simulator.study.scenario import Source
from simulator.study.step import StepWords

REQUESTS, PER_GPU = 16_000, 512
INPUT, OUTPUT = 803, 3653  # tokens, on average
PRECISION = "all=nvfp4,attention=bf16,kv=fp8"

_expect = Source("TensorRT-LLM, DeepSeek on 8 GB200 with attention DP").expects


def round_robin() -> Service:
    """Prompts as soon as there is room for them, those that come together dealt out by their tokens."""
    balance = _expect(
        "trt.adp", "attention_dp_balance_ratio", 0.541,
        ": mean over steps, as the source defines it; 0.49 in steps with prompts, 0.66 as a share of the time, where"
        " the source's throughputs give 0.65: its mean is of other steps, or is their ratio less 1: 54.1%, here 51.2%",
    )  # fmt: skip
    return _service("prompts at once", 0).model_copy(update={"expected": (balance,)})


def context_wait() -> Service:
    """Prompts wait for those of other GPUs, for 50 steps at most."""
    gain = _expect(
        "trt.adp", "output_token_throughput", 1.31,
        ": whole run. Steps with prompts take 136 ms here; with those of the source, 34% longer on average, waiting"
        " would save more. Data types, places and the tail of lengths are assumed", against="attention_dp:round_robin",
    )  # fmt: skip
    return _service("prompts wait for each other", 50).model_copy(update={"expected": (gain,)})


def _service(title: str, timeout: int) -> Service:
    words = StepWords("deepseek_r1", "gb200_nvl72", "trtllm", "dp=8,ep=8", "decode", {"knobs.precision": PRECISION})
    load = Load(requests=REQUESTS, rate=float("inf"), input_tokens=2 * INPUT, output_tokens=2 * OUTPUT,
                range_ratio=0.001)  # fmt: skip
    settings = {"shared_queue": "true", "max_num_seqs": str(PER_GPU), "attention_dp_config.timeout_iters": str(timeout),
                "attention_dp_config.enable_balance": str(timeout > 0), "attention_dp_config.batching_wait_iters": "0"}
    service = changed(one_engine(words), {f"engines.scheduling.{key}": text for key, text in settings.items()})
    return service.model_copy(update={"title": f"DeepSeek-R1 on 8 GB200, DP8 and EP8, {title}", "load": load})
