"""What becomes of requests: closed loops, later turns, refusals, and a run that is stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import InputError, RunError
from simulator.serving.loop import Loop
from simulator.serving.record import DONE, NEVER, REFUSED, UNFINISHED
from simulator.serving.requests import Requests, independent
from simulator.serving.settings import Service
from tests.serving.services import drawn, instances, run, service, steps_by_formula


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)


def inside(arrival: np.ndarray, gone: np.ndarray) -> int:
    """The most that are there at once."""
    events = sorted([(int(at), 1) for at in arrival] + [(int(at), -1) for at in gone])
    return int(np.max(np.cumsum([step for _, step in events])))


@pytest.mark.parametrize("concurrency", [1, 7, 100])
def test_a_closed_loop_has_so_many_in_flight(concurrency: int) -> None:
    requests = at_once(drawn(60, 1))
    served = run(service(), requests, concurrency=concurrency)
    assert served.done.all()
    assert inside(served.times["arrival"], served.times["last_token"]) == min(concurrency, 60)
    assert (np.sort(served.times["arrival"]) == served.times["arrival"]).all()
    first = min(concurrency, 60)
    assert not served.times["arrival"][:first].any()
    np.testing.assert_array_equal(served.times["arrival"][first:], np.sort(served.times["last_token"])[: 60 - first])


def at_once(requests: Requests) -> Requests:
    """The same, all sent at the start."""
    return replace(requests, arrival_s=np.zeros(len(requests)))


def test_a_closed_loop_is_filled_at_the_times_of_its_requests() -> None:
    requests = drawn(60, 1)
    served = run(service(), requests, concurrency=7)
    assert served.done.all()
    assert inside(served.times["arrival"], served.times["last_token"]) <= 7
    wanted = (requests.arrival_s * 1e12).round()
    assert (served.times["arrival"] >= wanted - 1).all()
    np.testing.assert_allclose(served.times["arrival"][:3], wanted[:3], atol=1)  # nobody waits yet


def test_admission_makes_the_others_wait_in_front() -> None:
    requests = drawn(60, 1)
    served = run(service(front={"request_ms": 0.0, "admitted": 5}), requests)
    assert inside(served.times["routed"], served.times["last_token"]) == 5
    assert served.waits()["front"].max() > 0.1


def test_in_a_closed_loop_too_so_many_are_admitted_and_the_others_wait_in_front() -> None:
    served = run(service(front={"request_ms": 0.0, "admitted": 5}), drawn(60, 1), concurrency=20)
    assert served.done.all()
    assert inside(served.times["arrival"], served.times["last_token"]) == 20
    assert inside(served.times["routed"], served.times["last_token"]) == 5
    assert served.waits()["front"].max() > 0.1


def test_a_later_turn_comes_after_the_one_before_and_time_to_think() -> None:
    plain = drawn(30, 3)
    after = np.where(np.arange(30) % 3, np.arange(30) - 1, -1)
    requests = replace(plain, after=after, think_s=np.full(30, 0.25))
    served = run(service(), requests)
    later = after >= 0
    want = np.maximum(served.times["last_token"][after[later]] + 250_000_000_000,
                      np.ceil(plain.arrival_s[later] * 1e12).astype(np.int64))  # fmt: skip
    assert np.abs(served.times["arrival"][later] - want).max() <= 1


@pytest.mark.parametrize("last_s", [9.01e6, 1e30])
def test_times_that_whole_picoseconds_cannot_hold_are_refused_with_what_would_be_right(last_s: float) -> None:
    late = independent(np.array([0.0, last_s]), np.array([4, 4]), np.array([2, 2]))
    with pytest.raises(InputError, match=r"request 1: arrival_s is .*at most 9e\+06 .*speedup"):
        Loop(service(), late)
    last = run(service(), independent(np.array([0.0, 8.9e6]), np.array([4, 4]), np.array([2, 2])))
    assert last.done.all()


@pytest.mark.parametrize("of", [service(instances(tokens=328)),
                                service(instances(tokens=328), prefill=instances(tokens=10_000)),
                                service(instances(tokens=10_000), prefill=instances(tokens=328))])  # fmt: skip
def test_what_is_longer_than_memory_is_refused_one_by_one(of: Service) -> None:
    """328 tokens are 20 blocks of 16."""
    lengths = np.array([[100, 50], [300, 20], [330, 1], [5, 400], [319, 1], [16, 304]])
    requests = independent(np.arange(6) * 1e-3, *lengths.T)
    served = run(of, requests)
    most = {"engines": 320 if of.engines.cache.tokens == 328 else 10_000,
            "prefill": 320 if of.prefill and of.prefill.cache.tokens == 328 else 10_000}  # fmt: skip
    fits = (requests.input_tokens + requests.output_tokens <= most["engines"]) & (
        requests.input_tokens + 1 <= most["prefill"])  # fmt: skip
    assert served.status.tolist() == np.where(fits, DONE, REFUSED).tolist()
    assert (~fits).sum() >= 1
    for name, column in served.times.items():
        assert (column[~fits] == NEVER).all() or name in ("arrival", "routed")


@pytest.mark.parametrize("scheduler", ["vllm", "sglang", "trtllm"])
def test_one_request_that_just_fits_is_served(scheduler: str) -> None:
    requests = independent(np.zeros(3), np.array([313, 40, 9]), np.array([7, 280, 311]))
    served = run(service(instances(scheduler=scheduler, tokens=320)), requests)
    assert served.done.all()


@pytest.mark.parametrize("of", [service(), service(instances(tokens=640)),
                                service(instances(tokens=640), prefill=instances(count=2))])  # fmt: skip
def test_a_run_that_is_stopped_says_what_there_is(of: Service, tmp_path: Path) -> None:
    requests = drawn(60, 9)
    stopped_at = []

    def tell(share: float) -> None:
        if share >= 0.5:
            stopped_at.append(share)
            raise KeyboardInterrupt

    whole = run(of, requests)
    served = Loop(of, requests, steps="lattice", folder=tmp_path, tell=tell).run()
    assert served.interrupted
    assert len(stopped_at) == 1
    assert set(served.status.tolist()) == {DONE, UNFINISHED}
    assert int(served.done.sum()) == 30
    for name, column in served.times.items():
        there = column != NEVER
        np.testing.assert_array_equal(column[there], whole.times[name][there], name)
    going_on = (served.times["first_token"] != NEVER) & ~served.done
    assert (served.emitted[going_on] >= 1).all()
    assert (served.emitted[going_on] <= requests.output_tokens[going_on]).all()
    assert not served.emitted[served.times["first_token"] == NEVER].any()
    assert (served.preempted_ps >= 0).all()
    rows = len(served.steps["start_ps"])
    for name in ("start_ps", "duration_ps", "decoding"):
        np.testing.assert_array_equal(served.steps[name], whole.steps[name][:rows])
    assert list(tmp_path.glob("*.json")), "steps that were simulated are kept"


def test_times_that_no_clock_counts_are_refused() -> None:
    with pytest.raises(RunError, match=r"a test: it lasts longer than the 106 days"):
        run(service(front={"request_ms": 1e15}), drawn(2))
