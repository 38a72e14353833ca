"""Sparse attention (DSA): what the indexer scores, what it chooses from, and what attention then meets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.die.kernels import score_elements
from simulator.model import library_kernels as library
from simulator.model import sparse_kernels as sparse
from simulator.model.indexer import Indexer
from simulator.model.transformer import Latent, cached_bytes

INDEXER = Indexer(32, 128, 2048)
GLM = Latent(64, 2048, 512, 64, 192, 256, INDEXER)
SHORT = ((1, 1), (2, 700), (1, 2048))
PAIRS = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 9000)), min_size=1, max_size=4)


@pytest.mark.parametrize("cache", ["bf16"])
def test_with_no_more_context_than_top_k_it_is_dense_absorbed_attention(cache: str) -> None:
    own = sparse.attention(GLM, SHORT, (), 64, cache)
    dense = library.generation_mla(SHORT, 64, 512, 64, cache)
    for field in ("flops", "hbm_bytes", "streamed_bytes", "read_bytes", "write_bytes", "scores", "kv_dim"):
        assert getattr(own, field) == getattr(dense, field), field


def test_a_prompt_no_longer_than_top_k_meets_all_that_is_before_each_token() -> None:
    own = sparse.attention(GLM, (), ((1500, 500),), 64, "bf16")
    assert own.scores == ((1500, 2000, True),)
    assert own.streamed_bytes == 2000 * 1152
    assert own.flops == 2.0 * 64 * (576 + 512) * score_elements((1500, 2000, True))


@given(PAIRS, st.integers(1, 3000))
def test_each_query_meets_what_is_before_it_up_to_top_k(prompts: list[tuple[int, int]], top_k: int) -> None:
    found = sparse.chosen((), prompts, top_k)
    assert sum(count for count, _, _ in found) == sum(new for new, _ in prompts)
    right = sum(min(before + place, top_k) for new, before in prompts for place in range(1, new + 1))
    assert sum(map(score_elements, found)) == right


@given(PAIRS)
def test_rows_to_choose_from_are_those_longer_than_top_k(prompts: list[tuple[int, int]]) -> None:
    indexer = Indexer(32, 128, 2048)
    long = [before + place for new, before in prompts for place in range(1, new + 1) if before + place > 2048]
    work = sparse.choice(indexer, [(new, new + before, True) for new, before in prompts])
    assert sum(work.rows) == len(long)
    assert work.write_bytes == 4.0 * 2048 * sum(new for new, _ in prompts)
    assert work.read_bytes == pytest.approx(4.0 * sum(long))
    assert work.family == ("index_top_k" if long else "vector")


def test_decode_reads_top_k_latents_and_the_keys_of_all_tokens() -> None:
    """Attention does not grow with the context beyond top_k; scores do, in proportion."""
    for keys in (2048, 8192, 65536):
        assert sparse.attention(GLM, ((1, keys),), (), 64, "bf16").streamed_bytes == 2048 * 1152
        assert sparse.decode_logits(INDEXER, ((1, keys),)).streamed_bytes == keys * 132
    flops = [sparse.decode_logits(INDEXER, ((2, keys),)).flops for keys in (1000, 2000, 4000)]
    assert flops == [2 * keys * 32 * 128 * 2.0 for keys in (1000, 2000, 4000)]


def test_scores_of_a_prompt_grow_with_the_square_of_its_length() -> None:
    once, twice = (sparse.prompt_logits(INDEXER, ((new, 0),)) for new in (4096, 8192))
    assert twice.flops / once.flops == pytest.approx(4, rel=1e-3)
    assert twice.write_bytes == 4 * 8192 * 8193 / 2
    assert twice.streamed_bytes == 2 * once.streamed_bytes == 8192 * 132


def test_the_cache_has_latents_and_the_indexers_keys() -> None:
    dense = Latent(64, 2048, 512, 64, 192, 256)
    assert cached_bytes(GLM, "bf16") == 1152 + 132
    assert cached_bytes(GLM, "fp8") == 656 + 132  # 512 FP8, 4 FP32 scales, 64 BF16
    assert (cached_bytes(dense, "bf16"), cached_bytes(dense, "fp8")) == (1152, 576)
    assert sparse.attention(GLM, ((1, 100),), (), 64, "fp8").streamed_bytes == 100 * 656
