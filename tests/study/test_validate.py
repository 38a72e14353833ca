"""What `validate` simulates, and which rows come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from simulator.errors import InputError, RunError
from simulator.study.scenario import Expected
from simulator.study.validate import Kind, markdown, validate

VALUES = {
    "slow": [Expected(id="x.slow", metric="latency_ms", value=20.0, role="predict")],
    "fast": [Expected(id="x.fast", metric="latency_ms", value=0.5, role="predict", against="slow")],
    "late": [Expected(id="x.late", metric="latency_ms", value=5.0, role="predict", beyond="slow")],
    "beside": [Expected(id="x.beside", metric="latency_ms", value=2.0, role="predict", against="alone")],
    "alone": [],
}
LATENCY_MS = {"slow": 20.0, "fast": 12.0, "late": 26.0, "beside": 8.0, "alone": 4.0}


def some(metrics: Callable[[str], Mapping[str, float]]) -> list[Kind]:
    return [Kind(lambda: list(VALUES), VALUES.__getitem__, metrics)]


def test_each_is_simulated_once_and_what_nothing_asks_for_is_not() -> None:
    asked: list[str] = []

    def metrics(name: str) -> dict[str, float]:
        asked.append(name)
        return {"latency_ms": LATENCY_MS[name]}

    rows = validate(kinds=some(metrics))
    assert sorted(asked) == sorted(VALUES)
    assert [(row.scenario, row.simulated) for row in rows] == [
        ("slow", 20.0), ("fast", 0.6), ("late", 6.0), ("beside", 2.0)]  # fmt: skip
    asked.clear()
    assert [row.simulated for row in validate("x.late", kinds=some(metrics))] == [6.0]
    assert sorted(asked) == ["late", "slow"]


def test_what_is_compared_with_a_failure_says_so_and_the_rest_is_there() -> None:
    def metrics(name: str) -> dict[str, float]:
        if name == "slow":
            raise RunError("out of memory")
        return {"latency_ms": LATENCY_MS[name]}

    rows = {row.scenario: row.missing for row in validate(kinds=some(metrics))}
    assert rows == {"slow": "out of memory", "fast": "slow cannot run so: out of memory",
                    "late": "slow cannot run so: out of memory", "beside": ""}  # fmt: skip


def test_a_pattern_that_chooses_nothing_names_what_there_is() -> None:
    with pytest.raises(InputError, match=r"'nothing'; there are: slow, fast, late, beside, alone"):
        validate("nothing", kinds=some(lambda name: {}))


def test_the_kept_report_has_the_history_that_the_command_writes() -> None:
    from tests.conftest import ROOT

    history = markdown([]).partition("\n## ")[2].partition("\n## ")[0]
    assert "calibration.md" in history
    assert f"\n## {history}\n## " in (ROOT / "results" / "validation.md").read_text(encoding="utf-8")
