"""Tables as Parquet: what is no table, or is one of absurd length in a few bytes, is refused before it is read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simulator.observe.arrow import MOST_ROWS, read_parquet, write_parquet
from tests.observe.hand import task, timeline


def test_more_rows_than_bytes_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"rank": pa.array([0]).take(pa.array([0] * (MOST_ROWS + 1)))}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < MOST_ROWS
    with pytest.raises(ValueError, match=r"a\.parquet' is not a timeline .*: 1,000,001 rows in"):
        read_parquet(tmp_path / "a.parquet")


@pytest.mark.parametrize("cut", [0, 3, 12, 200, -1, -9, -200])
def test_a_cut_timeline_is_no_timeline(tmp_path: Path, cut: int) -> None:
    write_parquet([timeline([task("a", 0, 5)]).columns()], tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:cut])
    with pytest.raises(ValueError, match="is not a timeline that this version of Braid writes"):
        read_parquet(tmp_path / "a.parquet")


def test_a_file_that_is_not_there_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_parquet(tmp_path / "none.parquet")
