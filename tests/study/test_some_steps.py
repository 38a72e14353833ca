"""A few steps stand for a run: their shares add up, and the midpoint rule is exact where cost is linear."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import np
from simulator.study.readings import stalled_ps
from simulator.study.some_steps import Step, alike_steps, durations_s, mean_seconds, run_seconds, steps_of_run


@given(st.integers(1, 200), st.integers(1, 4), st.integers(2, 3000), st.integers(1, 5))
def test_steps_stand_for_all_of_the_run(requests: int, each: int, output: int, samples: int) -> None:
    steps = steps_of_run(requests, 512, output, 512 * each, samples)
    filling = min(-(-requests // each), output - 1)
    standing = {phase: sum(step.steps for step in steps if step.phase == phase) for phase in ("prefill", "decode")}
    assert standing == pytest.approx({"prefill": filling, "decode": output - filling})
    assert steps[-1].steps == filling
    assert [step.labelled for step in steps].count(True) == 1


def test_a_cost_that_is_linear_in_the_cache_is_summed_exactly() -> None:
    few, many = (steps_of_run(8, 1024, 2056, 1024, samples) for samples in (2, 64))
    whole = [sum(step.steps * step.cached for step in steps if step.phase == "decode") for steps in (few, many)]
    assert whole[0] == pytest.approx(whole[1], rel=1e-3)


def test_prompts_that_do_not_fill_a_chunk_are_refused() -> None:
    with pytest.raises(ValueError, match=r"batch\.chunk_tokens is 1000: it must be a multiple of .*, 300"):
        steps_of_run(8, 300, 100, 1000, 3)


def test_durations_lead_from_end_to_end() -> None:
    columns = {"name": np.array(["a", "end", "a", "end", "end"]), "rank": np.array([0, 0, 0, 0, 1]),
               "end_ps": np.array([1, 2, 3, 5, 9]) * 10**12}
    each_s = durations_s(columns, "end")
    assert each_s == [2.0, 3.0]
    steps = [Step("prefill", (8,), 0, 0, 4.0), Step("decode", (), 1, 8, 10.0)]
    assert run_seconds(steps, each_s) == 4 * 2 + 10 * 3
    assert (mean_seconds(steps, each_s, "prefill"), mean_seconds(steps, each_s, "drain")) == (2.0, 0.0)
    assert mean_seconds(alike_steps(4, 100, 2), each_s, "decode") == 2.5


def test_a_stream_stalls_for_what_it_awaits_alone() -> None:
    """Two waits for a gather: 4 beyond the task before and the launch, and none where the stream was busy longer."""
    rows = [("k", "compute", (), 0, 5), ("gather", "comm", (), 0, 9), ("k", "compute", (1,), 1, 12),
            ("gather", "comm", (), 9, 11), ("k", "compute", (3,), 2, 14), ("k", "other", (1,), 0, 20)]
    after = np.empty(len(rows), dtype=object)
    after[:] = [row[2] for row in rows]
    columns = {"rank": np.zeros(len(rows), dtype=int), "task": np.arange(len(rows)), "after": after,
               "name": np.array([row[0] for row in rows]), "stream": np.array([row[1] for row in rows]),
               "issued_ps": np.array([row[3] for row in rows]), "end_ps": np.array([row[4] for row in rows])}
    assert stalled_ps(columns, "compute", "gather", 0) == 4
    assert stalled_ps(columns, "compute", "gather", 12) == 0
