"""KV transfer: pages by heads and chunks, and what TTFT of the two instances is made of."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from simulator.errors import BraidError
from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate

QWEN, LATENTS = "pplx_kv:qwen3_8k", "pplx_kv:long_prompt"


@cache
def run(name: str, **changes: str) -> Result:
    few = {"knobs__layers": "3", **changes}
    return simulate(load_scenario(name).replace({key.replace("__", "."): value for key, value in few.items()}))


def pages(result: Result) -> np.ndarray:
    """Bytes of the pages that rank 0 sent."""
    columns = result.columns
    return columns["wire_bytes"][(columns["rank"] == 0) & (columns["name"] == "kv.pages") & (columns["kind"] == "send")]


def test_a_rank_sends_keys_and_values_of_its_own_heads() -> None:
    """8192 tokens in pages of 128 of one head: 64 of keys and 64 of values for each of three layers, 32 KiB each."""
    assert sorted(set(pages(run(QWEN)))) == [32 * 1024]
    assert len(pages(run(QWEN))) == 3 * 2 * 64
    small = {"model": "qwen3_30b_a3b", "layout__tp": "2", "cards": "4", "machine__fabric__node__size": "2"}
    two = pages(run(QWEN, **small))
    assert sorted(set(two)) == [64 * 1024]  # two heads a rank
    assert len(two) == 3 * 2 * 64


def test_latents_are_one_tensor() -> None:
    assert sorted(set(pages(run(LATENTS)))) == [64 * 576 * 2]
    assert len(pages(run(LATENTS))) == 3 * 4096 // 64


def test_chunks_tell_their_layers_and_send_no_more() -> None:
    chunked = run(QWEN, batch__chunk="2048")
    told = (chunked.columns["name"] == "kv.progress") & (chunked.columns["rank"] == 0)
    assert told.sum() == 4 * 3
    assert pages(chunked).sum() == pages(run(QWEN)).sum()


def test_split_adds_a_hand_over_and_a_decode_step_to_colocated() -> None:
    metrics, columns = run(QWEN).metrics, run(QWEN).columns
    decodes = (columns["rank"] == 4) & (columns["stream"] == "compute") & (columns["kind"] != "wait_flag")
    step_ms = (columns["end_ps"][decodes].max() - columns["start_ps"][decodes].min()) / 1e9
    hand_over_ms = metrics["ttft_split_ms"] - metrics["ttft_colocated_ms"] - step_ms
    assert 0.0 < hand_over_ms < 0.1  # watcher, submission, latency, two flags


def test_small_pages_are_bound_by_their_posts() -> None:
    """16 tokens a page: 1024 pages of a rank at 2.1 million a second take 488 us, and their bytes 97."""
    small, large = (run(QWEN, batch__page_tokens=tokens).metrics["kv_transfer_us"] for tokens in ("16", "512"))
    assert 488 < small < 520
    assert 97 < large < 125


def test_the_whole_cache_is_exposed_where_it_leaves_at_the_end() -> None:
    late = run(QWEN, knobs__layer_by_layer="false").metrics
    assert late["kv_exposed_us"] >= 3 * 128 * 32 * 1024 / 43.2e9 * 1e6
    assert run(QWEN).metrics["kv_exposed_us"] < 100


@pytest.mark.parametrize(("changes", "why"), [({"cards": "12"}, "there are 8 ranks"),
                                              ({"batch__requests": "2"}, "batch.requests"),
                                              ({"knobs__layers": "1"}, "2 to 94"),
                                              ({"knobs__layers": "95"}, "2 to 94")])
def test_ranks_and_prompts_must_fit_the_mesh(changes: dict[str, str], why: str) -> None:
    with pytest.raises(BraidError, match=why):
        run(QWEN, **changes)
