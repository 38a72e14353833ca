"""What engines do over time from their steps: closed forms, and what must hold whatever the steps are."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.search.deployment import Ask, Engine
from simulator.search.found import largest, of_apart, of_together, options
from simulator.search.level import Prefilling, together
from simulator.search.sheet import Sheet

ASK = Ask("model", "machine", 1, 64, 4096, 1024)
steps = st.floats(1e-3, 0.2)


def sheet(decode: list[float], chunk: tuple[float, ...], groups: int = 1, tokens: int = 8192,
          prefill: tuple[tuple[int, float], ...] = ()) -> Sheet:
    """decode: seconds of 1, 2, 4, ... requests of a group."""
    rows = tuple((1 << power, seconds) for power, seconds in enumerate(decode))
    return Sheet(Engine("vllm", f"dp={groups}", (), tokens), groups, groups, decode=rows, chunk=chunk, prefill=prefill)


@st.composite
def sheets(draw: st.DrawFn) -> Sheet:
    """Steps of more requests take as long or longer, and so do those with more chunks."""
    decode = sorted(draw(st.lists(steps, min_size=2, max_size=8)))
    one, more = draw(steps), draw(steps)
    prefill = ((1, one), (2, one + draw(steps)))
    return sheet(decode, (one, one + more), draw(st.integers(1, 8)), draw(st.sampled_from((2048, 8192))), prefill)


def test_the_worked_example() -> None:
    """16 groups of 64 requests, chunks of whole prompts: the mean step, by its closed form."""
    found = sheet([0.047] * 7, (0.653, 1.099), groups=16, tokens=4160)
    one = together(ASK, found, 64, 0.047)
    assert one is not None
    none = (1 - 1 / 16) ** 16
    mean = none * 0.047 + (1 - none) * 0.700 + none * 0.446 / 15
    assert one.tpot_s == pytest.approx(mean, rel=1e-12)
    assert one.tpot_s == pytest.approx(0.478, abs=0.001)
    assert one.tokens_per_s == pytest.approx(16 * 64 / mean)


def test_of_one_group_a_step_has_a_chunk_or_none() -> None:
    one = together(ASK, sheet([0.02] * 4, (0.1, 0.1)), 8, 0.02)
    assert one is not None
    assert one.tpot_s == pytest.approx(0.02 + 8 * 4096 / 1024 / 4096 * 0.1)


def test_prompts_faster_than_steps_have_tokens_are_refused() -> None:
    found = sheet([0.02] * 12, (0.1, 0.1), tokens=2048)
    assert together(ASK, found, 400, 0.02) is not None
    assert together(ASK, found, 410, 0.02) is None, "410 x 4 tokens a step, and 2048 - 410 to have them"


@given(sheets(), st.integers(1, 100), steps)
@settings(deadline=None)
def test_without_prompts_a_token_takes_a_step(one: Sheet, count: int, seconds: float) -> None:
    """New tokens to 0, as their outputs get long beside them."""
    ask = ASK._replace(input_tokens=1, output_tokens=10**9)
    found = together(ask, one, count, seconds)
    assert found is not None
    assert found.tpot_s == pytest.approx(seconds, rel=1e-4)


@given(sheets(), st.integers(1, 256), steps)
@settings(deadline=None)
def test_tokens_are_conserved(one: Sheet, count: int, seconds: float) -> None:
    """A request's tokens take TPOT each, and those that wait for their first are as many as come while one does."""
    found = together(ASK, one, count, seconds)
    if found is None:
        return
    assert found.tokens_per_s * found.tpot_s == pytest.approx(count * one.groups)
    prompts_per_s = found.tokens_per_s / ASK.output_tokens
    assert found.in_flight == pytest.approx(count * one.groups + prompts_per_s * found.ttft_s, abs=0.51)
    assert found.tpot_s >= seconds * (1 - 1e-12)


@given(sheets())
@settings(deadline=None)
def test_more_requests_lower_no_tpot(one: Sheet) -> None:
    """Where a step's own time grows with them, as it is simulated to."""
    found = [together(ASK, one, count, seconds) for count, seconds in one.decode]
    assert all(a is None or b is None or b.tpot_s >= a.tpot_s * (1 - 1e-9) for a, b in pairwise(found))
    assert all(b is None for a, b in pairwise(found) if a is None)


@given(sheets())
@settings(deadline=None)
def test_more_prompts_in_steps_as_long_raise_ttft(one: Sheet) -> None:
    """As far as requests that decode leave them as many tokens of a step. Longer steps without prompts could lower it:
    fewer of the arrivals then meet a step with one."""
    seconds, tokens = one.decode[0][1], one.engine.tokens
    found = [together(ASK, one, count, seconds) for count, _ in one.decode]
    for a, b in pairwise(found):
        left = 1.0 if a is None or b is None else (tokens - b.count) / (tokens - a.count)
        assert a is None or b is None or b.ttft_s >= a.ttft_s * left * (1 - 1e-9)


def test_fewer_tokens_for_prompts_shorten_the_steps_that_have_some() -> None:
    """Three groups, nearly every step with prompts: 64 requests leave 1984 tokens, 32 leave 2016."""
    crowded = sheet([1 / 512] + [1 / 8] * 6, (0.1875, 0.189453125), groups=3, tokens=2048)
    before, after = (together(ASK, crowded, count, 1 / 512) for count in (32, 64))
    assert before is not None
    assert after is not None
    assert 1984 / 2016 < after.ttft_s / before.ttft_s < 1.0


@given(sheets(), st.floats(0, 0.99), st.floats(0, 0.99))
@settings(deadline=None)
def test_an_engine_that_prefills_is_slower_the_busier_it_is(one: Sheet, first: float, second: float) -> None:
    low, high = sorted((first, second))
    engine = Prefilling(one)
    assert engine.at(low)[1] <= engine.at(high)[1]
    assert engine.at(engine.most(0.3))[1] <= 0.3 or engine.most(0.3) == 0.0
    rate, busy = engine.at(low)[0], engine.busy(engine.at(low)[0])
    assert engine.at(busy)[0] == pytest.approx(rate, rel=1e-4, abs=1e-6)


@given(sheets(), sheets(), st.integers(1, 64), st.integers(0, 63))
@settings(deadline=None)
def test_engines_apart_keep_all_limits(decoding: Sheet, prefilling: Sheet, most: int, fewer: int) -> None:
    ask = ASK._replace(most_gpus=most, least_gpus=max(most - fewer, 1))
    beside = options(ask, [prefilling])
    for one in of_apart(ask, decoding, beside):
        (option,) = beside
        prompts_per_s = one.tok_s_per_gpu * one.gpus / ask.output_tokens
        assert ask.least_gpus <= one.gpus == one.count * decoding.cards + one.prefill_count * prefilling.cards <= most
        assert prompts_per_s <= one.prefill_count * option.prompts_per_s * (1 + 1e-9)
        idle = ceil((ask.least_gpus - one.count * decoding.cards) / prefilling.cards)  # rather than none
        assert one.prefill_count == max(ceil(prompts_per_s / option.prompts_per_s - 1e-9), idle)
        assert one.tpot_ms <= ask.tpot_ms
        assert one.ttft_ms <= ask.ttft_ms * (1 + 1e-6)


@given(sheets(), st.floats(10, 200), st.floats(50, 2000))
@settings(deadline=None)
def test_the_largest_batch_is_within_the_limits_and_one_more_is_not(one: Sheet, tpot_ms: float, ttft_ms: float) -> None:
    ask = ASK._replace(tpot_ms=tpot_ms, ttft_ms=ttft_ms)
    size, stopped = largest(ask, one)
    found = of_together(ask, one)
    assert all(point.tpot_ms <= tpot_ms and point.ttft_ms <= ttft_ms for point in found)
    assert stopped in ("TPOT", "TTFT", "memory", "prefill")
    if size:
        assert max(point.requests for point in found) == size * one.groups
        assert [point.stopped_by for point in found if point.requests == size * one.groups] == [stopped]


def test_no_more_cards_than_there_are() -> None:
    ask = ASK._replace(least_gpus=8, most_gpus=12)
    one = sheet([0.02] * 4, (0.01, 0.01), groups=8)
    assert [(found.count, found.gpus) for found in of_together(ask, one)][:1] == [(1, 8)]
    assert of_together(ask._replace(least_gpus=9), one) == []
    assert of_together(ask._replace(least_gpus=1, most_gpus=7), one) == []


def test_engines_that_waste_gpus_do_not_hide_those_that_fit() -> None:
    """With exactly 16 GPUs: one engine of 6 and three of 4 are too many, two of 6 and one of 4 are as many."""
    decoding = Sheet(Engine("vllm", "tp=6"), cards=6, decode=((1, 0.02),))
    prefilling = Sheet(Engine("vllm", "tp=4"), cards=4, prefill=((1, 0.01),))
    ask = ASK._replace(least_gpus=16, most_gpus=16)
    (found,) = of_apart(ask, decoding, options(ask, [prefilling]))
    assert (found.count, found.prefill_count, found.gpus) == (2, 1, 16)
