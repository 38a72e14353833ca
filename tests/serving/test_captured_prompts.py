"""Steps with prompts that are padded to the size of a captured graph."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.model.micro_batch import MicroBatch
from simulator.serving.engine import Engine
from simulator.serving.kept import Kept
from simulator.serving.requests import independent
from simulator.serving.settings import Instances
from simulator.serving.steps import Load, StepTimes, step_seconds
from simulator.study.batch import Prompts
from tests.serving.services import instances, load_of, run, service, step, watched

SIZES = (64, 256, 1024)


def prompt(tokens: int, padded: int = 0, decoding: int = 0) -> list[MicroBatch]:
    return [MicroBatch(0, ((1, 500),) * decoding, ((tokens, 0),), 1, padded)]


def test_what_pads_is_paid_for_and_a_graph_is_launched_at_once() -> None:
    exact, padded = (step_seconds(step(), one) for one in (prompt(1024, 1024), prompt(600, 1024)))
    assert exact * 0.9 < padded <= exact, "rows are computed, but what pads attends to nothing"
    assert step_seconds(step(), prompt(64, 64)) < 0.85 * step_seconds(step(), prompt(64)), "its host had bound it"
    many = prompt(4800), prompt(4800, 8192)
    assert step_seconds(step(), many[0]) < 0.8 * step_seconds(step(), many[1]), "of many tokens no launch is seen"


def test_without_a_size_as_large_it_is_launched_op_by_op() -> None:
    engines = instances() | {"capture_prefill": SIZES}
    rows: list[int] = []

    def look(engine: Engine) -> None:
        if any(plan.prompts for plan in engine._plans.values()):
            rows.append(engine._lengths._padded)

    with pytest.MonkeyPatch.context() as patch:
        watched(patch, look)
        run(service(engines), independent(np.array([0.0, 1.0, 2.0, 3.0]), [10, 64, 300, 2000], [1] * 4))
    assert sorted(set(rows)) == [0, 64, 1024]


def test_those_that_decode_beside_prompts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[MicroBatch]] = []
    monkeypatch.setattr("simulator.serving.steps.step_seconds", lambda _, groups: asked.append(list(groups)) or 1e-3)
    engines = instances("tp=1,dp=2") | {"capture_prefill": SIZES}
    requests = independent(np.array([0.0, 0.0, 0.0015, 0.0015]), [60, 30, 60, 30], [5] * 4)
    run(service(engines), requests, steps="exact")
    padded = [{one.padded for one in groups} for groups in asked if any(one.prompts for one in groups)]
    assert padded == [{64}, {64}], "60 and 30, then 61 and 31: all groups as the fullest"


def test_the_lattice_is_near_what_is_simulated() -> None:
    times = StepTimes(step(), Instances.model_fields["capture"].default, 100_000, Kept(step(), None))
    for tokens, size, decoding in ((700, 1024, 0), (1000, 1024, 0), (200, 256, 20), (250, 256, 4)):
        groups = prompt(tokens, size, decoding)
        load = load_of(groups)
        assert (load.padded, load.new) == (size, tokens)
        assert times.seconds(load) == pytest.approx(step_seconds(step(), groups), rel=0.03), (tokens, size)
    assert times.seconds(Load(0, 0, 0, 1.0, 64, 32.0, 1.0)) > times.seconds(Load(0, 64, 0, 1.0, 64, 32.0, 1.0))


def test_sizes_below_all_prompts_change_nothing() -> None:
    requests = independent(np.zeros(3), [300, 400, 500], [5] * 3)
    plain, sized = (run(service(instances() | more), requests, steps="audit")
                    for more in ({}, {"capture_prefill": (8, 16)}))
    for name, column in plain.steps.items():
        np.testing.assert_array_equal(column, sized.steps[name], name)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="capture_prefill is 64,16: sizes must ascend"):
        Instances.model_validate(instances() | {"capture_prefill": (64, 16)})
    with pytest.raises(InputError, match="pads no prompts: leave out capture_prefill"):
        Prompts().working_on(prompt(10, 64))
