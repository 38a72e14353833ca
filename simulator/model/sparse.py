"""Routed experts where few tokens touch few of them (DeepSeek-V3, arXiv 2412.19437): decode at batch 1."""

from __future__ import annotations

from simulator.die.kernels import ELEMENT_BYTES, Work
from simulator.spec.model import ModelShapes


def experts(s: ModelShapes, rows: tuple[int, ...], shards: int, family: str, dtype: str = "nvfp4") -> Work:
    """Sort rows by expert, both products of every expert that has rows, and sum up: one operator.

    rows: of every local expert, zeros included. shards: over how many ranks each expert is split. It counts as one
    grouped product of the hidden size and all three matrices of an expert.
    """
    width = 3 * s.expert_intermediate // shards
    element, touched = ELEMENT_BYTES[dtype], sum(map(bool, rows))
    return Work(
        family,
        kind="grouped_gemm",
        dtype=dtype,
        rows=rows,
        n=width,
        k=s.hidden,
        read_bytes=2.0 * sum(rows) * s.hidden,
        write_bytes=2.0 * sum(rows) * s.hidden,
        weight_bytes=touched * width * s.hidden * element,
    )


def sort(s: ModelShapes, rows: tuple[int, ...], family: str) -> Work:
    """Put rows in the order of their experts: what a grouped product needs before it. rows: zeros included."""
    moved = 2.0 * sum(rows) * s.hidden
    return Work(family, kind="vector", dtype="fp32", rows=rows, read_bytes=moved, write_bytes=moved)
