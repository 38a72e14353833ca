"""Ctrl-C, and the end of a parent: one line, no half files, no process left behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.commands.processes import MAIN, left_by, started, wait_until

LIBRARY = ("from simulator.serving import library as services\n"
           "from simulator.study import library\n"
           "services.service_names = list\n"
           "library.scenario_names = lambda: [('study/endless.py:one', ''), ('study/endless.py:other', '')]\n")
ENDLESS = """
import os, time
from pathlib import Path
from simulator.study.library import load_scenario


def endless(*_):
    Path(f"begun_{{os.getpid()}}").touch()
    while True:
        time.sleep(0.01)


def one():
    parent = load_scenario("contention:staging")
    return parent.variant(workload=parent.workload._replace({part}=endless))


def other():
    return one()
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A folder for a file whose scenarios never end."""
    (tmp_path / "study").mkdir()
    return tmp_path / "study" / "endless.py"


def begun(folder: Path) -> list[Path]:
    """What endless scenarios left when they began; empty it before looking for other files."""
    return list(folder.glob("begun_*"))


@pytest.mark.parametrize("part", ["program", "measures"])
def test_ctrl_c_in_the_middle_leaves_one_line_and_no_files(study: Path, tmp_path: Path, part: str) -> None:
    study.write_text(ENDLESS.format(part=part), encoding="utf-8")
    with started(tmp_path, "-c", MAIN, "run", "study/endless.py:one", "--out", "out") as running:
        wait_until(lambda: len(begun(tmp_path)) == 1, running)
        running.send_signal(signal.SIGINT)
        assert left_by(running) == (130, "", "interrupted\n")
    assert {file.name for file in tmp_path.iterdir()} - {file.name for file in begun(tmp_path)} == {"study"}


POINTS = """
import time
from pathlib import Path
from simulator.serving import points


def predicted(point):
    if point["id"] == "endless":
        Path("begun").touch()
        time.sleep(1000)
    return {"tpot_ms": 9.0}


points.predicted = predicted
"""


@pytest.mark.parametrize(("ids", "done"), [(["one", "other", "endless", "last"], 2), (["endless", "one"], 0)])
def test_points_that_were_done_before_ctrl_c_are_kept(tmp_path: Path, ids: list[str], done: int) -> None:
    """Of the first one's launch too, where a later point of it is not done."""
    lines = [json.dumps({"id": id_, "framework": "vllm" if id_ == "one" else "trtllm", "tpot_ms": 8.0}) for id_ in ids]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
    said = f"stopped by Ctrl-C: what is shown is of {done} of {len(ids)} points\n"
    for more in ([], ["--json"]):
        with started(tmp_path, "-c", POINTS + MAIN, "validate", "--points", "mine.jsonl", *more) as running:
            wait_until((tmp_path / "begun").exists, running)
            running.send_signal(signal.SIGINT)
            code, out, err = left_by(running)
        (tmp_path / "begun").unlink()
        assert (code, err) == (130, said)
        if more:
            assert [row["id"] for row in json.loads(out)] == ids[:done]
        else:
            assert out.startswith(f"INTERRUPTED: what follows is of {done} of {len(ids)} points\n")


def test_ctrl_c_ends_parallel_processes_too(study: Path, tmp_path: Path) -> None:
    study.write_text(ENDLESS.format(part="program"), encoding="utf-8")
    with started(tmp_path, "-c", LIBRARY + MAIN, "validate", "--jobs", "2") as running:
        wait_until(lambda: len(begun(tmp_path)) == 2, running)
        os.killpg(running.pid, signal.SIGINT)  # a terminal sends it to all of them
        assert left_by(running) == (130, "", "interrupted\n")
    assert not (tmp_path / "results").exists()


def test_parallel_processes_end_with_their_parent_however_it_ends(study: Path, tmp_path: Path) -> None:
    study.write_text(ENDLESS.format(part="program"), encoding="utf-8")
    with started(tmp_path, "-c", LIBRARY + MAIN, "validate", "--jobs", "2") as running:
        wait_until(lambda: len(begun(tmp_path)) == 2, running)
        running.kill()
        code, out, _ = left_by(running)
        assert (code, out) == (-signal.SIGKILL, "")
