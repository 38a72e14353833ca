"""Errors of simulated values against published ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simulator.study.expected import beside, compared
from simulator.study.scenario import Expected


@pytest.mark.parametrize(("value", "band", "simulated", "error"), [
    (3128.0, None, 3200.0, 72 / 3128), (0.5, None, None, None), (1.0, (0.9, 1.2), 1.1, 0.0),
    (1.0, (0.9, 1.2), 1.8, 0.5), (1.0, (1.0, None), 3.0, 0.0), (1.0, (1.0, None), 0.25, -0.75),
])  # fmt: skip
def test_errors_are_relative_to_what_was_expected(value: float, band: Any, simulated: float | None,
                                                  error: float | None) -> None:
    expected = Expected(id="A1", metric="latency_ms", value=value, role="predict", band=band)
    metrics = {} if simulated is None else {"latency_ms": simulated}
    row = beside(expected, "mine", metrics, lambda name: {})
    assert row.error == (None if error is None else pytest.approx(error))
    assert bool(row.missing) == (simulated is None)


@pytest.mark.parametrize(("words", "simulated", "full"), [
    ({"against": "other"}, 3.0, "latency_ms / other"), ({"beyond": "other"}, 20.0, "latency_ms - other"),
])  # fmt: skip
def test_a_value_is_a_ratio_to_another_scenario_s_or_a_difference_from_it(
        monkeypatch: pytest.MonkeyPatch, words: dict[str, str], simulated: float, full: str) -> None:
    monkeypatch.setattr("simulator.study.expected._metrics_of", lambda *_: {"latency_ms": 10.0})
    expected = Expected(id="A1", metric="latency_ms", value=16.0, role="predict", **words)
    run: Any = SimpleNamespace(scenario=SimpleNamespace(name="mine", expected=(expected,), changes={}, given={}),
                               metrics={"latency_ms": 30.0}, recorded=True, header={"seed": 0})
    (row,) = compared(run)
    assert (row.simulated, row.metric) == (simulated, full)
    assert row.error == pytest.approx(simulated / 16.0 - 1)
