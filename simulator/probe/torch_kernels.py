"""The kernels of a probe in PyTorch: operands of random numbers, and a function without arguments that launches one."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from simulator.probe.device import Unmeasurable
from simulator.probe.kernel import Kernel

Launch = Callable[[], object]
ROTATED_L2 = 2.0  # operands of so many times L2 are gone through before the first ones are used again
MOST_SETS = 64
FAST_ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
"""Not PyTorch's fallback, which writes the score matrix to memory."""


def launches(kernel: Kernel, device: torch.device, l2_bytes: float) -> list[Launch]:
    """The same kernel on several sets of operands: used in turn, no operand is in L2 any more when its turn comes.

    Kernels whose operands are to stay in L2 have one set. Unmeasurable where PyTorch or the device has no such kernel.
    """
    if kernel.hbm_bytes(l2_bytes) == 0.0:
        return [launch(kernel, device)]
    sets = min(max(ceil(ROTATED_L2 * l2_bytes / kernel.operand_bytes), 1) + 1, MOST_SETS)
    return [launch(kernel, device) for _ in range(sets)]


def launch(kernel: Kernel, device: torch.device) -> Launch:
    """One set of operands, and what launches the kernel on the current stream."""
    if kernel.is_product:
        return _product(kernel, device)
    if kernel.is_attention:
        return _attention(kernel, device)
    source = torch.randn(kernel["buffer_bytes"] // 4, device=device)
    target = torch.empty_like(source)
    if kernel.family == "elementwise":
        return lambda: torch.add(source, 1.0, out=target)
    if kernel.family == "device_copy":
        return lambda: target.copy_(source)
    return _loop(kernel, source, target)


def _loop(kernel: Kernel, source: torch.Tensor, target: torch.Tensor) -> Launch:
    blocks, rounds = kernel["blocks"], kernel["rounds"]
    try:
        from simulator.probe.copy_loop import copy

        copy(source, target, source.numel(), blocks, rounds)  # compiled here
    except Exception as error:  # Triton may lack a compiler, or be too old for the GPU
        raise Unmeasurable(f"copy loops are written in Triton: {type(error).__name__}: {_first(error)}") from None
    return lambda: copy(source, target, source.numel(), blocks, rounds)


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _product(kernel: Kernel, device: torch.device) -> Launch:
    m, n, k = kernel.sizes
    left = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    weights = torch.randn(n, k, device=device, dtype=torch.bfloat16)
    out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    if kernel.dtype == "bf16":
        return lambda: torch.mm(left, weights.t(), out=out)
    left_8, weights_8 = left.to(torch.float8_e4m3fn), weights.to(torch.float8_e4m3fn)
    one = torch.ones((), device=device)

    def multiply() -> Any:
        return torch._scaled_mm(left_8, weights_8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16,
                                use_fast_accum=True, out=out)  # fmt: skip

    return multiply


def _attention(kernel: Kernel, device: torch.device) -> Launch:
    batch, tokens, heads, kv_heads, head_dim = kernel.sizes
    prompt = kernel.family == "context_attention"

    def random(count: int, length: int) -> Any:
        return torch.randn(batch, count, length, head_dim, device=device, dtype=torch.bfloat16)

    query, key, value = random(heads, tokens if prompt else 1), random(kv_heads, tokens), random(kv_heads, tokens)

    def attend() -> Any:
        with sdpa_kernel(FAST_ATTENTION):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=prompt,
                                                           enable_gqa=heads != kv_heads)  # fmt: skip

    return attend
