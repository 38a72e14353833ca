"""What does not fit into memory is refused before it is tried, with how much it would take and what would be right."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.serving.offered import drawn
from simulator.serving.settings import Load
from simulator.study import computer
from simulator.study.computer import check_fits
from simulator.study.library import load_scenario
from simulator.study.simulate import ROW_BYTES, simulate


def test_so_many_are_too_many_and_one_fewer_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computer, "memory_bytes", lambda: 2.0 * 2**30)
    check_fits(2**21, "rows", 1024, "fewer")
    with pytest.raises(InputError, match=r"^3,145,728 rows take about 3 GiB of memory, .* has 2 GiB: fewer$"):
        check_fits(3 * 2**20, "rows", 1024, "fewer")


def test_a_timeline_that_does_not_fit_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario("contention:staging").replace({"batch.gemms": "3"})
    rows = len(simulate(scenario, ranks="all").timeline)
    monkeypatch.setattr(computer, "memory_bytes", lambda: float(rows * ROW_BYTES - 1))
    with pytest.raises(InputError, match=rf"{rows} rows of a timeline take.*--no-record"):
        simulate(scenario, ranks="all")
    assert simulate(scenario, ranks="all", record=False).makespan_ps > 0


def test_requests_that_do_not_fit_are_refused_before_they_are_drawn() -> None:
    with pytest.raises(InputError, match=r"1,000,000,000,000,000 requests take about .* GiB .*--until steady"):
        drawn(Load(requests=10**15), 0, 16)
