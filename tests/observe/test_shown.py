"""Which ranks a trace shows."""

from __future__ import annotations

import pytest

from simulator.observe.shown import shown
from tests.observe.hand import comm, task, timeline

WORK = [[task("a", 0, long), comm("b", long, 40)] for long in (10, 30, 5, 20)]


def test_words_go_by_time_at_work() -> None:
    columns = timeline(*WORK).columns()
    assert shown(columns) == {0: "first", 1: "slowest", 3: "median"}
    assert shown(columns, ["fastest", "2", "0"]) == {0: "", 2: "fastest"}
    assert shown(columns, ["all", "slowest"]) == {0: "", 1: "slowest", 2: "", 3: ""}
    assert shown(timeline(WORK[0], WORK[0]).columns()) == {0: "slowest, median, first"}
    assert shown(timeline().columns()) == {}


@pytest.mark.parametrize(("wanted", "said"), [
    ("7", "no rows of rank 7; ranks that were simulated are 0, 1, 2, 3"),
    ("last", "'last' is no rank: ranks are numbers, or one of slowest, median, fastest, first, all")])
def test_a_rank_that_is_not_there_is_refused(wanted: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        shown(timeline(*WORK).columns(), [wanted])
