"""Results in a few surroundings, as `python -m tests.trust.same` has them in many; what differs would be found."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.trust import same


@pytest.mark.slow
def test_hash_seeds_folders_locales_and_what_is_compiled_change_nothing(tmp_path: Path) -> None:
    few = [one for one in same.PARTS if one.name != "PYTHONHASHSEED=0"]
    rows = same.compared(iter(few), tmp_path, list(same.CHEAP))
    assert len(rows) == 6
    assert [text.partition(" ")[0] for _, text in rows] == ["equal"] * 6, rows


def test_what_differs_is_named(tmp_path: Path) -> None:
    assert same.differing({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == ["b", "c"]
    assert same.differing({}, "no such Python") == ["no such Python"]


def test_a_trace_is_compared_by_its_text_and_a_table_by_its_columns(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    for level in (1, 9):
        (tmp_path / f"{level}.gz").write_bytes(gzip.compress(b"text" * 99, level))
    assert same.content(tmp_path / "1.gz") == same.content(tmp_path / "9.gz")
    found = []
    for values, packing in (([1.0, 2.0], "zstd"), ([1.0, 2.0], "snappy"), ([1.0, 2.0000000000000004], "zstd")):
        parquet.write_table(pa.table({"x": values}), tmp_path / "x.parquet", compression=packing)
        found.append(same.content(tmp_path / "x.parquet"))
    assert found[0] == found[1] != found[2]
