"""Queueing laws of the servers before the engines: recursions exactly, formulas within their statistical error."""

from __future__ import annotations

from heapq import heappop, heappush
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.serving.front import Admission, ApiServers, ServerTime, ends, sent_column

JOBS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 4000)), min_size=1, max_size=60)
Columns = tuple[np.ndarray, np.ndarray]


def _columns(jobs: list[tuple[int, int]]) -> Columns:
    """Arrivals and work, from gaps and work."""
    gaps, work = zip(*jobs, strict=True)
    return np.cumsum(gaps), np.array(work)


def _drawn(seed: int, jobs: int, servers: int, work: str, load: float = 0.8) -> Columns:
    """Poisson arrivals that load servers whose mean work is a millisecond."""
    random = np.random.default_rng((seed, servers))
    arrival_ps = np.cumsum(random.exponential(1e9 / (load * servers), jobs)).astype(np.int64)
    work_ps = random.exponential(1e9, jobs).astype(np.int64) if work == "M" else np.full(jobs, 10**9)
    return arrival_ps, work_ps


def _kiefer_wolfowitz(arrival_s: list[float], work_s: list[float], servers: int) -> list[float]:
    """Waits by the recursion of the sorted vector of what each server has still to do; Lindley's for one server."""
    todo_s, waits_s, before_s = np.zeros(servers), [], arrival_s[0]
    for at_s, needed_s in zip(arrival_s, work_s, strict=True):
        todo_s = np.sort(np.maximum(todo_s - (at_s - before_s), 0.0))
        waits_s.append(float(todo_s[0]))
        todo_s[0] += needed_s
        before_s = at_s
    return waits_s


@pytest.mark.parametrize("servers", [1, 2, 4, 9])
@pytest.mark.parametrize("load", [0.8, 1.3])
def test_every_wait_is_that_of_the_recursion(servers: int, load: float) -> None:
    arrival_ps, work_ps = _drawn(1, 2000, servers, "M", load)
    wait_s = (ends(arrival_ps, work_ps, servers) - work_ps - arrival_ps) / 1e12
    want_s = _kiefer_wolfowitz((arrival_ps / 1e12).tolist(), (work_ps / 1e12).tolist(), servers)
    assert np.abs(wait_s - want_s).max() < 1e-9
    assert wait_s.max() > 1e-3


@settings(max_examples=100, deadline=None)
@given(JOBS, st.integers(1, 5), st.sampled_from([0, 1, 500]), st.integers(0, 3))
def test_one_by_one_is_the_column_to_the_picosecond(jobs: list[tuple[int, int]], servers: int, request_ps: int,
                                                    token_ps: int) -> None:  # fmt: skip
    arrival_ps, tokens = _columns(jobs)
    time = ServerTime(request_ps, token_ps)
    front = ApiServers(servers, time)
    found = [front.sent_at(at, one) for at, one in zip(arrival_ps.tolist(), tokens.tolist(), strict=True)]
    assert found == sent_column(arrival_ps, tokens, servers, time).tolist()


@settings(max_examples=100, deadline=None)
@given(JOBS, st.integers(1, 5))
def test_requests_inside_over_time_are_the_sum_of_their_stays(jobs: list[tuple[int, int]], servers: int) -> None:
    arrival_ps, work_ps = _columns(jobs)
    end_ps = ends(arrival_ps, work_ps, servers)
    area, inside, before = 0, 0, 0
    for at, change in sorted([*((at, 1) for at in arrival_ps.tolist()), *((at, -1) for at in end_ps.tolist())]):
        area, inside, before = area + inside * (at - before), inside + change, at
    assert area == int((end_ps - arrival_ps).sum())
    assert inside == 0


def _mean_wait_s(servers: int, work: str, load: float = 0.8) -> float:
    """M/M/c by Erlang's formula; M/D/1 waits half as long as M/M/1 (Pollaczek and Khinchine)."""
    offered = load * servers
    none = sum(offered**k / factorial(k) for k in range(servers))
    all_busy = offered**servers / factorial(servers) / (1 - load)
    return all_busy / (none + all_busy) * 1e-3 / (servers * (1 - load)) * (1.0 if work == "M" else 0.5)


@pytest.mark.parametrize(("servers", "work", "jobs"), [(1, "M", 100_000), (1, "D", 100_000), (4, "M", 100_000)])
def test_mean_waits_are_those_of_the_formulas(servers: int, work: str, jobs: int) -> None:
    means_s = []
    for seed in range(16):
        arrival_ps, work_ps = _drawn(seed, jobs, servers, work)
        means_s.append(float(np.mean(ends(arrival_ps, work_ps, servers) - work_ps - arrival_ps)) / 1e12)
    error_s = float(np.std(means_s, ddof=1)) / 4
    want_s = _mean_wait_s(servers, work)
    assert error_s < 0.03 * want_s
    assert abs(np.mean(means_s) - want_s) < 3 * error_s


def test_one_server_of_vllm_serves_what_was_measured_and_two_do_not_hold_back() -> None:
    arrival_ps = np.cumsum(np.random.default_rng(5).exponential(1e12 / 120, 20_000)).astype(np.int64)
    tokens = np.full(20_000, 220)
    rate = {}
    for servers in (1, 2):
        sent_ps = sent_column(arrival_ps, tokens, servers, ServerTime())
        rate[servers] = len(tokens) / (sent_ps[-1] - sent_ps[0]) * 1e12
    assert rate[1] == pytest.approx(76.5, rel=0.001)
    assert rate[2] == pytest.approx(120.0, rel=0.02)


def test_what_streams_back_takes_its_turn_at_the_servers() -> None:
    front = ApiServers(1, ServerTime(100, 1, 10))
    assert front.sent_at(0, 50) == 150
    assert front.returned_at(120, 3) == 180
    assert front.sent_at(160, 0) == 280
    front = ApiServers(1, ServerTime(100, 0, 0))
    assert (front.sent_at(0, 1), front.returned_at(50, 9)) == (100, 50), "what takes no time waits for none"


def test_a_front_that_lets_nothing_through_is_refused() -> None:
    with pytest.raises(InputError, match="0 API servers let nothing through"):
        ApiServers(0, ServerTime())
    with pytest.raises(InputError, match="a limit of 0 requests lets none in"):
        Admission(0)


@settings(max_examples=100, deadline=None)
@given(JOBS, st.integers(1, 5))
def test_a_gate_is_so_many_servers(jobs: list[tuple[int, int]], limit: int) -> None:
    arrival_ps, stay_ps = _columns(jobs)
    gate, left, end_ps = Admission(limit), list[tuple[int, int]](), {}

    def goes_in(request: int, at_ps: int) -> None:
        end_ps[request] = at_ps + int(stay_ps[request])
        heappush(left, (end_ps[request], request))

    def until(at_ps: int | float) -> None:
        while left and left[0][0] <= at_ps:
            ended_ps, _ = heappop(left)
            follower = gate.leave()
            if follower is not None:
                goes_in(follower, ended_ps)

    for request, at_ps in enumerate(arrival_ps.tolist()):
        until(at_ps)
        if gate.enter(request):
            goes_in(request, at_ps)
        assert gate.inside <= limit
    until(float("inf"))
    assert gate.inside == 0
    assert [end_ps[request] for request in range(len(jobs))] == ends(arrival_ps, stay_ps, limit).tolist()
