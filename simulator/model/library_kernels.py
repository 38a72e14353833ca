"""Kernels of public inference libraries (TensorRT-LLM, vLLM, SGLang), as `braid calibrate kernels --chip` fits them.

A function makes the `Work` that a table of measured kernels times as one operator, so that nothing is launched beside
it: products quantise their own input, attention writes new keys and values into the cache, and routed experts are the
chain of `routed`. Activations are BF16 and go through HBM, in the fits as here.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.die.kernels import Work

BF16 = 2.0


class Quantisation(NamedTuple):
    """arithmetic: data type of the tensor cores; bytes of one activation and of one weight, scales included."""

    arithmetic: str
    activation_bytes: float
    weight_bytes: float


QUANTISATIONS = {
    "bf16":      Quantisation("bf16", 2.0, 2.0),
    "fp8":       Quantisation("fp8", 1.0, 1.0),                  # one scale for a tensor
    "fp8_block": Quantisation("fp8", 1.0 + 4 / 128, 1.0),        # FP32 scales: 128 elements of a row, 128 x 128 weights
    "int8":      Quantisation("int8", 1.0, 1.0),                 # a scale for each row and each column
    "int4":      Quantisation("bf16", 2.0, 0.5 + 2 / 128),       # weights only, a BF16 scale for 128
    "mxfp4":     Quantisation("bf16", 2.0, 0.5 + 1 / 32),        # weights only, a scale of one byte for 32
    "mxfp4_marlin": Quantisation("bf16", 2.0, 0.5 + 1 / 32),     # the same by kernels that unpack weights, as of INT4
    "mxfp4_fp8": Quantisation("fp8", 1.0 + 1 / 32, 0.5 + 1 / 32),
    "nvfp4":     Quantisation("nvfp4", 0.5 + 1 / 16, 0.5 + 1 / 16),
}  # fmt: skip
"""By the end of their families' names: gemm_fp8_block, grouped_gemm_mxfp4."""


def linear(tokens: int, n: int, k: int, quantisation: str = "bf16", weights: str = "") -> Work:
    """[tokens, k] x [k, n], BF16 in and out, with the pass that quantises its input."""
    return _product(f"gemm_{quantisation}", "gemm", (tokens,), n, k, quantisation, weights)


def routed(tokens: int, rows: tuple[int, ...], hidden: int, width: int, quantisation: str = "bf16", *,
           copies: int | None = None, gated: bool = True, weights: str = "",
           calls: tuple[int, ...] = (1, 1, 1, 1, 1)) -> tuple[Work, ...]:
    """Routed experts of one rank, from chosen experts to the sum of each token's results: kernels one after the other.

    tokens: that the rank holds or received. rows: of every local expert, zeros included. width: of the intermediate
    size that this rank computes. copies: rows that the operator goes through: tokens x experts per token where the rank
    holds the tokens of all ranks (left out: the rows of its own experts). gated: two products up, or one. calls: of
    operators, of each kernel.

    The chain: `experts_sort` copies and quantises tokens to rows in the order of their experts and carries what all
    launches of the operator cost; both products are `grouped_gemm`; `experts_sum` is the activation, and the sum.
    """
    q = QUANTISATIONS[quantisation]
    total, up = sum(rows), 2 if gated else 1
    product, passes = f"grouped_gemm_{quantisation}", f"experts_sum_{quantisation}"

    def passed(read_bytes: float, write_bytes: float, calls: int, others: int = 0) -> Work:
        return Work(passes, kind="vector", dtype="fp32", rows=(others,), read_bytes=read_bytes,
                    write_bytes=write_bytes, calls=calls)

    sort = Work(f"experts_sort_{quantisation}", kind="vector", dtype="fp32", rows=rows, calls=calls[0],
                read_bytes=BF16 * tokens * hidden, write_bytes=q.activation_bytes * total * hidden)
    return (sort,
            _product(product, "grouped_gemm", rows, up * width, hidden, quantisation, weights and f"{weights}.up",
                     calls[1]),
            passed(BF16 * up * total * width, q.activation_bytes * total * width, calls[2]),
            _product(product, "grouped_gemm", rows, hidden, width, quantisation, weights and f"{weights}.down",
                     calls[3]),
            passed(BF16 * total * hidden, BF16 * tokens * hidden, calls[4], 0 if copies is None else copies - total))


def absorbed(tokens: int, heads: int, n: int, k: int, weights: str = "") -> Work:
    """One BF16 product [tokens, k] x [k, n] per head in one kernel: the absorbed up-projections of MLA."""
    return _product("batched_gemm_bf16", "gemm", (tokens,) * heads, n, k, "bf16", weights)


def context_attention(prompts: tuple[tuple[int, int], ...], heads: int, kv_heads: int, head_dim: int, window: int = 0,
                      cache: str = "bf16") -> Work:
    """Causal attention of prompts (new tokens, tokens in the cache before them), which it writes into the cache.

    heads, kv_heads: of this rank. window: keys that a query sees at most, 0: all. cache: "bf16" or "fp8".
    """
    new = sum(tokens for tokens, _ in prompts)
    seen = sum(tokens + (min(before, window) if window else before) for tokens, before in prompts)
    element, width = _cache_bytes(cache), 2.0 * kv_heads * head_dim
    return Work("context_attention" + cache_variant(cache), kind="attention", dtype=cache,
                scores=tuple((tokens, tokens + before, True) for tokens, before in prompts), heads=heads,
                kv_heads=kv_heads, kv_dim=2 * head_dim, qk_dim=head_dim, v_dim=head_dim, window=window,
                stored_bytes=element, read_bytes=BF16 * new * (heads * head_dim + width),
                write_bytes=new * (BF16 * heads * head_dim + element * width), streamed_bytes=element * seen * width)


def generation_attention(contexts: tuple[tuple[int, int], ...], heads: int, kv_heads: int, head_dim: int,
                         window: int = 0, cache: str = "bf16") -> Work:
    """Attention of (query tokens, tokens in the cache with them) of each request; otherwise as `context_attention`."""
    queries = sum(tokens for tokens, _ in contexts)
    seen = sum(min(keys, window) if window else keys for _, keys in contexts)
    element, size = _cache_bytes(cache), BF16 * queries * heads * head_dim
    return Work("generation_attention" + cache_variant(cache), kind="attention", dtype=cache,
                scores=tuple((tokens, keys, False) for tokens, keys in contexts), heads=heads, kv_heads=kv_heads,
                kv_dim=2 * head_dim, qk_dim=head_dim, v_dim=head_dim, window=window, stored_bytes=element,
                read_bytes=size, write_bytes=size, streamed_bytes=element * seen * 2.0 * kv_heads * head_dim)


def context_mla(prompts: tuple[tuple[int, int], ...], heads: int, nope_dim: int = 128, rope_dim: int = 64,
                v_dim: int = 128) -> Work:
    """Causal attention of prompts with keys and values expanded per head; sizes are DeepSeek's where left out."""
    new, seen = sum(tokens for tokens, _ in prompts), sum(map(sum, prompts))
    qk_dim = nope_dim + rope_dim
    return Work("context_mla", kind="attention", dtype="bf16",
                scores=tuple((tokens, tokens + before, True) for tokens, before in prompts), heads=heads,
                kv_heads=heads, kv_dim=qk_dim + v_dim, qk_dim=qk_dim, v_dim=v_dim,
                read_bytes=BF16 * new * heads * qk_dim, write_bytes=BF16 * new * heads * v_dim,
                streamed_bytes=BF16 * seen * heads * (qk_dim + v_dim))


def generation_mla(contexts: tuple[tuple[int, int], ...], heads: int, kv_lora: int = 512, rope_dim: int = 64,
                   cache: str = "bf16") -> Work:
    """Absorbed MLA of (query tokens, tokens in the cache with them): all heads share one latent key per token."""
    queries, keys = (sum(each) for each in zip(*contexts, strict=True))
    latent, element = kv_lora + rope_dim, _cache_bytes(cache)
    return Work("generation_mla" + cache_variant(cache), kind="attention", dtype=cache,
                scores=tuple((tokens, seen, False) for tokens, seen in contexts), heads=heads, kv_heads=1,
                kv_dim=latent, qk_dim=latent, v_dim=kv_lora, stored_bytes=element,
                read_bytes=BF16 * queries * heads * latent, write_bytes=BF16 * queries * heads * kv_lora,
                streamed_bytes=element * keys * latent)


def _product(family: str, kind: str, rows: tuple[int, ...], n: int, k: int, quantisation: str, weights: str,
             calls: int = 1) -> Work:
    q = QUANTISATIONS[quantisation]
    busy = tuple(count for count in rows if count)
    return Work(family, kind=kind, dtype=q.arithmetic, rows=busy, n=n, k=k, stored_bytes=q.weight_bytes,
                read_bytes=sum(busy) * k * q.activation_bytes, write_bytes=sum(busy) * n * BF16,
                weight_bytes=len(busy) * n * k * q.weight_bytes, weights=weights, calls=calls)


def _cache_bytes(cache: str) -> float:
    return {"bf16": 2.0, "fp8": 1.0}[cache]


def cache_variant(cache: str) -> str:
    """How names of families end by the data type of the cache."""
    return "" if cache == "bf16" else f"_{cache}"
