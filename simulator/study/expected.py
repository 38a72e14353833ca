"""Published values beside simulated ones: simulates what they are ratios to, and gives plain rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from simulator.errors import InputError, RunError
from simulator.observe.report import ExpectedRow
from simulator.paths import did_you_mean
from simulator.study.library import load_scenario
from simulator.study.scenario import Expected
from simulator.study.simulate import Result, simulate


def plain(value: Any) -> Any:
    """The same value as JSON has it: numpy numbers become numbers; what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_object(row: ExpectedRow, *more: str) -> dict[str, Any]:
    """A row as JSON has it: id, metric, value, simulated, error, role, and the fields in `more`."""
    return {key: plain(getattr(row, key)) for key in ("id", "metric", "value", "simulated", "error", "role", *more)}


def band_text(band: tuple[float | None, float | None] | None) -> str:
    """A band in words: "0.25 to 0.31", "above 1", "below 1"; "" for none."""
    if band is None:
        return ""
    low, high = band
    if high is None:
        return f"above {low:g}"
    return f"below {high:g}" if low is None else f"{low:g} to {high:g}"


MetricsOf = Callable[[str], Mapping[str, float]]  # of a scenario or service, by name; InputError, RunError


def compared(result: Result) -> list[ExpectedRow]:
    """Published values beside those of a run.

    Scenarios that a value is a ratio to are simulated by roles with this one's seed and changes; where one cannot run
    so, that is the reason. Where settings were changed from outside there is no error: another run was published.
    """
    seed, changes = result.header["seed"], tuple(result.scenario.changes.items())
    rows = [beside(one, result.scenario.name, result.metrics, lambda name: _metrics_of(name, seed, changes),
                   result.recorded) for one in result.scenario.expected]  # fmt: skip
    return [replace(row, error=None) for row in rows] if result.scenario.given else rows


def beside(one: Expected, name: str, metrics: Mapping[str, float], metrics_of: MetricsOf,
           recorded: bool = True) -> ExpectedRow:
    """A published value beside that of what is named; metrics_of: of what it is compared with, by name; recorded:
    whether a metric that is not there never will be."""
    simulated, missing = metrics.get(one.metric), ""
    if simulated is None:
        missing = f"no metric '{one.metric}'{did_you_mean(one.metric, metrics)}" * recorded
    elif one.against or one.beyond:
        simulated, missing = _beside_other(simulated, one, metrics_of)
    error = None if simulated is None else _error(simulated, one.value, one.band)
    return ExpectedRow(one.id, one.full_metric, one.value, simulated, error, one.role, band_text(one.band), name,
                       one.note, missing)  # fmt: skip


def _beside_other(simulated: float, one: Expected, metrics_of: MetricsOf) -> tuple[float | None, str]:
    """Ratio to the metric of what it is against, or difference from that of what it is beyond; or None, and why not."""
    name = one.beyond or one.against
    try:
        other = metrics_of(name)
    except (InputError, RunError) as error:
        why = str(error).partition("\n")[0].removeprefix(f"{name}: ")
        return None, f"{name} cannot run so: {why}"
    if one.beyond and one.metric in other:
        return simulated - other[one.metric], ""
    if other.get(one.metric):
        return simulated / other[one.metric], ""
    what = f"has no metric '{one.metric}'" if one.metric not in other else f"has 0 {one.metric}"
    return None, f"{name} {what}"


@lru_cache(maxsize=64)
def _metrics_of(name: str, seed: int, changes: tuple[tuple[str, str], ...]) -> Mapping[str, float]:
    """Metrics of a library scenario that others are compared with, simulated once."""
    return simulate(load_scenario(name).replace(dict(changes)), seed=seed).metrics


def _error(simulated: float, value: float, band: tuple[float | None, float | None] | None) -> float:
    """Relative to the published value; inside a published band there is none, outside it is to the nearer end."""
    if band is not None:
        low, high = band
        value = max(simulated, low) if low is not None else simulated
        value = min(value, high) if high is not None else value
    return simulated / value - 1.0 if value else simulated
