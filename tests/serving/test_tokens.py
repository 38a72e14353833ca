"""Gaps between the tokens of a request, from the steps in which it decoded."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from simulator.serving.record import Served
from simulator.serving.tokens import chunks_of, gaps_spread, longest_gaps_ms, tokens_between
from tests.serving.hand import MS, apart, request, served, step, together


def test_gaps_of_requests_by_hand() -> None:
    record = together()
    chunks = chunks_of(record)
    assert chunks.count.tolist() == [3, 2, 0, 0]
    assert chunks.first_gap_ps[:2].tolist() == [10 * MS, 10 * MS]
    assert longest_gaps_ms(record, chunks)[:2].tolist() == [30, 10]
    assert np.isnan(longest_gaps_ms(record, chunks)[2:]).all()
    gaps = gaps_spread(chunks, record.done)
    assert gaps is not None
    assert (gaps["count"], gaps["sum"], gaps["max"], gaps["p50"]) == (5, 70.0, 30.0, 10.0)


def test_a_step_that_runs_when_the_cache_arrives_gives_no_token() -> None:
    record = apart()
    chunks = chunks_of(record)
    assert chunks.count.tolist() == [2]
    assert chunks.first_gap_ps.tolist() == [23 * MS]
    assert longest_gaps_ms(record, chunks).tolist() == [23]


def test_the_longest_tenth_is_rounded_up() -> None:
    steps = [step(0, 10, 0, 5)] + [step(10 + 100 * place, 100, 1) for place in range(20)] + [step(2010, 500, 1)]
    record = served([request(0, tokens=(5, 22), routed=0, admitted=0, prefilled=10, last_token=2510)], steps)
    assert longest_gaps_ms(record, chunks_of(record)).tolist() == [pytest.approx((500 + 100 + 100) / 3)]


def test_a_preemption_is_a_gap() -> None:
    record = served(
        [request(0, tokens=(5, 2), routed=0, admitted=0, prefilled=10, last_token=90, preemptions=1, preempted=70)],
        [step(0, 10, 0, 5), step(10, 10, 3), step(80, 10, 1)])  # fmt: skip
    assert longest_gaps_ms(record, chunks_of(record)).tolist() == [70]


def test_gaps_add_up_to_the_time_from_the_first_token_to_the_last() -> None:
    record = together()
    gaps = gaps_spread(chunks_of(record), record.done)
    decoding = (record.times["last_token"] - record.times["first_token"])[record.done].sum() / MS
    assert gaps is not None
    assert gaps["sum"] == decoding


def test_tokens_are_conserved_between_any_times() -> None:
    record = together()
    chunks = chunks_of(record)
    edges = [0, 35 * MS, 71 * MS, 80 * MS + 1, 91 * MS]
    assert [tokens_between(record, chunks, *pair) for pair in pairwise(edges)] == [1, 3, 2, 1]
    assert tokens_between(record, chunks, 0, record.end_ps + 1) == record.emitted.sum()


def test_drafts_give_several_tokens_a_step() -> None:
    record = served([request(0, tokens=(5, 7), routed=0, admitted=0, prefilled=10, last_token=30)],
                    [step(0, 10, 0, 5), step(10, 10, 1), step(20, 10, 1)])  # fmt: skip
    chunks = chunks_of(record)
    assert chunks.count.tolist() == [2]
    assert tokens_between(record, chunks, 20 * MS, 30 * MS) == 3


def test_an_unfinished_request_counts_as_far_as_it_came() -> None:
    record = together()
    times = record.times | {"last_token": np.where(np.arange(4) == 1, -1, record.times["last_token"])}
    record = replace(record, times=times, status=np.array([0, 2, 1, 2]))
    assert chunks_of(record).count.tolist() == [3, 2, 0, 0]


def drawn_service(seed: int) -> tuple[Served, list[list[int]]]:
    """Two engines that batch continuously, with steps, pauses and lengths drawn; and when every token came."""
    draw = np.random.default_rng(seed)
    requests, rows, tokens = [], [], []
    for engine in range(2):
        now, running, left = 0, {}, 30
        while left or running:
            now += int(draw.choice([0, 0, 0, 7]))
            new, wanted = bool(left and (not running or draw.random() < 0.3)), int(draw.integers(1, 40))
            lasts = int(draw.integers(1, 50))
            rows.append(step(now, lasts, len(running), 10 * new, engine=engine))
            now += lasts
            for number in list(running):
                tokens[number].append(now)
                running[number] -= 1
            if new:
                left -= 1
                running[len(tokens)] = wanted - 1
                requests.append((now - lasts, wanted, engine))
                tokens.append([now])
            running = {number: more for number, more in running.items() if more}
    rows.sort(key=lambda row: row[1])
    return served(
        [request(at, tokens=(10, wanted), engine=engine, routed=at, admitted=at, prefilled=came[0], last_token=came[-1])
         for (at, wanted, engine), came in zip(requests, tokens, strict=True)], rows,
        engines=["engine 0", "engine 1"]), tokens  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_gaps_are_those_of_tokens_followed_one_by_one(seed: int) -> None:
    record, tokens = drawn_service(seed)
    gaps = [np.sort(np.diff(came)) for came in tokens]
    chunks = chunks_of(record)
    assert chunks.count.tolist() == [len(one) for one in gaps]
    longest = [one[len(one) - -(-len(one) // 10):].mean() if len(one) else np.nan for one in gaps]
    assert longest_gaps_ms(record, chunks) == pytest.approx(longest, nan_ok=True)
    found, every = gaps_spread(chunks, record.done), np.concatenate(gaps)
    assert found is not None
    assert (found["count"], found["sum"]) == (len(every), every.sum())
    assert [found["p50"], found["p90"], found["p99"], found["std"]] == pytest.approx(
        [*np.percentile(every, (50, 90, 99)), every.std()])  # fmt: skip
    low, high = 300, 900
    between = sum(low <= at < high for came in tokens for at in came)
    assert tokens_between(record, chunks, low * MS, high * MS) == pytest.approx(between, rel=1e-12)


def test_tokens_without_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="request 0: no step decoded"):
        chunks_of(served([request(0, tokens=(5, 2), routed=0, admitted=0, prefilled=10, last_token=20)],
                         [step(0, 10, 0, 5)]))  # fmt: skip
