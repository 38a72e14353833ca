"""A timeline, or another table, as Arrow and Parquet, every column documented in the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, pairwise
from json import dumps
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from simulator import np
from simulator.observe.columns import COLUMNS, Columns, codes
from simulator.observe.files import whole_file

LISTS = {"tasks": "int32", "counts": "int32", "amounts": "float64"}
LISTS_AT_ONCE = 1 << 17
MOST_ROWS = 1_000_000
"""Of a table whose file has fewer bytes."""
Described: TypeAlias = Mapping[str, tuple[str, str]]
"""Columns of a table: name -> (element type, what it says), as COLUMNS has those of a timeline."""


def schema(described: Described = COLUMNS) -> Any:
    """The pyarrow.Schema of a table; each field's metadata says its meaning under `description`."""
    import pyarrow as pa

    types = {"text": pa.dictionary(pa.int32(), pa.string()), "tasks": pa.list_(pa.int32()), "bool": pa.bool_(),
             "counts": pa.list_(pa.int32()), "amounts": pa.list_(pa.float64()),
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
        elif kind in LISTS:
            lists = columns[name].tolist()
            offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists], dtype=np.int32)])
            flat = np.fromiter(chain.from_iterable(lists), dtype=LISTS[kind], count=int(offsets[-1]))
            arrays.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat)))
        else:
            arrays.append(pa.array(columns[name]))
    return pa.Table.from_arrays(arrays, schema=schema(described))


def from_arrow(table: Any, described: Described = COLUMNS) -> Columns:
    """The columns of a pyarrow.Table that `to_arrow` made; KeyError for one that it lacks."""
    made = {}
    for name, (kind, _) in described.items():
        column = table.column(name).combine_chunks()
        if kind == "text":
            values = np.array(column.dictionary.to_pylist(), dtype=object)
            made[name] = values[column.indices.to_numpy()] if len(values) else np.zeros(0, dtype=object)
        elif kind in LISTS:
            made[name] = _tuples(column)
        else:
            made[name] = column.to_numpy(zero_copy_only=False)
    return made


def _tuples(column: Any) -> Any:
    """An object array of tuples; equal ones are one object."""
    flat, offsets = column.values.to_numpy(), column.offsets.to_numpy()
    found, known = np.empty(len(column), dtype=object), dict[bytes, tuple[Any, ...]]()
    for low in range(0, len(found), LISTS_AT_ONCE):
        edges = offsets[low : low + LISTS_AT_ONCE + 1]
        raw = flat[edges[0] : edges[-1]].tobytes()
        places = ((edges - edges[0]) * flat.itemsize).tolist()
        keys = [raw[begin:end] for begin, end in pairwise(places)]
        known |= {key: tuple(np.frombuffer(key, dtype=flat.dtype).tolist()) for key in {*keys} - known.keys()}
        found[low : low + LISTS_AT_ONCE] = np.fromiter(map(known.__getitem__, keys), dtype=object, count=len(keys))
    return found


def read_parquet(path: str | PathLike[str], tell: Callable[[float], None] = lambda share: None) -> Columns:
    """A timeline that `write_parquet` wrote, as columns. tell: told the share of them. ValueError: it is no such file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    made: dict[str, Any] = {}
    try:
        check_rows(path)
        with pq.ParquetFile(path) as file:
            for name, described in COLUMNS.items():  # one at a time: Arrow's own is as large again
                made |= from_arrow(file.read(columns=[name]), {name: described})
                tell(len(made) / len(COLUMNS))
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        if isinstance(error, OSError) and error.errno:  # Arrow's own have none
            raise
        what = str(error).partition("\n")[0]
        raise ValueError(f"'{path}' is not a timeline that this version of Braid writes: {what}") from None
    return made


def check_rows(path: str | PathLike[str]) -> None:
    """ValueError where a table would have more rows than its file can mean: equal ones take next to no bytes in it."""
    import pyarrow.parquet as pq

    rows, size = pq.read_metadata(path).num_rows, Path(path).stat().st_size
    if rows > max(MOST_ROWS, size):
        raise ValueError(f"{rows:,} rows in {size:,} bytes: more than {MOST_ROWS:,} take a byte each at least")


def write_parquet(groups: Iterable[Columns], path: str | PathLike[str], described: Described = COLUMNS,
                  about: Mapping[str, Any] | None = None) -> None:
    """Writes a table that comes in row groups, zstd; the same groups give the same bytes. about: what the metadata says
    under `braid`, as JSON. OSError where it cannot."""
    import pyarrow.parquet as pq

    whole = schema(described).with_metadata({"braid": dumps(about)} if about else None)
    with whole_file(path) as part, pq.ParquetWriter(part, whole, compression="zstd") as writer:
        for group in groups:
            writer.write_table(to_arrow(group, described).cast(whole))
