"""TensorRT-LLM at minimum latency: kernels for one request's few tokens."""

from __future__ import annotations

from simulator.die.kernels import ELEMENT_BYTES, Work


def touched_experts(rows: tuple[int, ...], hidden: int, width: int, family: str, dtype: str = "nvfp4") -> Work:
    """Sort rows by expert, both products of every expert that has rows, and sum up: one operator, as where few tokens
    touch few experts.

    rows: of every local expert, zeros included. width: of a rank's share of an expert. It counts as one grouped product
    of the hidden size and all three matrices of an expert.
    """
    size = 2.0 * sum(rows) * hidden
    weight_bytes = sum(map(bool, rows)) * 3 * width * hidden * ELEMENT_BYTES[dtype]
    return Work(family, kind="grouped_gemm", dtype=dtype, rows=rows, n=3 * width, k=hidden, read_bytes=size,
                write_bytes=size, weight_bytes=weight_bytes)
