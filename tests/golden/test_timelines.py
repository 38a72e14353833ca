"""Small timelines as text, one file per mechanism: what moves is seen row by row, and pinned anew only with a reason.

`pytest -n0 tests/golden --repin` writes the files; say in the commit why they changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.golden.programs import MECHANISMS
from tests.law.timeline_laws import check_timeline

if TYPE_CHECKING:
    from simulator.observe.columns import Columns

HERE = Path(__file__).parent
HEAD = ("rank", "stream", "task", "name", "kind", "layer", "batch", "ready_us", "start_us", "end_us", "bound_by")
RIGHT = {"rank", "task", "layer", "batch", "ready_us", "start_us", "end_us"}


def _cells(columns: Columns, row: int) -> list[str]:
    """One row as text; times in us with all their picoseconds."""
    layer, batch = (columns[name][row] for name in ("layer", "micro_batch"))
    times = (f"{columns[name][row] / 10**6:.6f}" for name in ("ready_ps", "start_ps", "end_ps"))
    return [*(str(columns[name][row]) for name in ("rank", "stream", "task", "name", "kind")),
            *("-" if one < 0 else str(one) for one in (layer, batch)), *times, str(columns["bound_by"][row])]


def text_of(name: str) -> str:
    """What the program is, and its timeline in aligned columns, in the order of starts on each rank."""
    columns = MECHANISMS[name]()
    check_timeline(columns)
    rows = sorted(range(len(columns["rank"])), key=lambda row: (columns["rank"][row], columns["start_ps"][row],
                                                                 columns["end_ps"][row], columns["task"][row]))
    table = [list(HEAD), *(_cells(columns, row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.rjust(width) if head in RIGHT else cell.ljust(width)
                       for head, cell, width in zip(HEAD, line, widths, strict=True)).rstrip() for line in table]
    return "\n".join([MECHANISMS[name].__doc__ or "", "", *lines, ""])


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_small_timeline_is_as_before(name: str, pytestconfig: pytest.Config) -> None:
    file, text = HERE / f"{name}.txt", text_of(name)
    assert 10 <= text.count("\n") - 3 <= 40, "rows to read"
    if pytestconfig.getoption("repin"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_there_is_no_timeline_of_nothing() -> None:
    assert {file.stem for file in HERE.glob("*.txt")} - {"program"} == set(MECHANISMS)
