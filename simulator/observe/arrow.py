"""A timeline, or another table, as Arrow and Parquet, every column documented in the schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from os import PathLike
from typing import Any, TypeAlias

from simulator import np
from simulator.observe.columns import COLUMNS, Columns, codes
from simulator.observe.trace import whole_file

Described: TypeAlias = Mapping[str, tuple[str, str]]
"""Columns of a table: name -> (element type, what it says), as COLUMNS has those of a timeline."""


def schema(described: Described = COLUMNS) -> Any:
    """The pyarrow.Schema of a table; each field's metadata says its meaning under `description`."""
    import pyarrow as pa

    types = {"text": pa.dictionary(pa.int32(), pa.string()), "tasks": pa.list_(pa.int32()), "bool": pa.bool_(),
             "int32": pa.int32(), "int64": pa.int64(), "float64": pa.float64()}
    return pa.schema([pa.field(name, types[kind], nullable=False, metadata={"description": text})
                      for name, (kind, text) in described.items()])


def to_arrow(columns: Columns, described: Described = COLUMNS) -> Any:
    """The table as a pyarrow.Table."""
    import pyarrow as pa

    arrays = []
    for name, (kind, _) in described.items():
        if kind == "text":
            number, values = codes(columns[name])
            arrays.append(pa.DictionaryArray.from_arrays(pa.array(number), pa.array(values, pa.string())))
        elif kind == "tasks":
            tasks = columns[name].tolist()
            offsets = np.concatenate([[0], np.cumsum([len(one) for one in tasks], dtype=np.int32)])
            flat = np.fromiter(chain.from_iterable(tasks), dtype=np.int32, count=int(offsets[-1]))
            arrays.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat)))
        else:
            arrays.append(pa.array(columns[name]))
    return pa.Table.from_arrays(arrays, schema=schema(described))


def write_parquet(groups: Iterable[Columns], path: str | PathLike[str], described: Described = COLUMNS) -> None:
    """Writes a table that comes in row groups, zstd; the same groups give the same bytes. OSError where it cannot."""
    import pyarrow.parquet as pq

    with whole_file(path) as part, pq.ParquetWriter(part, schema(described), compression="zstd") as writer:
        for group in groups:
            writer.write_table(to_arrow(group, described))
