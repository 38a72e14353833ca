"""What is left of a result when the command has ended: JSON for scripts, files in a folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.commands.folder import OutputFolder

if TYPE_CHECKING:
    from simulator.simulation import Result

EXPECTED_KEYS = ("id", "metric", "value", "simulated", "error", "role")


def plain(value: Any) -> Any:
    """The same value as JSON has it: numpy numbers become numbers; what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def expected_row(row: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """One expected value: id, metric, value, simulated, error, role, and the keys in `more`."""
    return {key: plain(row.get(key)) for key in (*EXPECTED_KEYS, *more)}


def result_object(result: Result) -> dict[str, Any]:
    """What `run --json` prints: what was run, with which changes and seed, and what came out."""
    return {
        "scenario": result.scenario.name,
        "changes": dict(result.header["changed"]),
        "seed": result.header["seed"],
        "metrics": plain(result.metrics),
        "expected": [expected_row(row) for row in result.expected],
        "parameters": plain(result.parameters) if result.recorded else [],
    }


def to_json(value: Any) -> str:
    """JSON as all commands print it."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def write_result(result: Result, folder: OutputFolder) -> list[Path]:
    """Writes the timeline, the trace and the JSON of a result; returns their paths."""
    from simulator.observe.counters import samples
    from simulator.observe.trace import write_trace

    with folder.staged() as staging:
        result.timeline.write_parquet(staging / "timeline.parquet")
        write_trace(result.columns, staging / "trace.json.gz", flights=result.flights,
                    counters=samples(result.columns))
        (staging / "result.json").write_text(to_json(result_object(result)) + "\n", encoding="utf-8")
    return [folder.path / name for name in ("timeline.parquet", "trace.json.gz", "result.json")]
