"""Chains of block hashes: numbers that are equal only where blocks, and all blocks before them, hold the same tokens.

The hashes of all prompts lie in one array; those of prompt i are hashes[start[i]:start[i + 1]].
"""

from __future__ import annotations

from simulator import np


def chained(hashes: np.Array, start: np.Array) -> np.Array:
    """Numbers from 0 that are equal where the hashes are and all hashes before them in their prompts: of hashes of
    the blocks alone a chain, of a chain the same chain with other numbers."""
    _, content = np.unique(hashes, return_inverse=True)
    kinds, used = np.int64(content.max(initial=0) + 1), 0
    chain, before = np.empty(len(hashes), dtype=np.int64), np.zeros(len(start) - 1, dtype=np.int64)
    blocks = np.diff(start)
    longest_first = np.argsort(-blocks, kind="stable")
    reaching = np.searchsorted(np.sort(-blocks), -np.arange(blocks.max(initial=0)), side="left")
    for depth, prompts in enumerate(reaching):  # prompts that have a block so deep
        there = longest_first[:prompts]
        place = start[there] + depth
        _, number = np.unique(before[there] * kinds + content[place], return_inverse=True)
        chain[place] = before[there] = number + used
        used += int(number.max()) + 1
    return chain


def leading_hits(hashes: np.Array, start: np.Array) -> np.Array:
    """Leading blocks of every prompt that an earlier prompt had: the hits of a cache that never forgets."""
    prompt = np.repeat(np.arange(len(start) - 1), np.diff(start))
    _, first, kind = np.unique(hashes, return_index=True, return_inverse=True)
    misses = np.append(np.flatnonzero(prompt[first[kind]] == prompt), len(hashes))
    first_miss = misses[np.searchsorted(misses, start[:-1])]
    return np.minimum(first_miss, start[1:]) - start[:-1]
