"""Equal numbers of a chain mean equal blocks and equal blocks before them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from simulator.serving.chains import chained, leading_hits


def _prompts(seed: int) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Prompts of few different blocks, so that the same block stands at many places after others; some are empty."""
    random = np.random.default_rng(seed)
    prompts = [random.integers(3, size=random.integers(8)).tolist() for _ in range(200)]
    return np.concatenate(prompts).astype(np.int64), np.cumsum([0, *map(len, prompts)]), prompts


def test_numbers_are_equal_exactly_where_all_blocks_up_to_here_are() -> None:
    hashes, start, prompts = _prompts(1)
    found = chained(hashes, start)
    upto = [tuple(prompt[: depth + 1]) for prompt in prompts for depth in range(len(prompt))]
    assert len(set(zip(found.tolist(), upto, strict=True))) == len(set(upto)) == len(set(found.tolist()))
    assert set(found.tolist()) == set(range(len(set(upto))))


def test_a_chain_stays_the_same_chain() -> None:
    hashes, start, _ = _prompts(2)
    once = chained(hashes, start)
    assert (chained(once, start) == once).all()
    renamed = chained(7 - 3 * once, start)
    assert len(set(zip(once.tolist(), renamed.tolist(), strict=True))) == len(set(once.tolist()))


def test_hits_are_those_of_a_cache_that_keeps_every_prompt() -> None:
    hashes, start, prompts = _prompts(3)
    seen: set[tuple[int, ...]] = set()
    for prompt, hits in zip(prompts, leading_hits(chained(hashes, start), start).tolist(), strict=True):
        parts = [tuple(prompt[: depth + 1]) for depth in range(len(prompt))]
        assert hits == sum(part in seen for part in parts)
        seen |= set(parts)


def test_a_hit_after_a_miss_is_no_hit() -> None:
    assert leading_hits(np.array([0, 1, 5, 1]), np.array([0, 2, 4])).tolist() == [0, 0]


def test_nothing_shared_is_nothing() -> None:
    none, start = np.zeros(0, dtype=np.int64), np.zeros(4, dtype=np.int64)
    assert chained(none, start).tolist() == []
    assert leading_hits(none, start).tolist() == [0, 0, 0]


def test_numbers_rise_with_depth() -> None:
    hashes, start, _ = _prompts(4)
    found = chained(hashes, start)
    assert all(a < b for i, j in pairwise(start) for a, b in pairwise(found[i:j]))
