"""probe.json: everything that was measured, as it was measured. TOML and report are made from it alone.

``SCHEMA`` is written into the file, so that it explains itself. A file is written whole to a temporary name and then
renamed; measurements have keys, so that a probe that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from simulator.errors import InputError
from simulator.observe.files import whole_file
from simulator.probe.device import LAUNCHES, About

FORMAT = "braid probe 1"
NAME = "probe.json"
SCHEMA = {
    "format": FORMAT,
    "all times": "seconds; a list has one time per repeat",
    "about": "device, driver and software; dtypes: of products that it multiplies",
    "rows.*.section, key": "what was measured; `key` is unique",
    "rows.*.left_out": "why it could not be measured",
    "gemm, attention, copy": "kernel: family and sizes; seconds: alone, operands not in L2, in a captured graph",
    "streams": "streams: the kernels of each; alone: [stream][repeat][kernel][start, end] of each stream by itself; "
               "together: [repeat][stream][kernel][start, end], from one instant on, the first stream a little ahead. "
               "A kernel starts when the one before it in its stream ends",
    "launches": LAUNCHES,
    "collectives": "results: kind, size_bytes (of the whole buffer), seconds of one in a row of them; ranks: GPUs",
    "peers": "seconds of a copy of size_bytes from GPU `source` to GPU `target`",
}  # fmt: skip
NEEDED = {"gemm": ("kernel", "seconds"), "attention": ("kernel", "seconds"), "copy": ("kernel", "seconds"),
          "streams": ("title", "streams", "alone", "together"), "launches": ("what", "seconds"),
          "collectives": ("ranks", "results"), "peers": ("size_bytes", "seconds")}  # fmt: skip
"""What the rows of a section have, unless they have `left_out`."""
_KINDS: dict[str, tuple[type, ...]] = {
    "section": (str,), "key": (str,), "left_out": (str,), "title": (str,), "what": (str,), "kernel": (dict,),
    "streams": (list,), "results": (list,), "ranks": (int,), "size_bytes": (int, float)}  # fmt: skip
_TIMES = "seconds", "alone", "together"
Row = dict[str, Any]


class Record(BaseModel):
    """What one file holds. date: of its first measurement, as 2026-01-31. rows: of all sections,
    with the keys that `schema_` explains."""

    model_config = ConfigDict(extra="forbid")

    format: str = FORMAT
    schema_: dict[str, Any] = SCHEMA
    braid: str = ""
    date: str
    about: About
    rows: list[Row] = []

    @property
    def source(self) -> str:
        """What the numbers of a machine file that it gives are from."""
        versions = ", ".join(f"{name} {version}" for name, version in self.about.versions.items())
        return f"braid probe on {self.about.name}, {versions or 'versions not known'}, {self.date}"

    @property
    def keys(self) -> set[str]:
        """Of all that was measured, or could not be."""
        return {row["key"] for row in self.rows}

    def measured(self, *sections: str) -> Iterator[Row]:
        """The rows of these sections that have measurements."""
        return (row for row in self.rows if row["section"] in sections and "left_out" not in row)

    def launch_s(self, what: str) -> float | None:
        """The median of one kind of launch, if it was measured."""
        for row in self.measured("launches"):
            if row["what"] == what:
                return median(row["seconds"])
        return None


def write(record: Record, path: Path) -> None:
    """Writes the file whole, or not at all; InputError where it cannot be written."""
    try:
        with whole_file(path) as part:
            tables = record.model_dump(mode="json")
            head = {"format": tables.pop("format"), "schema": tables.pop("schema_")}
            rows = ",\n".join("  " + json.dumps(row) for row in tables.pop("rows"))
            start = json.dumps({**head, **tables}, indent=1)
            part.write_text(f'{start.removesuffix("}").rstrip()},\n "rows": [\n{rows}\n ]\n}}\n', encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None


def read(path: Path) -> Record:
    """A file that `write` wrote; InputError says what is wrong with another one."""
    try:
        tables = json.loads(path.read_text(encoding="utf-8"))
        found = tables.get("format") if isinstance(tables, dict) else None
        if found != FORMAT:
            raise InputError(f"{path}: format is {found!r}: this Braid reads {FORMAT!r}, as `braid probe` writes it")
        tables["schema_"] = tables.pop("schema", {})
        record = Record.model_validate(tables)
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not JSON: {error}") from None
    for number, row in enumerate(record.rows):
        needed = ("left_out",) if "left_out" in row else NEEDED.get(str(row.get("section")), ("section",))
        if missing := [name for name in ("section", "key", *needed) if not row.get(name)]:
            raise InputError(f"{path}: rows[{number}]: {', '.join(missing)}: missing or empty")
        for name, value in row.items():
            if not isinstance(value, _KINDS.get(name, (object,))) or (name in _TIMES and not _are_times(value)):
                wanted = "times" if name in _TIMES else " or ".join(kind.__name__ for kind in _KINDS[name])
                raise InputError(f"{path}: rows[{number}]: {name}: got {value!r:.60}: must be {wanted}")
    return record


def _are_times(value: Any) -> bool:
    """Whether these are lists, of lists, of seconds."""
    return isinstance(value, list) and bool(value) and all(
        _are_times(one) if isinstance(one, list) else type(one) in (int, float) and one >= 0 for one in value)


