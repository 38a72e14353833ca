"""Rows by name as a Parquet file that other tools read: a column for each key, whatever rows have it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HASH = "hash"  # the column of names
AS_JSON = {b"braid": b"json"}  # of a column whose values are the text of JSON
EXACT = 1 << 53  # whole numbers below are the same as floats


def write_rows(path: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """A row each, in the order of names. A column is of one type; one with values of several, or of lists, has the text
    of JSON. OSError: it cannot be written."""
    import pyarrow as pa
    from pyarrow import parquet

    names = sorted(rows)
    columns: dict[str, tuple[Any, dict[bytes, bytes] | None]] = {HASH: (pa.array(names, pa.string()), None)}
    for key in dict.fromkeys(key for name in names for key in rows[name]):
        columns[key] = _column([rows[name].get(key) for name in names])
    fields = [pa.field(key, values.type, metadata=said) for key, (values, said) in columns.items()]
    table = pa.Table.from_arrays([values for values, _ in columns.values()], schema=pa.schema(fields))
    parquet.write_table(table, path, write_page_checksum=True)


def _column(values: Sequence[Any]) -> tuple[Any, dict[bytes, bytes] | None]:
    """As Arrow has them, and what is said of the column."""
    import pyarrow as pa

    types = {type(one) for one in values if one is not None}
    whole = (one for one in values if type(one) is int)
    if types == {int, float} and all(abs(one) <= EXACT for one in whole):
        return pa.array(values, pa.float64(), from_pandas=False), None
    if len(types) <= 1 and types <= {str, bool, float}:
        return pa.array(values, from_pandas=False), None
    if types == {int} and all(-(1 << 63) <= one < 1 << 63 for one in values if one is not None):
        return pa.array(values, pa.int64()), None
    return pa.array([None if one is None else json.dumps(one) for one in values], pa.string()), AS_JSON


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """What `write_rows` has written, by name; a value that a row did not have is None. Whatever error:
    the file is broken, or is another."""
    from pyarrow import parquet

    table = parquet.read_table(path, page_checksum_verification=True, use_threads=False, memory_map=False)
    columns = {}
    for field, values in zip(table.schema, table.columns, strict=True):
        read = values.to_pylist()
        if (field.metadata or {}).get(b"braid") == AS_JSON[b"braid"]:
            read = [None if one is None else json.loads(one) for one in read]
        columns[field.name] = read
    if HASH not in columns:
        raise ValueError(f"it has no column '{HASH}'")
    names = columns.pop(HASH)
    return {name: {key: values[number] for key, values in columns.items()} for number, name in enumerate(names)}
