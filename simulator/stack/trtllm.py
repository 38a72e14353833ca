"""TensorRT-LLM (PyTorch backend): attention rotates and writes the cache itself; a norm is part of its AllReduce.
Norm, SwiGLU and attention write what they give in the data type of the next product, with scales of the checkpoint.
Captured graphs run the shared expert on a stream of its own.

Where attention is data parallel, tokens are quantised before they are gathered for the experts, as these take them; on
Hopper those of experts in FP8 blocks go in BF16, for the operator of these quantises.

Source: NVIDIA/TensorRT-LLM, `_torch/models/modeling_llama.py` (AllReduceFusionOp.RESIDUAL_RMS_NORM), `_torch/
attention_backend/trtllm.py` (rotation inside the attention operator), `_torch/models/modeling_deepseekv3.py` (routed
and shared experts by maybe_execute_in_parallel), `_torch/modules/fused_moe/fused_moe_trtllm_gen.py` (quantize_input
before the allgather, run_post_quant_allgather) and `fused_moe_cutlass.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from sys import maxsize

from simulator.model.library_kernels import QUANTISATIONS
from simulator.model.transformer import Model
from simulator.stack.library import LibraryStack

OPERATORS = 1.8
"""Calls for each eager launch: its PyTorch flow dispatches a kernel every 35 us on a host of 8 Blackwell GPUs (NVIDIA/
TensorRT-LLM, pull request 12653), 5 of which are the launch."""

STACK = LibraryStack("trtllm", norm_in_all_reduce=True, rope=(), scaled=("fp8", "nvfp4"), shared_beside=maxsize,
                     operators=OPERATORS, one_call=True)


def on_chip(model: Model, phase: str, dtypes: Collection[str]) -> LibraryStack:
    """With tokens sent to experts as these take them, but on a chip without NVFP4 those of FP8 blocks."""
    experts = model.precision.experts
    if experts == "fp8_block" and "nvfp4" not in dtypes:
        return STACK
    return replace(STACK, wire_bytes=QUANTISATIONS[experts].activation_bytes)
