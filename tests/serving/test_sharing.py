"""What prompts share is shared from their start: equal hashes mean equal hashes before them."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.serving.arrivals import arrivals
from simulator.serving.chains import chained
from simulator.serving.draws import stream_of
from simulator.serving.lengths import log_normal, uniform
from simulator.serving.requests import Requests, independent
from simulator.serving.sharing import conversations, with_common_prefixes


def _is_chain(requests: Requests) -> bool:
    numbers = chained(requests.hashes, requests.hash_start)
    return len(set(zip(numbers.tolist(), requests.hashes.tolist(), strict=True))) == len(np.unique(requests.hashes))


def _prompts(count: int) -> Requests:
    return independent(arrivals(count, 5.0), log_normal(count, 4000, 0.5, stream_of(1, "input")), np.ones(count))


def test_prefixes_are_a_chain_of_one_hash_a_block() -> None:
    shared = with_common_prefixes(_prompts(500), 0.5, 7, 16, stream_of(1, "prefixes"))
    assert _is_chain(shared)
    assert (np.diff(shared.hash_start) == -(-shared.input_tokens // 16)).all()


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_hits_are_the_share_less_a_block_and_what_is_first_seen(share: float) -> None:
    prompts = independent(np.zeros(2000), np.full(2000, 4000), np.ones(2000))
    facts = with_common_prefixes(prompts, share, 10, 16, stream_of(2, "prefixes")).described()
    assert facts["hit_share_of_tokens"] == pytest.approx(share * (1 - 10 / 2000), abs=16 / 4000)


def test_prefixes_are_drawn_evenly_and_end_where_the_share_does() -> None:
    prompts = independent(np.zeros(4000), np.full(4000, 100), np.ones(4000))
    shared = with_common_prefixes(prompts, 0.5, 4, 16, stream_of(3, "prefixes"))
    first, counts = np.unique(shared.hashes[shared.hash_start[:-1]], return_counts=True)
    assert len(first) == 4
    assert np.abs(counts - 1000).max() < 4 * 1000**0.5
    both = next(i for i in range(1, 4000) if shared.hashes_of(i)[0] == shared.hashes_of(0)[0])
    assert (shared.hashes_of(0) == shared.hashes_of(both)).tolist() == [True] * 3 + [False] * 4


@pytest.mark.parametrize(("share", "hits"), [(0.0, 0.0), (1.0, 6 / 7 * 1999 / 2000)])
def test_nothing_shared_and_all_but_the_last_block(share: float, hits: float) -> None:
    prompts = independent(np.zeros(2000), np.full(2000, 100), np.ones(2000))
    facts = with_common_prefixes(prompts, share, 1, 16, stream_of(0, "prefixes")).described()
    assert facts["hit_share_of_blocks"] == pytest.approx(hits)


def test_a_conversation_says_all_of_it_again() -> None:
    """Two conversations, the second starts while the user of the first one thinks."""
    new, out, think_s = [10, 5, 7, 30], [4, 6, 1, 2], [9.0, 1.0, 3.0, 9.0]
    requests = conversations(np.array([0.0, 2.0]), [3, 1], new, out, think_s, hash_tokens=8)
    assert requests.arrival_s.tolist() == [0.0, 1.0, 2.0, 4.0]
    assert requests.input_tokens.tolist() == [10, 10 + 4 + 5, 30, 10 + 4 + 5 + 6 + 7]
    assert requests.output_tokens.tolist() == [4, 6, 2, 1]
    assert requests.after.tolist() == [-1, 0, -1, 1]
    assert requests.think_s.tolist() == [0.0, 1.0, 0.0, 3.0]
    first, second, other, third = (requests.hashes_of(request).tolist() for request in range(4))
    assert (len(first), len(second), len(other), len(third)) == (2, 3, 4, 4)
    assert first[:1] == second[:1] == third[:1]
    assert second[:2] == third[:2]
    assert first[1] not in second
    assert not set(other) & {*first, *second, *third}


def _many(seed: int) -> Requests:
    turns = uniform(300, 9, 0.2, stream_of(seed, "turns"))
    count = int(turns.sum())
    new, out = (log_normal(count, 200, 1.0, stream_of(seed, name)) for name in ("input", "output"))
    think_s = stream_of(seed, "think").exponential(10.0, count)
    return conversations(arrivals(300, 1.0, seed), turns, new, out, think_s, hash_tokens=16)


def test_turns_are_a_chain_and_follow_the_turn_before() -> None:
    requests = _many(1)
    assert _is_chain(requests)
    later = np.flatnonzero(requests.after >= 0)
    before = requests.after[later]
    assert len(later) == len(requests) - 300
    assert len(set(before.tolist())) == len(before)  # one turn after each
    assert np.allclose(requests.arrival_s[later] - requests.arrival_s[before], requests.think_s[later], atol=1e-9)
    assert (requests.input_tokens[later] > requests.input_tokens[before] + requests.output_tokens[before]).all()


def test_a_turn_hits_the_whole_blocks_of_the_prompt_before() -> None:
    requests = _many(2)
    for request in np.flatnonzero(requests.after >= 0)[:200]:
        before = int(requests.after[request])
        whole = int(requests.input_tokens[before]) // 16
        here, there = requests.hashes_of(int(request)), requests.hashes_of(before)
        assert (here[:whole] == there[:whole]).all()
        assert not np.isin(there[whole:], here).any()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ((1.5, 3, 16), "share is 1.5; it must be from 0 to 1"),
        ((0.5, 0, 16), "prefixes is 0; there must be at least 1"),
        ((0.5, 3, 0), "hash_tokens is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_shared_is_refused(call: tuple[float, int, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        with_common_prefixes(_prompts(5), *call, stream_of(0, "prefixes"))


def test_what_a_trace_says_of_sharing_is_not_overwritten() -> None:
    shared = with_common_prefixes(_prompts(5), 0.5, 2, 16, stream_of(0, "prefixes"))
    with pytest.raises(InputError, match="have hashes of their own"):
        with_common_prefixes(shared, 0.5, 2, 16, stream_of(0, "prefixes"))


def test_a_conversation_needs_turns_and_their_lengths() -> None:
    with pytest.raises(InputError, match="at least 1 turn, and each of the 2 turns"):
        conversations(np.zeros(1), [2], [5], [5, 5], [0.0, 0.0], 16)
    with pytest.raises(InputError, match="at least 1 turn"):
        conversations(np.zeros(2), [2, 0], [5, 5], [5, 5], [0.0, 0.0], 16)
