"""The timeline table: its order, its columns, its files."""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc

import numpy as np
import pyarrow.parquet as pq
import pytest

from simulator.observe.arrow import LISTS, to_arrow
from simulator.observe.columns import COLUMNS, codes, find_rows, last_wait_end, waits
from simulator.observe.timeline import StaticTasks, Timeline
from tests.observe.hand import comm, static_of, task, timeline

PROGRAM = [
    task("attention", 0, 10, kind="attention", layer=3, micro_batch=1, flops=5.0),
    comm("dispatch", 10, 30, after=(0,), wire_bytes=7.0),
    task("experts", 30, 50, after=(0, 1), solo=15, host_after=1, issued=30),
]


def _recorded_in(order: list[tuple[int, int]]) -> Timeline:
    made = Timeline("shuffled")
    static = static_of(PROGRAM)
    for rank in range(3):
        made.add_rank(rank, static, multiplicity=rank + 1)
    for rank, number in order:
        one = PROGRAM[number]
        made.record(rank, number, one["issued"], one["ready"], one["start"], one["end"], one["solo"],
                    one["bound_by"], one["units"])
    return made


def test_rows_are_sorted_by_rank_and_task_with_every_column() -> None:
    columns = timeline(PROGRAM, PROGRAM).columns()
    assert list(columns) == list(COLUMNS)
    assert columns["rank"].tolist() == [0, 0, 0, 1, 1, 1]
    assert columns["task"].tolist() == [0, 1, 2, 0, 1, 2]
    assert columns["name"].tolist()[:3] == ["attention", "dispatch", "experts"]
    assert columns["after"].tolist()[:3] == [(), (0,), (0, 1)]
    assert columns["communication"].tolist()[:3] == [False, True, False]
    assert columns["bound_by"].tolist()[:3] == ["compute", "link", "compute"]
    assert columns["solo_ps"].tolist()[:3] == [10, 20, 15]
    assert columns["run"].tolist()[0] == "hand"
    assert {name: str(column.dtype) for name, column in columns.items() if column.dtype != object} == {
        name: kind for name, (kind, _) in COLUMNS.items() if kind not in ("text", *LISTS)}


def test_the_order_of_recording_changes_nothing_not_even_the_bytes_of_the_file(tmp_path) -> None:
    order = [(rank, number) for rank in range(3) for number in range(3)]
    _recorded_in(order).write_parquet(tmp_path / "in_order.parquet")
    random.Random(1).shuffle(order)
    _recorded_in(order).write_parquet(tmp_path / "shuffled.parquet")
    assert (tmp_path / "in_order.parquet").read_bytes() == (tmp_path / "shuffled.parquet").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in_order.parquet", "shuffled.parquet"]


def test_a_file_reads_back_as_the_same_columns(tmp_path) -> None:
    made = timeline(PROGRAM, PROGRAM, multiplicity=(1, 31))
    made.write_parquet(tmp_path / "new" / "run.parquet")
    back = pq.read_table(tmp_path / "new" / "run.parquet")
    for name, column in made.columns().items():
        lists = COLUMNS[name][0] in LISTS
        written = [tuple(one) for one in back[name].to_pylist()] if lists else back[name].to_pylist()
        assert written == column.tolist(), name


def test_the_schema_documents_every_column() -> None:
    table = to_arrow(timeline(PROGRAM).columns())
    assert table.column_names == list(COLUMNS)
    for field in table.schema:
        assert field.metadata[b"description"].decode() == COLUMNS[field.name][1]


def test_tuples_of_one_length_stay_tuples(tmp_path) -> None:
    chain = [task("a", 0, 1), task("b", 1, 2, after=(0,)), task("c", 2, 3, after=(1,))]
    made = timeline(chain[1:])
    made.write_parquet(tmp_path / "run.parquet")
    assert made.columns()["after"].tolist() == [(0,), (1,)]
    assert pq.read_table(tmp_path / "run.parquet")["after"].to_pylist() == [[0], [1]]


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch) -> None:
    import pyarrow.parquet as pq

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fail)
    with pytest.raises(KeyboardInterrupt):
        timeline(PROGRAM).write_parquet(tmp_path / "run.parquet")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_timeline_is_a_table_too(tmp_path) -> None:
    empty = Timeline("nothing")
    assert all(len(column) == 0 for column in empty.columns().values())
    empty.write_parquet(tmp_path / "empty.parquet")
    assert pq.read_table(tmp_path / "empty.parquet").num_rows == 0


def test_wrong_rows_are_refused_by_name() -> None:
    lost = Timeline("lost")
    lost.record(4, 0, 0, 0, 0, 1, 1, "HBM", 1)
    with pytest.raises(ValueError, match="rank 4 has rows but was never added"):
        lost.columns()
    beyond = timeline(PROGRAM)
    beyond.record(0, 3, 0, 0, 0, 1, 1, "HBM", 1)
    with pytest.raises(ValueError, match="rank 0 has no task 3: its program has 3 tasks"):
        beyond.columns()
    twice = timeline(PROGRAM)
    twice.record(0, 1, 0, 0, 0, 1, 1, "HBM", 1)
    with pytest.raises(ValueError, match="rank 0 recorded task 1 twice"):
        twice.columns()
    with pytest.raises(ValueError, match="rank 0 is in the timeline already"):
        twice.add_rank(0, static_of(PROGRAM))


def test_static_lists_of_unequal_length_are_refused() -> None:
    good = static_of(PROGRAM)
    with pytest.raises(ValueError, match="one entry per task"):
        StaticTasks(**{**vars(good), "layer": [0]})


def test_a_row_costs_at_most_60_bytes() -> None:
    made = Timeline("big")
    made.add_rank(0, static_of(PROGRAM))
    tracemalloc.start()
    for number in range(50_000):
        made.record(0, number, 0, 1, 2, 3, 4, "HBM", 1)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / len(made) <= 60


def test_writing_needs_little_beside_what_was_recorded(tmp_path, monkeypatch) -> None:
    """Row groups are written one by one: ten bytes for each row more."""
    monkeypatch.setattr("simulator.observe.timeline.ROWS_PER_GROUP", 8192)
    peaks = []
    for ranks in (10, 60):
        made, static = Timeline("big"), static_of(PROGRAM * 1000)
        for rank in range(ranks):
            made.add_rank(rank, static)
        for number in range(3000):
            for rank in range(ranks):
                made.record(rank, number, 0, 1, 2, 3, 4, "HBM", 1)
        tracemalloc.start()
        made.write_parquet(tmp_path / f"{ranks}.parquet")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] <= 10 * 50 * 3000


def test_helpers_find_rows_and_waits() -> None:
    columns = timeline(PROGRAM, PROGRAM).columns()
    assert find_rows(columns, np.array([1, 0, 5]), np.array([2, 7, 0])).tolist() == [5, -1, -1]
    waiting, awaited = waits(columns)
    assert list(zip(waiting.tolist(), awaited.tolist(), strict=True)) == [
        (1, 0), (2, 0), (2, 1), (4, 3), (5, 3), (5, 4)]
    assert last_wait_end(columns).tolist() == [0, 10, 30, 0, 10, 30]
    number, texts = codes(columns["name"])
    assert texts == ["attention", "dispatch", "experts"]
    assert number.tolist() == [0, 1, 2, 0, 1, 2]


def test_reading_columns_does_not_import_pyarrow() -> None:
    code = ("import sys; from simulator.observe.timeline import Timeline; Timeline('x').columns(); "
            "import simulator.observe.arrow; sys.exit('pyarrow' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_groups_of_rows_are_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    made = timeline(PROGRAM)
    whole = made.columns()
    monkeypatch.setattr("simulator.observe.timeline.ROWS_PER_GROUP", 2)
    groups = list(made.groups())
    assert len(groups) == -(-len(made) // 2)
    for name, column in whole.items():
        assert [value for group in groups for value in group[name].tolist()] == column.tolist()
