"""Columns of requests: what is refused, what is taken of them, and the facts that describe a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.serving.requests import Requests, independent

# Four prompts of blocks of 10 tokens: the second has two blocks of the first, the third all of it, the fourth none.
SHARING = Requests(
    arrival_s=np.array([0.0, 1.0, 1.0, 4.0]),
    input_tokens=np.array([25, 30, 35, 8]),
    output_tokens=np.array([1, 2, 3, 4]),
    hashes=np.array([0, 1, 2, 0, 1, 3, 0, 1, 2, 4, 9]),
    hash_start=np.array([0, 3, 6, 10, 11]),
    hash_tokens=10,
    after=np.array([-1, 0, -1, 1]),
    think_s=np.array([0.0, 2.0, 0.0, 1.0]),
    priority=np.array([0, 0, 1, 0]),
)


def test_columns_are_numbers_of_64_bits() -> None:
    requests = independent(np.array([0, 1], dtype=np.int8), np.array([3, 4], dtype=np.int32), np.array([1, 1]))
    assert len(requests) == 2
    assert (requests.arrival_s.dtype, requests.input_tokens.dtype) == (np.float64, np.int64)
    assert requests.after.tolist() == [-1, -1]
    assert requests.hashes_of(1).tolist() == []


def test_hashes_of_a_prompt() -> None:
    assert [SHARING.hashes_of(request).tolist() for request in range(4)] == [[0, 1, 2], [0, 1, 3], [0, 1, 2, 4], [9]]


def test_taken_is_the_first_requests_with_all_that_they_need() -> None:
    two = SHARING.taken(2)
    assert (len(two), two.hash_start.tolist(), two.hashes.tolist()) == (2, [0, 3, 6], [0, 1, 2, 0, 1, 3])
    assert two.after.tolist() == [-1, 0]
    assert len(SHARING.taken(100)) == 4
    with pytest.raises(InputError, match="limit is 0; it must be at least 1"):
        SHARING.taken(0)


def test_sped_up_shrinks_times_and_nothing_else() -> None:
    fast = SHARING.sped_up(4)
    assert fast.arrival_s.tolist() == [0.0, 0.25, 0.25, 1.0]
    assert fast.think_s.tolist() == [0.0, 0.5, 0.0, 0.25]
    assert (fast.input_tokens == SHARING.input_tokens).all()
    assert fast.described()["rate_per_s"] == 4 * SHARING.described()["rate_per_s"]
    for factor in (0, -1, float("inf"), float("nan")):
        with pytest.raises(InputError, match=r"speedup is .*; it must be more than 0"):
            SHARING.sped_up(factor)


def test_described_counts_what_an_unlimited_cache_hits() -> None:
    facts = SHARING.described()
    assert (facts["requests"], facts["span_s"], facts["rate_per_s"]) == (4, 4.0, 0.75)
    assert (facts["input_tokens_mean"], facts["input_tokens_p50"]) == (24.5, 27.5)
    assert facts["output_tokens_p99"] == pytest.approx(3.97)
    assert facts["hit_share_of_blocks"] == 5 / 11  # two of the second prompt, three of the third
    assert facts["hit_share_of_tokens"] == 50 / 98
    assert facts["hit_share_mean_of_requests"] == pytest.approx((0 + 20 / 30 + 30 / 35 + 0) / 4)


def test_a_last_block_that_is_not_full_counts_the_tokens_that_it_has() -> None:
    two = SHARING.taken(2)
    same = replace(two, input_tokens=[25, 25], hashes=[0, 1, 2, 0, 1, 2])
    assert same.described()["hit_share_of_tokens"] == 0.5


def test_what_shares_nothing_and_arrives_at_once_has_no_rate_and_no_hits() -> None:
    facts = independent(np.zeros(3), np.full(3, 7), np.ones(3)).described()
    assert facts["rate_per_s"] is None
    assert facts["hit_share_of_blocks"] is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"input_tokens": [25, 0, 35, 8]}, "request 1: input_tokens is 0; it must be at least 1"),
        ({"output_tokens": [1, 2, 3, -4]}, "request 3: output_tokens is -4; it must be at least 1"),
        ({"arrival_s": [0, 2, 1, 4]}, "request 2: arrival_s is 1.0; it must be at least 0, and not before"),
        ({"arrival_s": [-1, 2, 3, 4]}, "request 0: arrival_s is -1.0"),
        ({"arrival_s": [0, 1, np.nan, 4]}, "request 2: arrival_s is nan"),
        ({"arrival_s": [0, 1, 2, np.inf]}, "request 3: arrival_s is inf; it must be finite"),
        ({"after": [-1, 1, -1, 1]}, "request 1: after is 1; it must be an earlier request, or -1"),
        ({"after": [-1, -2, -1, 1]}, "request 1: after is -2"),
        ({"think_s": [0, 2, -1, 1]}, "request 2: think_s is -1.0"),
        ({"input_tokens": [20, 30, 35, 8]}, "request 0: hash_start is 0; .*no more hashes than blocks"),
        ({"priority": [0, 0]}, "priority has 2 numbers for 4 requests; it must have 4"),
        ({"hash_start": [0, 3, 6, 10]}, "hash_start has 4 numbers for 4 requests; it must have 5"),
        ({"hash_start": [0, 3, 6, 10, 12]}, "hash_start must rise from 0 to the number of hashes, 11"),
        ({"hash_start": [0, 6, 3, 10, 11]}, "hash_start must rise"),
        ({"hash_tokens": 0}, "hash_tokens is 0; it must be at least 1 where blocks have hashes"),
    ],
)
def test_what_no_request_can_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        replace(SHARING, **wrong)


def test_no_requests_are_refused() -> None:
    with pytest.raises(InputError, match="there is no request"):
        independent(np.zeros(0), np.zeros(0), np.zeros(0))
