"""What a stream waited for, by hand and on whole timelines."""

from __future__ import annotations

import pytest

from simulator import np
from simulator.observe.columns import Columns
from simulator.observe.waiting import LIVE_ENGINES, WHY, waiting
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from tests.observe.hand import comm, task, timeline


def _said(columns: Columns) -> list[tuple[int, str, int, int, str, int]]:
    """(rank, task that waited, from, to, why, row of what ended it)."""
    found = waiting(columns)
    return [(int(columns["rank"][row]), str(columns["name"][row]), begin, end, WHY[why], by)
            for row, begin, end, why, by in zip(*(each.tolist() for each in (
                found.row, found.from_ps, found.to_ps, found.why, found.ended_by)), strict=True)]


def test_each_stretch_has_its_reason_and_what_ended_it() -> None:
    one = [task("gemm", 0, 10), task("sort", 0, 14, stream="side"),
           comm("dispatch", 20, 30, stream="main", ready=14, issued=12, after=(0, 1), late=(1, 0))]
    other = [comm("dispatch", 20, 30, stream="main", ready=20, issued=20)]
    assert _said(timeline(one, other).columns()) == [
        (0, "dispatch", 10, 14, "event", 1), (0, "dispatch", 14, 20, "peers", 3), (1, "dispatch", 0, 20, "host", -1)]


def test_a_host_that_was_blocked_says_on_what_and_cores_say_who_gave_them_back() -> None:
    tasks = [task("read", 0, 10), task("held", 0, 40, stream="side"),
             task("next", 15, 20, issued=15, after=(0,), host_after=0),
             task("wide", 40, 50, ready=20, issued=17, after=(2,))]
    assert _said(timeline(tasks).columns()) == [(0, "next", 10, 15, "host", -1), (0, "wide", 20, 40, "cores", 1)]
    blocked = [task("other", 0, 4), task("read", 0, 10, stream="side"),
               task("next", 12, 20, issued=12, after=(0,), host_after=1)]
    assert _said(timeline(blocked).columns()) == [(0, "next", 4, 12, "host", 1)]


def test_no_rows_wait_for_nothing() -> None:
    assert len(waiting(timeline().columns())) == 0


@pytest.mark.parametrize("name", ["contention:staging", "a3_prefill:microbatch", "ascend_exchange:low_latency_ep16",
                                  "trt_min_latency:base", "pplx:efa_ep16"])
def test_waiting_and_work_fill_every_stream_without_a_gap(name: str) -> None:
    columns = simulate(load_scenario(name)).columns
    found = waiting(columns)
    assert (found.to_ps > found.from_ps).all()
    waited = np.zeros(len(columns["rank"]), dtype=np.int64)
    np.add.at(waited, found.row, found.to_ps - found.from_ps)
    last: dict[tuple[int, str], int] = {}
    for row, key in enumerate(zip(columns["rank"].tolist(), columns["stream"].tolist(), strict=True)):
        if columns["engine"][row] not in LIVE_ENGINES:  # between what these do, they poll
            assert last.get(key, 0) + waited[row] == columns["start_ps"][row], columns["name"][row]
        last[key] = int(columns["end_ps"][row])
    ended = found.ended_by >= 0
    assert (columns["end_ps"][found.ended_by[ended]] >= found.from_ps[ended]).all()
