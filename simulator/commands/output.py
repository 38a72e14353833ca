"""What is left of a result when the command has ended: JSON for scripts, warnings, files in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from simulator.commands.folder import OutputFolder
from simulator.study.expected import compared, expected_row, plain

if TYPE_CHECKING:
    from simulator.study.simulate import Result

def result_object(result: Result) -> dict[str, Any]:
    """What `run --json` prints: what was run, with which changes and seed, and what came out."""
    return {
        "scenario": result.scenario.name,
        "changes": dict(result.header["changed"]),
        "seed": result.header["seed"],
        "metrics": plain(result.metrics),
        "expected": [expected_row(row) for row in compared(result)],
        "parameters": plain(result.parameters) if result.recorded else [],
    }


def to_json(value: Any) -> str:
    """JSON as all commands print it."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def warn_unread(scenario: str, keys: Iterable[str]) -> None:
    """Says on stderr which of the settings given change nothing."""
    for key in keys:
        click.echo(f"warning: {key} has no effect on {scenario}: nothing in this run reads it", err=True)


def write_result(result: Result, folder: OutputFolder) -> list[Path]:
    """Writes the timeline, the trace and the JSON of a result; returns their paths."""
    from simulator.observe.trace import rates, write_trace

    with folder.staged() as staging:
        result.timeline.write_parquet(staging / "timeline.parquet")
        write_trace(result.columns, staging / "trace.json.gz", flights=result.flights,
                    counters=rates(result.columns))
        (staging / "result.json").write_text(to_json(result_object(result)) + "\n", encoding="utf-8")
    return [folder.path / name for name in ("timeline.parquet", "trace.json.gz", "result.json")]
