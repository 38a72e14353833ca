"""Weight update: stages add up, writes go on beside them, and waiting is added."""

from __future__ import annotations

from functools import cache

import pytest

from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate

STAGES_S = (487 * 378 + 974 * 532 + 487 * 37 + 647 * 137 + 1144 * 23) / 1e6


@cache
def run(**changes: str) -> Result:
    """Of a smaller slice, of 4 training GPUs beside 2 for inference: every port has as much to send or to receive."""
    replaced = {"cards": "6"} | {key.replace("__", "."): value for key, value in changes.items()}
    return simulate(load_scenario("pplx_rl:update").replace(replaced))


def update(**changes: str) -> dict[str, float]:
    return run(**{"knobs__wait_s": "0", **changes}).metrics


def test_stages_in_series_add_up() -> None:
    """What is beside them: submissions, latency and the last writes of four groups, and barriers."""
    assert STAGES_S < update()["update_s"] < STAGES_S + 0.005
    twice = update(knobs__unshard_us="1064")["update_s"]
    assert twice - update()["update_s"] == pytest.approx(974 * 532 / 1e6, rel=1e-3)


def test_waiting_for_others_is_added() -> None:
    assert update(knobs__wait_s="0.357")["update_s"] - update()["update_s"] == pytest.approx(0.357, rel=1e-3)


def test_writes_hide_under_stages_until_the_wire_takes_longer() -> None:
    """A receiving port takes 1e12 / 128 bytes: 0.17 s at 46.7 GB/s, 1.95 s at 4."""
    half = update(machine__nic__goodput="23.3 GB/s")
    assert half["update_s"] == pytest.approx(update()["update_s"], rel=5e-3)
    slow = update(machine__nic__goodput="4 GB/s")
    assert slow["update_s"] > 1e12 / 128 / 4e9
    assert slow["exposed_writes_ms"] > 0.9e3 * (slow["update_s"] - STAGES_S)
    assert update()["exposed_writes_ms"] < 5
    assert update(batch__parameters="2e12")["exposed_writes_ms"] > update()["exposed_writes_ms"]


def test_the_critical_path_is_the_stages_and_the_waiting() -> None:
    shares = run(knobs__wait_s="0.357").critical.by_kind_and_bound()
    length_s = STAGES_S + 0.357
    assert shares["unshard", "unshard"] == pytest.approx(974 * 532e-6 / length_s, rel=0.01)
    assert shares["wait", "slowest rank"] == pytest.approx(0.357 / length_s, rel=0.02)
    assert sum(shares.values()) == pytest.approx(1.0)
