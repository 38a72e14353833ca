"""A run ends when its steady state is known, and what it says is what a longer run says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.serving.loop import Loop
from simulator.serving.offered import ENDLESS, drawn, endless
from simulator.serving.outcome import Outcome, outcome
from simulator.serving.settings import Load, Service
from simulator.serving.until import BATCHES, LEAST, STUDENT_T, WITHIN, Until, estimate, estimates
from tests.serving.services import instances, service, steps_by_formula

OPEN = Load(rate=150.0, burstiness=float("inf"), input_tokens=200, output_tokens=10, range_ratio=0.8, requests=3000)


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)


def found(load: Load, seed: int = 0, until: bool = True, of: Service | None = None) -> Outcome:
    offered = drawn(load, seed, 16)
    watch = Until(offered.concurrency or None) if until else None
    served = Loop(of or service(instances()), offered.requests, concurrency=offered.concurrency, steps="lattice",
                  seed=seed, until=watch).run()  # fmt: skip
    return outcome(served, None, offered.concurrency or None)


@pytest.mark.parametrize("seed", [1, 3])
def test_it_says_what_a_run_ten_times_as_long_says(seed: int) -> None:
    short = found(OPEN, seed)
    assert short.steady is not None
    assert len(short.served) < OPEN.requests / 10
    long = found(OPEN.model_copy(update={"requests": 10 * len(short.served)}), seed + 10, until=False)
    assert long.steady is not None
    for name, one in short.estimates.items():
        assert one.known
        assert one.half_width <= WITHIN * one.mean
        assert float(long.steady.metrics[name]["avg"]) == pytest.approx(one.mean, abs=one.half_width), name
        assert float(short.steady.metrics[name]["avg"]) == pytest.approx(one.mean, rel=0.005), name


def test_all_that_were_sent_are_in_the_record_and_no_others() -> None:
    run = found(OPEN)
    served, times = run.served, run.served.times
    assert (times["arrival"] >= 0).all()
    assert run.counts["requests"] == len(served) == len(times["last_token"]) < OPEN.requests
    assert run.counts["unfinished"] > 0
    assert not served.interrupted
    assert run.steady is not None
    assert run.steady.end_ps <= times["arrival"][served.status == 2].min(), "no request that has not ended is in it"


def test_without_it_nothing_is_cut_and_nothing_said() -> None:
    run = found(OPEN.model_copy(update={"requests": 400}), until=False)
    assert run.counts == {"requests": 400, "done": 400, "refused": 0, "unfinished": 0}
    assert not run.estimates


def test_a_queue_that_grows_goes_on_to_the_last_request() -> None:
    run = found(OPEN.model_copy(update={"requests": 600, "rate": 20_000.0}))
    assert run.counts["done"] == 600
    assert run.steady is None


def test_a_closed_loop_ends_too() -> None:
    load = OPEN.model_copy(update={"rate": 0.0, "concurrency": 4, "range_ratio": 1.0})
    run = found(load)
    assert len(run.served) < load.requests
    assert all(one.known for one in run.estimates.values())
    assert set(run.estimates) == {"time_to_first_token", "inter_token_latency", "output_token_throughput"}


def test_the_interval_of_independent_draws_holds_the_mean_nineteen_times_in_twenty() -> None:
    draws = np.random.default_rng(3).normal(10.0, 1.0, (2000, BATCHES))
    made = [estimate(row) for row in draws]
    share = np.mean([abs(one.mean - 10.0) <= one.half_width for one in made])
    assert share == pytest.approx(0.95, abs=0.015)


def test_pieces_that_follow_each_other_tell_less() -> None:
    """Of an autoregressive series the mean is within it more often than an interval of independent draws says."""
    noise, series = np.random.default_rng(4).normal(0.0, 1.0, (1000, 200 + BATCHES)), np.zeros((1000, 200 + BATCHES))
    for place in range(1, series.shape[1]):
        series[:, place] = 0.7 * series[:, place - 1] + noise[:, place]
    rows = series[:, -BATCHES:]
    plain = STUDENT_T * rows.std(axis=1, ddof=1) / np.sqrt(BATCHES)
    wide = np.array([estimate(row).half_width for row in rows])
    assert np.mean(np.abs(rows.mean(axis=1)) <= plain) < 0.65
    assert np.mean(np.abs(rows.mean(axis=1)) <= wide) > 0.75
    assert estimate(np.ones(BATCHES)) == (1.0, 0.0)


def test_it_looks_seldom() -> None:
    until = Until(None)
    looks = [ended for ended in range(1, 20_000) if until.due(ended)]
    assert looks[0] == LEAST
    assert all(1.49 < later / before < 1.51 for before, later in pairwise(looks))


def test_of_few_requests_nothing_is_said() -> None:
    run = found(OPEN.model_copy(update={"requests": 150}), until=False)
    assert run.steady is not None
    assert estimates(run.served, run.window) == {}


def test_an_endless_load_has_as_many_as_may_be_needed() -> None:
    assert endless(OPEN).requests == ENDLESS
    with pytest.raises(InputError, match=r"load\.rate is inf: all requests come at once"):
        endless(Load(rate=float("inf")))
