"""The lightning indexer of DeepSeek Sparse Attention (DSA): what chooses the tokens that a query attends to.

Its key of a token is cached in FP8 with an FP32 scale, whatever the other cache is in. Latents in FP8 beside it have an
FP32 scale for each 128 values and keep their rotated part in BF16 ("fp8_ds_mla" of vLLM: 656 bytes of 512 + 64 values).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Indexer:
    """`heads` small queries, from the latent of the queries, score one key of `head_dim` values per token, and a query
    then attends to the `top_k` tokens that score highest. Every tensor-parallel rank has all of it."""

    heads: int
    head_dim: int
    top_k: int

    @property
    def cached_bytes(self) -> int:
        """Bytes that the cache keeps of a token's key."""
        return self.head_dim + 4

    def weights(self, q_lora: int, hidden: int) -> tuple[tuple[str, int, int], ...]:
        """Name, inputs and outputs of each: queries, key with its LayerNorm, and a weight of each head."""
        return (("attention.index_q", q_lora, self.heads * self.head_dim),
                ("attention.index_k", hidden, self.head_dim),
                ("attention.index_k_norm", 1, 2 * self.head_dim),
                ("attention.index_weights", hidden, self.heads))


def latent_bytes(kv_lora: int, rope_dim: int, element_bytes: int) -> int:
    """Of a token's latent beside an indexer's key."""
    return kv_lora + kv_lora // 32 + 2 * rope_dim if element_bytes == 1 else element_bytes * (kv_lora + rope_dim)
