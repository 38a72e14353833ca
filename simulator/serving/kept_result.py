"""Results of a service, read back from the folder that `serve --out` wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.np import Array
from simulator.observe.arrow import check_rows, from_arrow
from simulator.serving.files import FILES, GOOD, LOWER, OF_STEPS, REQUESTS, STEP_COLUMNS
from simulator.serving.kept_file import check_export

EXPORT, REQUESTS_FILE, STEPS_FILE = FILES[:3]


@dataclass(frozen=True)
class KeptService:
    """A service that ran. export: metrics as AIPerf's JSON has them, and under "braid" what that has not; requests,
    steps: columns as `files` describes them."""

    export: Mapping[str, Any]
    requests: Mapping[str, Array]
    steps: Mapping[str, Array]

    @property
    def name(self) -> str:
        """Of the service."""
        return str(self.export["input_config"].get("service", "a service"))

    @property
    def steady(self) -> Mapping[str, Any]:
        """Metrics of the steady state, of all requests where there was none."""
        found: Mapping[str, Any] = self.export.get("steady_state_metrics") or self.export
        return found


def is_folder_of_service(path: Path) -> bool:
    """Whether `serve --out` wrote this folder."""
    return all((path / name).is_file() for name in (EXPORT, REQUESTS_FILE, STEPS_FILE))


def read_service(folder: Path) -> KeptService:
    """What `serve --out` wrote into a folder; InputError if a file is not what this version of Braid writes."""
    try:
        export = json.loads((folder / EXPORT).read_text(encoding="utf-8"))
        check_export(export)
        requests = _columns(folder / REQUESTS_FILE, REQUESTS, LOWER | GOOD)
        return KeptService(export, requests, _columns(folder / STEPS_FILE, STEP_COLUMNS, OF_STEPS))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise InputError(f"'{folder}' is not what `braid serve --out` of this version writes: {what}; "
                         "run it again") from None


def _columns(path: Path, needed: Mapping[str, tuple[str, str]], more: Mapping[str, tuple[str, str]],
             ) -> Mapping[str, Array]:
    """Its columns, and those of the others that it has; ValueError: it is no such file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_rows(path)
        table = pq.read_table(path)
        there = {name: told for name, told in more.items() if name in table.column_names}
        return from_arrow(table, {**needed, **there})
    except (pa.ArrowException, OSError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno:  # Arrow's own have none
            raise
        raise ValueError(f"{path.name}: {error}") from None
