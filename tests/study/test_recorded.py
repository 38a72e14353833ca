"""A run that is written to a folder and read back is the same run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.commands.output import OutputFolder, write_result
from simulator.errors import InputError
from simulator.study.library import load_scenario
from simulator.study.recorded import ABOUT, TIMELINE, read_recorded, recorded_of
from simulator.study.simulate import Result, simulate


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(load_scenario("contention:staging"))


def test_what_is_read_back_is_what_was_run(result: Result, tmp_path: Path) -> None:
    write_result(result, OutputFolder(tmp_path / "run"))
    run, again = recorded_of(result), read_recorded(tmp_path / "run")
    assert {name: column.tolist() for name, column in again.columns.items()} == {
        name: column.tolist() for name, column in run.columns.items()}
    assert (again.about, again.metrics, again.peaks, again.memory) == (run.about, run.metrics, run.peaks, run.memory)
    assert again.critical == run.critical
    assert again.parameters == run.parameters
    assert run.about["settings"]["machine"] == "atlas_a3"


def test_bytes_on_links_and_cores_are_those_of_the_tasks(result: Result) -> None:
    columns, peaks = result.columns, recorded_of(result).peaks
    sent = [sum(each) for each in columns["link_bytes"].tolist()]
    assert sent == columns["wire_bytes"].tolist(), "all that a ring's rank sends leaves its die over some link"
    assert len(columns["link_bytes"][0]) == len(peaks.links_bytes_per_s)
    level_mb = [columns["link_bytes"][0][place] / 1e6 for place, _ in enumerate(peaks.links_bytes_per_s)]
    assert level_mb[:2] == [result.metrics["sent_package_mb"], result.metrics["sent_node_mb"]]
    for engine, cores in zip(columns["engine"].tolist(), columns["cores"].tolist(), strict=True):
        assert all(0 < held <= peaks.cores[pool] for pool, held in zip(engine.split("+"), cores, strict=True))


@pytest.mark.parametrize(("what", "said"), [
    ("no timeline", "has no timeline.parquet"), ("no metrics", "it has no metrics"), ("no JSON", "Expecting value"),
    ("another table", "is not a timeline that this version of Braid writes")])
def test_a_folder_of_something_else_is_refused(result: Result, tmp_path: Path, what: str, said: str) -> None:
    write_result(result, OutputFolder(tmp_path / "run"))
    about, timeline = tmp_path / "run" / ABOUT, tmp_path / "run" / TIMELINE
    if what == "no timeline":
        timeline.unlink()
    elif what == "no metrics":
        about.write_text(json.dumps({name: it for name, it in json.loads(about.read_text()).items()
                                     if name != "metrics"}))
    else:
        (about if what == "no JSON" else timeline).write_text("nothing")
    with pytest.raises(InputError, match=said):
        read_recorded(tmp_path / "run")


def test_every_part_of_its_json_is_needed(result: Result, tmp_path: Path) -> None:
    write_result(result, OutputFolder(tmp_path / "run"))
    about = tmp_path / "run" / ABOUT
    whole = json.loads(about.read_text())
    parts = [{**whole, "about": {other: it for other, it in whole["about"].items() if other != key}}
             for key in whole["about"]]
    parts += [{other: it for other, it in whole.items() if other != key} for key in whole]
    assert len(parts) == 10 + 9
    parts += [{**whole, "changes": None}, {**whole, "metrics": []}, {**whole, "parameters": None}]
    parts += [{**whole, "metrics": {"a": 10**400}}, {**whole, "memory": whole["memory"] | {"usable_bytes": 0}},
              {**whole, "parameters": [{**whole["parameters"][0], "saves": "1"}]}, {**whole, "expected": ["a"]},
              {**whole, "peaks": whole["peaks"] | {"more": 1}}, whole["peaks"], [whole], None]
    parts += [{**whole, "about": whole["about"] | wrong} for wrong in ({"leaders": "a"}, {"ranks": ""})]
    for part in parts:
        about.write_text(json.dumps(part))
        with pytest.raises(InputError, match=r"result\.json' is not what `braid run --out` of this.*; run it again"):
            read_recorded(tmp_path / "run")
