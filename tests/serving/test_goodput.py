"""What `--goodput` takes, and which requests are good."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.serving.goodput import keeps, promises


def test_promises() -> None:
    assert promises("time_to_first_token:2000  inter_token_latency:50.5") == {
        "time_to_first_token": 2000, "inter_token_latency": 50.5}  # fmt: skip


@pytest.mark.parametrize(("text", "complaint"), [
    ("", "--goodput is empty"),
    ("time_to_first_token", "'time_to_first_token' is no metric:value"),
    ("ttft:200", "unknown metric 'ttft'; ttft is time_to_first_token here; it must be one of time_to_first_token, "),
    ("itl:200", "unknown metric 'itl'; it must be one of "),
    ("request_latency:fast", "request_latency is 'fast'; it must be a number above 0, in ms"),
    ("request_latency:-1", "request_latency is '-1'"),
    ("request_latency:inf", "request_latency is 'inf'"),
    ("output_token_throughput_per_user:x", "in tokens/sec/user"),
    ("request_latency:1 request_latency:2", "request_latency is given twice"),
])  # fmt: skip
def test_wrong_promises_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        promises(text)


def test_good_requests() -> None:
    records = {"time_to_first_token": np.array([10.0, 20.0, 21.0, 5.0]),
               "output_token_throughput_per_user": np.array([30.0, 20.0, 40.0, np.nan])}  # fmt: skip
    assert keeps(records, {"time_to_first_token": 20}).tolist() == [True, True, False, True]
    assert keeps(records, {"time_to_first_token": 20, "output_token_throughput_per_user": 30}).tolist() == [
        True, False, False, False]  # fmt: skip
