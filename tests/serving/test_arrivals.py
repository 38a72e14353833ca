"""Times of arrival follow their law, and are the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.serving.arrivals import arrivals
from simulator.serving.draws import STREAMS, stream_of

COUNT = 100_000


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_that_were_asked_for(burstiness: float) -> None:
    cv = burstiness**-0.5
    for seed in range(4):
        gaps = np.diff(arrivals(COUNT, 5.0, seed, burstiness))
        assert (gaps >= 0).all()
        assert gaps.mean() == pytest.approx(1 / 5.0, rel=4 * cv / COUNT**0.5)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.02)


def test_burstiness_one_is_poisson() -> None:
    """Gaps exceed x with probability exp(-rate x), independently: counts in windows vary as much as their mean."""
    times = arrivals(COUNT, 5.0, seed=3)
    gaps = np.diff(times)
    for x in (0.05, 0.2, 0.6):
        assert (gaps > x).mean() == pytest.approx(np.exp(-5 * x), abs=4 * (0.25 / COUNT) ** 0.5)
    counts = np.bincount((times / 2.0).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=4 * (2 / len(counts)) ** 0.5)


def test_the_first_arrives_at_zero_whatever_the_law() -> None:
    for rate, burstiness in ((5.0, 1.0), (5.0, np.inf), (np.inf, 1.0)):
        assert arrivals(1, rate, 0, burstiness).tolist() == [0.0]


def test_infinite_burstiness_is_a_constant_gap_and_an_infinite_rate_is_all_at_once() -> None:
    assert arrivals(4, 8.0, burstiness=np.inf).tolist() == [0.0, 0.125, 0.25, 0.375]
    assert arrivals(3, np.inf).tolist() == [0.0, 0.0, 0.0]


def test_more_requests_begin_as_fewer() -> None:
    assert (arrivals(1000, 5.0, 7, 0.5)[:300] == arrivals(300, 5.0, 7, 0.5)).all()


def test_twice_the_rate_is_the_same_draw_in_half_the_time() -> None:
    assert np.allclose(arrivals(1000, 4.0, 1) * 2, arrivals(1000, 2.0, 1), rtol=1e-12)


def test_streams_of_a_seed_are_independent() -> None:
    drawn = np.array([stream_of(5, stream).random(10_000) for stream in STREAMS])
    between = np.corrcoef(drawn)[~np.eye(len(drawn), dtype=bool)]
    assert np.abs(between).max() < 4 / 10_000**0.5


def test_draws_are_the_same_in_every_process() -> None:
    code = ("from simulator.serving.arrivals import arrivals; from hashlib import sha256; "
            "print(sha256(arrivals(1000, 5.0, 9, 0.5).tobytes()).hexdigest())")  # fmt: skip
    digests = {
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
                       capture_output=True, text=True).stdout
        for seed in ("0", "1")
    }  # fmt: skip
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ((0, 1.0), "count is 0"),
        ((5, 0.0), "rate_per_s is 0.0; it must be more than 0"),
        ((5, float("nan")), "rate_per_s is nan"),
        ((5, 1.0, 0, -1.0), "burstiness is -1.0; it must be more than 0"),
        ((5, 1.0, -1), "seed is -1"),
    ],
)
def test_what_no_arrivals_can_be_is_refused(call: tuple[float, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        arrivals(*call)
