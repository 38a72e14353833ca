"""Experts of an engine over time: what is counted, what moves and meets on the wire, and what results say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from simulator.serving.files import OF_STEPS, STEP_COLUMNS, write_files
from simulator.serving.loop import Loop
from simulator.serving.outcome import outcome
from simulator.serving.record import Served
from simulator.serving.settings import Service
from simulator.serving.show import print_outcome
from tests.serving.drifting import EXPERTS, LAYERS, drifting, engines, steps_by_imbalance
from tests.serving.services import drawn, run, service

EXPERT_BYTES = 3 * 2048 * 768 * 2


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_imbalance(monkeypatch)


def served(the_service: Service, count: int = 80, **how: Any) -> Served:
    return run(the_service, drawn(count, 1), **how)


def test_the_first_rearrangement_comes_after_a_quarter_of_the_interval() -> None:
    found = served(drifting(step_interval=100, drift_s=50.0))
    ends = np.sort(found.steps["start_ps"] + found.steps["duration_ps"])
    assert [one.start_ps for one in found.moved[:3]] == [int(ends[place]) for place in (24, 124, 224)]


def test_bytes_are_those_of_the_experts_that_moved() -> None:
    for one in served(drifting(step_interval=100, drift_s=2.0)).moved:
        assert 0 < one.experts < LAYERS * EXPERTS
        assert one.size_bytes == pytest.approx(one.experts * EXPERT_BYTES)


def test_only_the_window_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.serving import experts

    counted, seen = experts.counted, []
    monkeypatch.setattr(experts, "counted", lambda steps: seen.append(steps) or counted(steps))
    loop = Loop(drifting(step_interval=60, window_size=20, drift_s=1.0), drawn(80, 1), steps="lattice")
    rows = loop._engines[0]
    loop.run()
    assert len(seen) > 3
    engine_rows = rows.stretches.rows
    tokens = np.repeat(engine_rows[:, 2] + engine_rows[:, 4], engine_rows[:, 1])
    first, later = tokens[:15], tokens[55:75]  # 60 - 60 // 4 of the first interval are taken to be over
    assert [sum(count for count, _ in steps) for steps in seen[:2]] == [first.sum(), later.sum()]


def test_weights_share_the_wire_with_keys_and_values() -> None:
    def transfer_ps(weights: bool) -> int:
        loop = Loop(service(engines(), prefill=engines(step_interval=40)), drawn(1, 1), steps="lattice")
        ends: list[int] = []
        loop._transfers.start((0, 0), (1, 0), 5000, lambda: ends.append(loop._clock.now_ps))
        if weights:  # from the rank that sends keys and values
            loop._weights.send(0, {(0, 1): 1e9}, 0.5, lambda: None)
        loop._clock.run()
        return ends[0]

    assert transfer_ps(weights=True) == pytest.approx(2.0 * transfer_ps(weights=False), rel=0.01)


def test_alone_a_layer_takes_what_its_busiest_link_carries() -> None:
    loop = Loop(drifting(step_interval=40), drawn(1, 1), steps="lattice")
    flows, done = {(0, 1): 4e9, (2, 1): 5e9, (0, 3): 1e9}, []
    said = loop._weights.send(0, flows, 0.5, lambda: done.append(loop._clock.now_ps))
    loop._clock.run()
    rate = loop._service.engines.step.machine_spec().fabric[0].link_rate.si
    assert said == pytest.approx(9e9 / (rate / 2), rel=1e-4)
    assert done == [pytest.approx(said * 1e12, rel=1e-6)]


def test_results_say_how_level_experts_are_and_what_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, found = outcome(served(drifting())), outcome(served(drifting(step_interval=100, drift_s=50.0)))
    for name, one, columns in (("plain", plain, STEP_COLUMNS), ("found", found, STEP_COLUMNS | OF_STEPS)):
        (tmp_path / name).mkdir()
        write_files(one, tmp_path / name)
        assert pyarrow.parquet.read_table(tmp_path / name / "steps.parquet").column_names == [*columns]
    made, without = (json.loads((tmp_path / name / "profile_export_aiperf.json").read_text(encoding="utf-8"))["braid"]
                     for name in ("found", "plain"))  # fmt: skip
    assert [one["experts"] for one in made["rearrangements"]] == [one.experts for one in found.served.moved]
    assert 0.7 < made["whole"]["means_over_time"]["balancedness"] < 1.0
    assert "rearrangements" not in without
    assert "balancedness" not in without["over_time"]
    steps = found.served.steps
    mean = np.average(steps["balancedness"], weights=steps["duration_ps"])
    assert found.whole.means["balancedness"] == pytest.approx(float(mean))
    print_outcome(found, "a test", width=100)
    text = capsys.readouterr().out
    assert f"rearranged {len(found.served.moved)} times" in text
    assert "experts: balancedness 0." in text


def test_every_engine_places_its_own_experts() -> None:
    two = served(service(engines(step_interval=60, drift_s=50.0) | {"count": 2}), 120)
    assert len(two.engines) == 2
    starts = [one.start_ps for one in two.moved]
    assert len(set(starts)) > 2
    assert not np.isnan(two.steps["balancedness"]).any()
