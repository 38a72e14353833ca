"""Every figure of a service, checked by hand."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest

from simulator.serving.goodput import promises
from simulator.serving.outcome import PIECES, outcome
from simulator.serving.record import WAITS, Served
from simulator.serving.requests import independent
from tests.serving.hand import MS, apart, request, served, step, together


def averages(record: Served) -> dict[str, float]:
    return {name: float(block["avg"]) for name, block in outcome(record).whole.metrics.items()}


def test_metrics_of_all_by_hand() -> None:
    found = averages(together())
    assert found == pytest.approx({
        "time_to_first_token": (30 + 50) / 2, "time_to_second_token": 10, "inter_token_latency": (50 / 3 + 10) / 2,
        "time_between_tokens": (30 + 10) / 2, "request_latency": (80 + 70) / 2, "inter_chunk_latency": 70 / 5,
        "output_token_throughput_per_user": (60 + 100) / 2, "input_sequence_length": 200,
        "output_sequence_length": 3.5, "request_count": 2, "error_request_count": 1, "total_isl": 400, "total_osl": 7,
        "prefix_cache_hit_ratio": 100 / 400, "benchmark_duration": 0.09, "request_throughput": 2 / 0.09,
        "output_token_throughput": 7 / 0.09, "output_token_throughput_per_gpu": 3.5 / 0.09})  # fmt: skip


def test_metrics_apart_by_hand() -> None:
    found = averages(apart())
    assert (found["time_to_first_token"], found["time_to_second_token"]) == (11, 23)
    assert (found["inter_token_latency"], found["request_latency"]) == (16.5, 44)


def test_units_are_those_of_aiperf() -> None:
    units = {name: block["unit"] for name, block in outcome(together()).whole.metrics.items()}
    assert {units[name] for name in ("time_to_first_token", "inter_token_latency", "request_latency")} == {"ms"}
    assert (units["request_throughput"], units["output_token_throughput"]) == ("requests/sec", "tokens/sec")
    assert (units["benchmark_duration"], units["request_count"]) == ("sec", "requests")


def test_counts() -> None:
    assert outcome(together()).counts == {"requests": 4, "done": 2, "refused": 1, "unfinished": 1}


def test_waits_by_hand() -> None:
    waits = outcome(together()).whole.waits
    assert tuple(waits) == tuple(name for name in WAITS if name != "load"), "nothing lies below HBM"
    assert {name: one["mean_s"] for name, one in waits.items()} == pytest.approx({
        "front": 0.005, "queue": 0.010, "prefill": 0.025, "transfer": 0, "decode": 0.035, "preempted": 0})
    assert waits["prefill"]["p99_s"] == pytest.approx(0.0299)
    assert waits["decode"]["share"] == pytest.approx(70 / 150)
    assert sum(one["share"] for one in waits.values()) == pytest.approx(1)


@pytest.mark.parametrize(("text", "good"), [
    ("time_to_first_token:30", [True, False]), ("inter_token_latency:10", [False, True]),
    ("time_to_first_token:30 inter_token_latency:10", [False, False]), ("time_between_tokens:30", [True, True]),
    ("output_token_throughput_per_user:100", [False, True])])  # fmt: skip
def test_goodput_by_hand(text: str, good: list[bool]) -> None:
    found = outcome(together(), promises(text))
    assert found.good.tolist() == [*good, False, False]
    assert found.whole.metrics["goodput"]["avg"] == pytest.approx(sum(good) / 0.09)
    assert found.whole.metrics["good_request_count"]["avg"] == sum(good)
    assert found.whole.metrics["good_request_fraction"]["avg"] == pytest.approx(sum(good) / 3), "refused ones count"


def test_over_time_is_the_same_whole() -> None:
    found = outcome(together())
    for name, mean in found.whole.means.items():
        assert len(found.over_time[name]) == PIECES
        assert found.over_time[name].mean() == pytest.approx(mean)


def test_nothing_done_has_no_metrics_of_requests() -> None:
    found = outcome(served([request(0, engine=-1, emitted=0, status=1)], []), promises("request_latency:5"))
    assert set(found.whole.metrics) == {"request_count", "error_request_count", "total_isl", "total_osl",
                                        "good_request_count", "good_request_fraction"}  # fmt: skip
    assert (found.whole.waits, found.steady) == ({}, None)


def test_a_request_that_was_never_sent_changes_nothing() -> None:
    rows = [request(0, tokens=(100, 2), routed=0, admitted=0, prefilled=20, last_token=30)]
    never = request(-1e-9, tokens=(7, 2), engine=-1, emitted=0, status=2)
    one, two = (outcome(served(some, [step(0, 20, 0, 100), step(20, 10, 1)])) for some in (rows, [*rows, never]))
    assert two.counts["unfinished"] == 1
    assert (one.whole.metrics, one.whole.waits, one.whole.means) == (
        two.whole.metrics, two.whole.waits, two.whole.means)  # fmt: skip


def closed_loop(count: int, concurrency: int, tokens: int, step_ms: int = 20) -> Served:
    """Steps of equal length; each of `concurrency` places has one request after the other, each with a step of its
    prompt and then a token a step, the first of them as many steps later as its place."""
    turn, place = np.divmod(np.arange(count), concurrency)
    start = (place * tokens // concurrency + turn * tokens) * step_ms * MS
    last = start + tokens * step_ms * MS
    times = {"arrival": start, "routed": start, "admitted": start, "prefilled": start + step_ms * MS,
             "joined": start + step_ms * MS, "first_token": start + step_ms * MS, "last_token": last}
    steps = int(last.max()) // (step_ms * MS)
    nothing = np.zeros(count, dtype=np.int64)
    columns = {name: np.zeros(steps, dtype=np.int64) for name in (
        "engine", "cached_tokens", "prefill_tokens", "waiting", "used_blocks",
        "most_tokens")}  # fmt: skip
    columns |= {"start_ps": np.arange(steps) * step_ms * MS, "duration_ps": np.full(steps, step_ms * MS),
                "decoding": np.full(steps, concurrency)}  # fmt: skip
    asked = independent(np.sort(start) / 1e12, nothing + 1000, nothing + tokens)
    return Served(asked, times, nothing, nothing, nothing, nothing, nothing, nothing + tokens, nothing, columns,
                  ["engine 0"], 8)  # fmt: skip


def test_the_steady_part_of_a_closed_loop_has_its_rate() -> None:
    found = outcome(closed_loop(64 * 10, 64, tokens=128), concurrency=64)
    assert found.steady is not None
    metrics = found.steady.metrics
    assert found.steady.means["in_flight"] == pytest.approx(64)
    assert metrics["inter_token_latency"]["avg"] == pytest.approx(20)
    rate = 64 / 128 / 0.020
    assert metrics["request_throughput"]["avg"] == pytest.approx(rate, rel=0.01)
    assert metrics["output_token_throughput"]["avg"] == pytest.approx(rate * 128, rel=0.01)
    assert found.whole.metrics["output_token_throughput"]["avg"] < 0.95 * rate * 128, "all includes the slow start"


def test_many_requests_take_less_than_a_second() -> None:
    record = closed_loop(20_000, 10_000, tokens=350)
    began = perf_counter()
    found = outcome(record, promises("time_to_first_token:2000 inter_token_latency:50"), concurrency=10_000)
    assert perf_counter() - began < 1.0
    gaps = found.whole.metrics["inter_chunk_latency"]
    assert (gaps["count"], gaps["p99"]) == (20_000 * 349, 20)
