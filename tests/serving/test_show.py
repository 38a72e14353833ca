"""The report in a terminal: it says what there is, and fits."""

from __future__ import annotations

import io

import numpy as np
import pytest

from simulator.serving.goodput import promises
from simulator.serving.outcome import Outcome, outcome
from simulator.serving.show import bars, print_outcome
from tests.serving.hand import request, served, together
from tests.serving.test_outcome import closed_loop

ABOUT = {"simulated": 12, "known": 3400, "interpolated": 98_765, "audited": 50, "audit_error_mean": 0.0021,
         "audit_error_worst": -0.014, "correction": 1.0031}  # fmt: skip


def text_of(found: Outcome) -> str:
    file = io.StringIO()
    print_outcome(found, "a service", file, width=100)
    assert max(map(len, file.getvalue().splitlines())) <= 100
    return file.getvalue()


def line(text: str, start: str) -> list[str]:
    return next(one for one in text.splitlines() if one.startswith(start)).split()


def test_a_whole_report() -> None:
    found = outcome(closed_loop(640, 64, tokens=64), promises("time_to_first_token:2000 inter_token_latency:50"), 64)
    text = text_of(found)
    assert "640 requests: 640 done\n" in text
    assert "steady from when the first 64 requests had a token" in text
    assert "goodput: all 45.52 requests/s (100.0% good), steady 50" in text
    assert text.count("time_to_first_token, ms ") == 2
    assert line(text, "inter_token_latency, ms") == ["inter_token_latency,", "ms", "TPOT", "20", "20", "20", "20"]
    assert line(text, "decode")[-3:] == ["1,260", "1,260", "98.4%"]
    assert "SATURATED" not in text


def test_what_to_beware_of() -> None:
    record = together(interrupted=True, about_steps=ABOUT, saturated={"rate_per_s": 12.0, "stable_per_s": 8.25})
    text = text_of(outcome(record))
    assert "INTERRUPTED" in text
    assert "4 requests: 2 done, 1 refused (longer than memory), 1 unfinished" in text
    assert "12 requests/s are offered, about 8.25 can be served" in text
    assert "no steady state: " in text
    assert "25.0% of prompts cached" in text
    assert "steps: 12 simulated, 3,400 known from disk, 98,765 interpolated, 50 audited" in text
    assert "error of interpolated steps: mean +0.21%, worst -1.40%; interpolated times x1.0031" in text


def test_numbers_of_the_tables() -> None:
    text = text_of(outcome(together()))
    assert line(text, "time_to_first_token, ms")[2:] == ["TTFT", "40", "40", "48", "49.8"]
    assert line(text, "queue")[-3:] == ["10", "14.90", "13.3%"]
    assert "preempted" not in text


def test_nothing_served_is_said() -> None:
    text = text_of(outcome(served([request(0, engine=-1, emitted=0, status=1)], []), promises("request_latency:5")))
    assert "1 request: 0 done, 1 refused" in text
    assert "all: nothing ended" in text
    assert "goodput: none\ngood: request_latency <= 5 ms\n" in text


@pytest.mark.parametrize(("values", "drawn"), [([0, 0.1, 4, 8], " ▁▅█"), ([0, 0], "  "), ([], "")])
def test_bars(values: list[float], drawn: str) -> None:
    assert bars(np.array(values)) == drawn
