"""Where a run is steady: found where it is known, and nowhere where it is not."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from simulator.serving.over_time import levels
from simulator.serving.record import Served
from simulator.serving.steady import mser, steady_window
from tests.serving.hand import request, served

STAY_MS = 2000.0


def stays(arrivals_ms: np.ndarray, stay_ms: float = STAY_MS) -> Served:
    """Requests that all stay as long, with the first token halfway."""
    return served([request(float(at), routed=at, admitted=at, prefilled=at + stay_ms / 2, last_token=at + stay_ms)
                   for at in arrivals_ms], [])  # fmt: skip


def closed(concurrency: int, rounds: int) -> Served:
    """The next request is sent when one ends; ends are spread evenly."""
    first = np.arange(concurrency) * STAY_MS / concurrency
    return stays(np.concatenate([first + STAY_MS * turn for turn in range(rounds)]))


def test_warm_up_of_an_open_loop_is_left_out() -> None:
    gaps = np.random.default_rng(5).exponential(20.0, 3000)
    record = stays(np.cumsum(gaps) - gaps[0])
    window = steady_window(record)
    assert window.found
    assert window.end_ps == record.times["arrival"].max()
    assert 0.6 * STAY_MS <= window.start_ps / 1e9 <= 3 * STAY_MS, "the number rises until the first requests leave"
    mean = levels(record)["in_flight"](np.array(window[:2]))[0]
    assert mean == pytest.approx(STAY_MS / 20, rel=0.1)


def test_the_window_scales_with_time_and_moves_with_it() -> None:
    gaps = np.random.default_rng(6).exponential(20.0, 1000)
    at = np.round(np.cumsum(gaps))
    window = steady_window(stays(at))
    slower, later = steady_window(stays(at * 4, STAY_MS * 4)), steady_window(stays(at + 1024))
    assert slower[:2] == (pytest.approx(window.start_ps * 4, abs=4), window.end_ps * 4)
    assert later[:2] == (pytest.approx(window.start_ps + 1024 * 10**9, abs=4), window.end_ps + 1024 * 10**9)


def queue(load: float, servers: int, count: int, seed: int) -> Served:
    """M/M/c, first come first served, with a mean service of 100 ms; the first token comes when service begins."""
    draw = np.random.default_rng(seed)
    arrivals, services = np.cumsum(draw.exponential(100 / (load * servers), count)), draw.exponential(100.0, count)
    free, rows = [0.0] * servers, []
    for at, lasts in zip(arrivals.tolist(), services.tolist(), strict=True):
        begins = max(at, heapq.heappop(free))
        heapq.heappush(free, begins + lasts)
        rows.append(request(at, routed=at, admitted=begins, prefilled=begins, last_token=begins + lasts))
    return served(rows, [])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("servers", [4, 64])
def test_a_queue_below_its_capacity_is_steady_and_one_above_is_not(servers: int, seed: int) -> None:
    below, above = (steady_window(queue(load, servers, 3000, seed)) for load in (0.8, 1.3))
    assert below.found
    assert not above.found


def test_at_a_concurrency_the_number_in_the_window_is_the_concurrency() -> None:
    record = closed(8, rounds=12)
    window = steady_window(record, concurrency=8)
    assert window.found
    assert window[:2] == (round((7 / 8 * STAY_MS + STAY_MS / 2) * 1e9), round(STAY_MS * 11 * 1e9))
    assert levels(record)["in_flight"](np.array(window[:2]))[0] == pytest.approx(8, rel=1e-9)


@pytest.mark.parametrize(("record", "concurrency", "why"), [
    (closed(8, rounds=2), 8, "16 requests are too few for a concurrency of 8"),
    (closed(8, rounds=4), 8, "it takes 30 to tell"),
    (stays(np.zeros(50)), None, "all requests were sent at once"),
    (stays(np.linspace(0, 100, 50)), None, "did not settle"),
    (stays(np.linspace(0, 400, 100)), 20, "before the first 20 all had a token"),
])  # fmt: skip
def test_without_a_steady_state_it_says_why(record: Served, concurrency: int | None, why: str) -> None:
    window = steady_window(record, concurrency)
    assert not window.found
    assert why in window.why


def test_mser_of_known_series() -> None:
    noise = np.random.default_rng(2).normal(0.0, 0.1, 300)
    assert mser(np.ones(100)) == 0
    assert mser(np.arange(100.0)) is None
    assert 38 <= (mser(np.where(np.arange(300) < 40, 8.0, 1.0) + noise) or 0) <= 42
