"""vLLM (V1 engine): rotation and the write to the cache are kernels of their own.

On Hopper and Blackwell a norm is part of the AllReduce before it; norm and SwiGLU write FP8 with the scales of the
checkpoint, attention does not. Up to 256 tokens the shared expert runs on a stream of its own.

Source: vllm-project/vllm, `model_executor/models/llama.py` (order of a layer), `v1/attention/backends/flash_attn.py`
(`reshape_and_cache_flash` before attention), `docs/design/fusions.md` (fuse_allreduce_rms and its chips,
fuse_norm_quant, fuse_act_quant; fuse_attn_quant is off), `envs.py` (VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from simulator.model.transformer import Model
from simulator.stack.library import LibraryStack

OPERATORS = 2.3
"""Calls for each eager launch, fitted: steps with prompts run compiled pieces without graphs, and Qwen2.5-7B on an A100
takes 56 ms in one piece, twice what it takes in pieces, so 28 ms (vllm-project/vllm, pull requests 20059, 20050)."""

STACK = LibraryStack("vllm", norm_in_all_reduce=True, rope=("rope", "cache"), scaled=("fp8",), attention_scales=False,
                     shared_beside=256, operators=OPERATORS, sparse_heads=64)  # fmt: skip


def on_chip(model: Model, phase: str, dtypes: Collection[str]) -> LibraryStack:
    """Without FP8 (before Hopper) the norm follows its AllReduce, and there is no sparse attention; on Blackwell it
    takes 128 heads."""
    if "fp8" not in dtypes:
        return replace(STACK, norm_in_all_reduce=False, sparse_heads=0)
    return replace(STACK, sparse_heads=128, one_call=True) if "nvfp4" in dtypes else STACK
