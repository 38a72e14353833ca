"""Kernels from shapes: FLOPs, bytes and families, never time.

Every function returns the `Work` of one kernel. Byte counts are those of the tensors that the kernel reads and writes
once; what it reads again on chip is the machine's business. `tokens` are rows; sizes are elements.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.die.kernels import ELEMENT_BYTES, Work
from simulator.errors import InputError
from simulator.model.layout import split


def gemm(tokens: int, n: int, k: int, dtype: str = "int8", out: str = "bf16", weights: str = "") -> Work:
    """[tokens, k] x [k, n]. An int32 result has no dequantising epilogue, so it is a family of its own."""
    return grouped_gemm((tokens,), n, k, dtype, out, weights)


def grouped_gemm(rows: tuple[int, ...], n: int, k: int, dtype: str = "int8", out: str = "bf16",
                 weights: str = "") -> Work:
    """One product [rows[g], k] x [k, n] per group g, in one kernel; groups without rows cost nothing."""
    busy = tuple(count for count in rows if count)
    grouped = len(rows) > 1
    family = f"{'grouped_' if grouped else ''}gemm_{dtype}{'_int32' if out == 'int32' else ''}"
    element = _element_bytes(dtype)
    return Work(family, kind="grouped_gemm" if grouped else "gemm", dtype=dtype, out_dtype=out, rows=busy, n=n, k=k,
                read_bytes=sum(busy) * k * element, write_bytes=sum(busy) * n * ELEMENT_BYTES[out],
                weight_bytes=len(busy) * n * k * element, weights=weights)


def _element_bytes(dtype: str) -> float:
    """Of an operand; InputError for a precision that no kernel computes in."""
    if dtype not in ELEMENT_BYTES:
        raise InputError(f"precision {dtype}: the products of this stack take {', '.join(ELEMENT_BYTES)}")
    return ELEMENT_BYTES[dtype]


def flash_attention(sequences: tuple[tuple[int, int, bool], ...], heads: int, qk_dim: int, v_dim: int,
                    family: str = "flash_attention_ntd", dtype: str = "bf16", kv_heads: int = 0) -> Work:
    """Attention with its own keys per head, or per `kv_heads` groups of heads; sequences: (queries, keys, causal)."""
    work = _attention(sequences, heads, kv_heads or heads, qk_dim, v_dim, qk_dim + v_dim, family, dtype)
    return replace(work, read_bytes=work.read_bytes + work.streamed_bytes, streamed_bytes=0.0)


def grouped_attention(sequences: tuple[tuple[int, int], ...], heads: int, kv_heads: int, qk_dim: int, v_dim: int,
                      family: str, dtype: str = "bf16") -> Work:
    """Grouped-query attention in decode; keys and values stream past L2 once. sequences: (queries, cached tokens)."""
    scores = tuple((queries, keys, False) for queries, keys in sequences)
    return _attention(scores, heads, kv_heads, qk_dim, v_dim, qk_dim + v_dim, family, dtype)


def latent_attention(sequences: tuple[tuple[int, int], ...], heads: int, kv_lora: int, rope_dim: int, family: str,
                     dtype: str = "bf16") -> Work:
    """Absorbed MLA in decode: all heads share one latent key per token, whose first part is also the value.

    sequences: (queries, cached tokens) of every request. The cache is read once per request and streams past L2.
    """
    scores, latent = tuple((queries, keys, False) for queries, keys in sequences), kv_lora + rope_dim
    return _attention(scores, heads, 1, latent, kv_lora, latent, family, dtype)


def _attention(scores: tuple[tuple[int, int, bool], ...], heads: int, kv_heads: int, qk_dim: int, v_dim: int,
               kv_dim: int, family: str, dtype: str) -> Work:
    """Keys and values stream past L2. kv_dim: their elements per token and head that has keys of its own."""
    queries, keys = sum(queries for queries, _, _ in scores), sum(keys for _, keys, _ in scores)
    element = ELEMENT_BYTES[dtype]
    return Work(family, kind="attention", dtype=dtype, out_dtype=dtype, scores=scores, heads=heads, kv_heads=kv_heads,
                kv_dim=kv_dim, qk_dim=qk_dim, v_dim=v_dim, read_bytes=queries * heads * qk_dim * element,
                write_bytes=queries * heads * v_dim * element, streamed_bytes=keys * kv_heads * kv_dim * element)


def cached(work: Work, weights: str = "") -> Work:
    """The same kernel where its activations are small enough to stay in L2 between kernels, as in decode. weights:
    their name (none: as before)."""
    kept, parts = work.cached_bytes + work.read_bytes + work.write_bytes, tuple(map(cached, work.parts))
    return replace(work, read_bytes=0.0, write_bytes=0.0, cached_bytes=kept, parts=parts,
                   weights=weights or work.weights)  # fmt: skip


def fused(family: str, kind: str, parts: tuple[Work, ...], weights: str = "") -> Work:
    """Several kernels as one launch of its own family."""
    return Work(family, kind=kind, dtype=parts[0].dtype, parts=parts, weights=weights)


def batched_gemm(tokens: int, heads: int, n: int, k: int, dtype: str = "bf16", weights: str = "") -> Work:
    """One product [tokens, k] x [k, n] per head, in one kernel: the absorbed up-projections of MLA."""
    work = grouped_gemm((tokens,) * heads, n, k, dtype, dtype, weights)
    return replace(work, family=f"batched_gemm_{dtype}", kind="gemm")


def passes(read_bytes: float, write_bytes: float) -> Work:
    """Element-wise work, a norm, a copy, a sort: one pass over memory on vector cores."""
    return Work("vector", kind="vector", dtype="fp32", read_bytes=read_bytes, write_bytes=write_bytes)


def loop(family: str, pieces: int, rows: int, read_bytes: float, write_bytes: float, width: int = 0) -> Work:
    """Thread blocks that stay for `pieces` of work, and take so many rows of `width` elements in turns."""
    return Work(family, kind="vector", dtype="fp32", rows=tuple(split(rows, pieces)), k=width, read_bytes=read_bytes,
                write_bytes=write_bytes)


def sort_rows(tokens: int, rows: tuple[int, ...], width: int) -> Work:
    """Tokens of `width` values, BF16, copied to rows in the order of their experts. rows: of every local expert, zeros
    included, which take time too."""
    read, write = 2.0 * tokens * width, 2.0 * sum(rows) * width
    return Work("experts_sort", kind="vector", dtype="fp32", rows=rows, read_bytes=read, write_bytes=write)


def delay(family: str) -> Work:
    """Time that passes without any work: what the family's floor says."""
    return Work(family, kind="delay", dtype="fp32")


def add_rms_norm(tokens: int, width: int) -> Work:
    """Residual add and RMSNorm: reads x and the residual, writes the new residual and the norm, BF16."""
    return passes(4.0 * tokens * width, 4.0 * tokens * width)


def rms_norm(tokens: int, width: int) -> Work:
    """RMSNorm, BF16 in and out."""
    return passes(2.0 * tokens * width, 2.0 * tokens * width)


def quantise(tokens: int, width: int) -> Work:
    """BF16 to INT8 with one FP32 scale per token."""
    return passes(2.0 * tokens * width, tokens * (width + 4.0))


def copy(elements: float, element_bytes: float = 2.0) -> Work:
    """Read and write once: a transpose, a concatenation, an index_select."""
    return passes(elements * element_bytes, elements * element_bytes)


def swiglu_quantise(rows: int, width: int) -> Work:
    """Dequantise an int32 [rows, 2 width], SwiGLU, quantise to INT8 [rows, width] with a scale per row."""
    return passes(8.0 * rows * width, rows * (width + 4.0))
