"""What `trtllm-bench throughput` makes of a model, its GPUs and the lengths of a load.

The tables of TensorRT-LLM (NVIDIA/TensorRT-LLM, docs/source/performance/perf-overview.md) are measured with it: as
many requests of tokens as it says for each length go to an engine all at once, without a server. Its limits follow from
the memory beside the weights (tensorrt_llm/bench/build/tuning.py, calc_engine_setting and finetune_setting):

    requests    R = 0.95 (GPUs x memory - weights) / ((prompt + output) x bytes of a token), at most 4096
    max_batch_size  R up to the next multiple of 32 (at least 64), of 128 from 256 on, of 256 from 1024 on
    max_num_tokens  R (1 + prompt / output), at most 32768, up to the next multiple of 256 (at least 2048), of 512 from
                    4096 on, of 1024 from 8192 on; at least prompt + max_batch_size, for prompts are not cut

(a stage of a pipeline has its share of R). Weights count by the type of most of them, latent attention as if all heads
had keys and values of hidden / heads.

Worked example. Llama 3.1 8B in FP8, with a cache in FP8, on an H100 (80 GiB), 128 + 2048 tokens: weights take 7.5 GiB,
a token 64 KiB, so R = 0.95 x 72.5 / (2176 / 16384) = 519: max_batch_size 640; 519 x 1.0625 = 551: max_num_tokens 2048.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import ceil
from typing import Any

from simulator.model.transformer import Experts, Grouped, Latent, Model, parameters

CAMPAIGN = "trtllm_doc"
"""`source_kind` of these points."""
REQUESTS = {
    (128, 128): 30_000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000, (1000, 2000): 1500,
    (1024, 1024): 3000, (1024, 8192): 1500, (1024, 32768): 1000, (2048, 128): 3000, (2048, 2048): 1500,
    (5000, 500): 1500, (8192, 1024): 1500, (20000, 2000): 1000, (32768, 1024): 1000,
}  # fmt: skip
"""By tokens of prompts and outputs (perf-overview.md, Preparing a Dataset)."""
CAPTURED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096)
"""Requests of captured graphs (cuda_graph_config of its llm_options.yml)."""
MIXED = ("llama4-maverick", "qwen3-235b")
"""Families with experts of which tables of 1.0 name the ranks alone; its options set `enable_attention_dp` for them."""

KV_SHARE, MOST_REQUESTS, MOST_TOKENS = 0.95, 4096, 32768


def layout_of(point: Mapping[str, Any]) -> Any:
    """As it was published, or as its options have it where the table names ranks alone. That experts are then one to a
    rank, not a slice of each, is assumed."""
    layout = point.get("layout")
    if point.get("source_kind") != CAMPAIGN or point.get("family") not in MIXED or not layout:
        return layout
    ranks = layout.get("tp") or 1
    return layout if (layout.get("attention_dp") or 1) > 1 else {**layout, "tp": 1, "attention_dp": ranks, "ep": ranks}


def limits(model: Model, memory_bytes: float, ranks: int, stages: int, prompt: int, output: int) -> dict[str, str]:
    """Settings of an engine's scheduling. memory_bytes: of a GPU; ranks: that share a layer; stages: of a pipeline."""
    weights = parameters(model) * _bytes_of_most(model)
    room = KV_SHARE * (ranks * stages * memory_bytes - weights)
    requests = min(room / (_token_bytes(model, ranks) * (prompt + output)), MOST_REQUESTS) / stages
    most = int(_up(requests, ((256, 32, 64), (1024, 128, 0), (0, 256, 0))))
    tokens = min(requests * (1 + prompt / output), MOST_TOKENS)
    tokens = max(_up(tokens, ((4096, 256, 2048), (8192, 512, 0), (0, 1024, 0))), prompt + most)
    return {"scheduling.max_num_seqs": str(most), "scheduling.max_num_batched_tokens": str(int(tokens))}


def _up(number: float, steps: tuple[tuple[int, int, int], ...]) -> float:
    """To the next multiple, at least the least, of the first step (end, multiple, least) that it lies below."""
    multiple, least = next((multiple, least) for end, multiple, least in steps if not end or number < end)
    return max(least, multiple * ceil(number / multiple))


def _bytes_of_most(model: Model) -> float:
    """Of a weight, as it counts those of experts, or else of dense blocks. MXFP4 is taken as NVFP4."""
    mixed = any(isinstance(layer.feed_forward, Experts) for layer in model.layers)
    dtype = model.precision.experts if mixed else model.precision.dense
    return 0.5 if dtype == "nvfp4" or dtype.startswith("mxfp4") else 1.0 if dtype.startswith("fp8") else 2.0


def _token_bytes(model: Model, ranks: int) -> float:
    """Of its keys and values in all layers, where every rank has a head of them."""
    each = 1.0 if model.precision.kv.startswith("fp8") else 2.0
    return sum(2.0 * each * max(ranks, heads) * size for heads, size in map(partial(_heads_of, model), model.layers))


def _heads_of(model: Model, layer: Any) -> tuple[int, int]:
    """Heads of keys and values, and values of each; none where a layer keeps a state instead."""
    attention = layer.attention
    if isinstance(attention, Grouped):
        return attention.kv_heads, attention.head_dim
    return (attention.heads, model.hidden // attention.heads) if isinstance(attention, Latent) else (0, 0)
