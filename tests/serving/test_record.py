"""The record of a service: its columns fit together, and what a request waited for adds up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.serving.record import WAITS, Lower, Served
from tests.serving.hand import MS, apart, request, served, step, together


def waits_ms(record: Served, which: int) -> list[float]:
    return [round(float(column[which]) * 1e3, 9) for column in record.waits().values()]


def test_waits_of_requests() -> None:
    assert tuple(together().waits()) == tuple(name for name in WAITS if name != "load")
    lower = Lower(np.full(4, 5 * MS), {"host": np.array([0, 60, 0, 0])}, {})
    assert tuple(together(lower=lower).waits()) == WAITS
    assert together(lower=lower).waits()["prefill"][0] == pytest.approx(0.015)
    assert together(lower=lower).cached_by_tier()["hbm"].tolist() == [0, 40, 0, 0]
    assert waits_ms(together(), 0) == [5, 5, 20, 0, 50, 0]
    assert waits_ms(together(), 1) == [5, 15, 30, 0, 20, 0]
    assert waits_ms(apart(), 0) == [1, 0, 10, 5, 28, 0]


def test_what_has_not_ended_is_no_wait() -> None:
    assert np.isnan([column[2] for column in together().waits().values()]).all()
    front, *others = (column[3] for column in together().waits().values())
    assert front == pytest.approx(3e-3)
    assert np.isnan(others).all()


def test_preempted_time_is_no_decode() -> None:
    record = served([request(0, tokens=(10, 3), routed=0, admitted=0, prefilled=10, last_token=90, preemptions=1,
                             preempted=60)], [step(0, 10, 0, 10)])  # fmt: skip
    assert waits_ms(record, 0) == [0, 0, 10, 0, 20, 60]


@pytest.mark.parametrize("record", [together(), apart()])
def test_waits_add_up_to_the_whole(record: Served) -> None:
    whole = (record.times["last_token"] - record.times["arrival"])[record.done] / 1e12
    parts = np.sum([column[record.done] for column in record.waits().values()], axis=0)
    assert parts == pytest.approx(whole, rel=1e-12)


def test_span() -> None:
    assert (together().start_ps, together().end_ps) == (0, 90 * 10**9)
    assert served([request(7, engine=-1, emitted=0, status=1)], []).end_ps == 7 * 10**9


@pytest.mark.parametrize(("change", "complaint"), [
    (lambda one: {"emitted": one.emitted[:2]}, r"emitted has the shape \(2,\) for 4 requests"),
    (lambda one: {"times": {k: v for k, v in one.times.items() if k != "joined"}}, r"times\['joined'\] is missing"),
    (lambda one: {"times": one.times | {"left": one.emitted}}, "unknown column 'left'; there are arrival, routed"),
    (lambda one: {"times": one.times | {"routed": one.times["routed"] - 6 * 10**9}}, "request 0: routed comes before"),
    (lambda one: {"times": one.times | {"first_token": one.times["joined"]}}, "request 0: it is done without"),
    (lambda one: {"emitted": one.emitted - 1}, "request 0: it is done without all its tokens"),
    (lambda one: {"decode_engine": one.decode_engine + 1}, "request 0: its engine is none of 1"),
    (lambda one: {"preempted_ps": one.preempted_ps + 30 * 10**9}, "request 1: it was preempted for longer"),
    (lambda one: {"steps": one.steps | {"waiting": one.emitted}}, r"steps\['waiting'\] has the shape \(4,\) for 5"),
    (lambda one: {"steps": one.steps | {"engine": one.steps["decoding"]}}, "step 1: its engine is none of 1"),
    (lambda one: {"steps": one.steps | {"duration_ps": one.steps["duration_ps"] * 2}}, "step 1: it starts before its"),
    (lambda one: {"steps": one.steps | {"start_ps": one.steps["start_ps"][::-1]}}, "step 1: it starts before the one"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(change: Any, complaint: str) -> None:
    record = together()
    with pytest.raises(ValueError, match=complaint):
        replace(record, **change(record))


def test_steps_of_two_engines_may_overlap() -> None:
    assert len(served([request(0, engine=-1, emitted=0, status=1)],
                      [step(0, 10, engine=0), step(5, 10, engine=1), step(10, 10, engine=0)],
                      engines=["engine 0", "engine 1"]).steps["engine"]) == 3  # fmt: skip
