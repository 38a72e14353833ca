"""The laws accept a right timeline and name the row of a wrong one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.law.timeline_laws import check_serial, check_timeline, longest_path_ps
from tests.observe.hand import comm, task, timeline

if TYPE_CHECKING:
    from simulator.observe.columns import Array


def _columns() -> dict[str, Array]:
    return timeline([
        task("attention", 0, 10),
        comm("dispatch", 12, 30, ready=10, after=(0,)),
        task("shared", 10, 20, solo=9, after=(0,)),
        task("experts", 35, 50, issued=35, after=(1, 2), host_after=1),
    ]).columns()


def test_a_right_timeline_passes() -> None:
    columns = _columns()
    check_timeline(columns)
    assert longest_path_ps(columns) == (10 - 2) + (18 - 2) + (15 - 2)


@pytest.mark.parametrize(("column", "row", "value", "complaint"), [
    ("start_ps", 1, 9, "has ready_ps after start_ps"),
    ("issued_ps", 1, -1, "before time 0"),
    ("issued_ps", 1, 8, "task 2 .shared. is issued before the task that precedes it"),
    ("ready_ps", 2, 9, "previous task of its stream"),
    ("end_ps", 1, 36, "task that it waits for has ended"),
    ("solo_ps", 3, 18, "is faster than alone"),
    ("solo_ps", 3, -1, "negative solo"),
    ("host_after", 2, 0, "while the host is blocked"),
    ("after", 1, (2,), "waits for itself or for a task issued later"),
])
def test_a_wrong_row_is_named(column: str, row: int, value: Any, complaint: str) -> None:
    columns = dict(_columns())
    columns[column] = columns[column].copy()
    columns[column][row] = value
    with pytest.raises(AssertionError, match=complaint):
        check_timeline(columns)


def test_a_path_longer_than_the_makespan_is_found() -> None:
    columns = dict(timeline([task("a", 0, 10), task("b", 10, 20, after=(0,))]).columns())
    columns["solo_ps"] = np.array([20, 20])
    columns["end_ps"] = np.array([10, 35])
    with pytest.raises(AssertionError):
        check_timeline(columns)


def test_serial_times_add_up() -> None:
    check_serial(timeline([task("a", 0, 10), task("b", 12, 20, issued=12, after=(0,))]).columns())
    stretched = timeline([task("a", 0, 10), task("b", 10, 20, solo=5, after=(0,))]).columns()
    with pytest.raises(AssertionError, match="add up to 15"):
        check_serial(stretched)
    with pytest.raises(AssertionError, match="has streams"):
        check_serial(_columns())


def test_no_rows_break_no_law() -> None:
    check_timeline(timeline().columns())
