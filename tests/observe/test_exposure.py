"""Why communication is exposed, reason by reason, by hand: an exchange from 0 to 40 beside compute until 10."""

from __future__ import annotations

from typing import Any

import pytest

from simulator import np
from simulator.observe.exposure import REASONS, exposures
from simulator.observe.waiting import waiting
from tests.observe.hand import comm, task, timeline

EXCHANGE, FIRST = comm("dispatch", 0, 40), task("a", 0, 10)
CASES: dict[str, list[list[dict[str, Any]]]] = {
    "cores": [[EXCHANGE, FIRST, task("b", 40, 50, ready=10)]],
    "launch": [[EXCHANGE, FIRST, task("b", 40, 50, issued=40)]],
    "late peer": [[EXCHANGE, FIRST, comm("gather", 40, 45, ready=10, stream="main", late=(1, 0))],
                  [comm("gather", 40, 45, stream="main")]],
    "dependency": [[EXCHANGE, FIRST, task("b", 40, 50, after=(0, 1))]],
    "stream order": [[comm("dispatch", 10, 40, stream="main", after=(1,)), FIRST, task("b", 40, 50)]],
    "other task": [[EXCHANGE, FIRST, task("fetch", 0, 40, stream="side", kind="prefetch"),
                    task("b", 40, 50, after=(2,))]],
    "no compute": [[EXCHANGE, FIRST]],
}


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason(reason: str) -> None:
    columns = timeline(*CASES[reason]).columns()
    found = exposures(columns, waiting(columns), columns["rank"] == 0, rank=0)
    of_dispatch = next(one for one in found if one.name == "dispatch")
    assert of_dispatch.exposed_ps == 30
    assert of_dispatch.reasons_ps == {reason: 30}


def test_what_ran_beside_it_and_how_long_it_was_slowed() -> None:
    tasks = [comm("dispatch", 0, 40, solo=25), task("attention.q", 0, 10, micro_batch=1),
             task("attention.k", 10, 18, micro_batch=1), task("experts", 20, 30, micro_batch=0)]
    columns = timeline(tasks, multiplicity=(3,)).columns()
    one, = exposures(columns, waiting(columns), np.ones(4, dtype=bool))
    assert (one.busy_ps, one.hidden_ps, one.exposed_ps, one.contention_ps) == (40, 28, 12, 15)
    assert one.under_ps == {("attention", 1): 18, ("experts", 0): 10}
