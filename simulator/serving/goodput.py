"""Goodput: requests that keep every promise, as `--goodput "time_to_first_token:2000 inter_token_latency:50"` says."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from simulator import np
from simulator.errors import InputError

LARGER_IS_BETTER = ("output_token_throughput_per_user",)
PROMISED = ("time_to_first_token", "time_to_second_token", "inter_token_latency", "request_latency",
            "time_between_tokens", *LARGER_IS_BETTER)  # fmt: skip
VLLM = {"time_to_first_token": "TTFT", "inter_token_latency": "TPOT", "inter_chunk_latency": "ITL",
        "request_latency": "E2EL"}  # fmt: skip
"""What vLLM's benchmark calls what AIPerf calls so."""


def promises(text: str) -> dict[str, float]:
    """Metrics and the values that they must keep: times in ms at most, tokens/sec/user at least; in the text's order.

    Raises InputError for what is no `metric:value`, for an unknown metric, one given twice and a value not above 0.
    """
    found: dict[str, float] = {}
    for one in text.split():
        name, colon, value = one.partition(":")
        if not colon:
            raise InputError(f"--goodput: '{one}' is no metric:value, as in time_to_first_token:2000")
        if name not in PROMISED:
            short = {vllm.lower(): known for known, vllm in VLLM.items()}.get(name.lower())
            meant = f"; {name} is {short} here" if short in PROMISED else ""
            raise InputError(f"--goodput: unknown metric '{name}'{meant}; it must be one of {', '.join(PROMISED)}")
        if name in found:
            raise InputError(f"--goodput: {name} is given twice")
        found[name] = _value(name, value)
    if not found:
        raise InputError("--goodput is empty; it must name a metric and its value, as in time_to_first_token:2000")
    return found


def _value(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (isfinite(value) and value > 0):
        unit = "tokens/sec/user" if name in LARGER_IS_BETTER else "ms"
        raise InputError(f"--goodput: {name} is '{text}'; it must be a number above 0, in {unit}")
    return value


def keeps(records: Mapping[str, np.Array], promised: Mapping[str, float]) -> np.Array:
    """Which requests keep all; one that lacks a metric, as a single token has no inter_token_latency, does not (nor
    does it in AIPerf)."""
    kept = [records[name] >= value if name in LARGER_IS_BETTER else records[name] <= value
            for name, value in promised.items()]  # fmt: skip
    return np.logical_and.reduce(kept)
