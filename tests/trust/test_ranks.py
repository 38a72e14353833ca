"""Roles and all ranks are compared, and what differs would be found."""

from __future__ import annotations

import sys
import time

import pytest

from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from tests.trust import ranks
from tests.trust.limits import limited


@pytest.mark.skipif(sys.platform == "win32", reason="has no such alarm")
def test_a_scenario_by_roles_is_equal_and_one_that_takes_longer_is_left_out() -> None:
    assert ranks.compared(["contention:staging"], 60.0) == [("contention:staging", "32 (1)", "equal")]
    with pytest.raises(TimeoutError), limited(0.05, TimeoutError):
        time.sleep(60)


def test_what_differs_is_named() -> None:
    one = simulate(load_scenario("contention:staging"))
    slow = simulate(load_scenario("contention:staging").replace({"machine.chip.hbm.peak": "0.2 TB/s"}), ranks="all")
    found = ranks.differing(one, slow)
    assert found[0] == f"makespan {one.makespan_ps}, {slow.makespan_ps} ps"
    assert "column end_ps" in found
