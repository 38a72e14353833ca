"""The parts that the commands are made of: folders, names, JSON, tables."""

from __future__ import annotations

import io
import json
import os
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from simulator.bench.benchmark import Benchmark, BenchmarkRow, Measurement
from simulator.commands import request
from simulator.commands.output import OutputFolder, to_json, write_text
from simulator.commands.request import Told, progress_bar
from simulator.errors import InputError
from simulator.observe.tables import markdown_table as table
from simulator.observe.tables import plain_number as number
from simulator.paths import choose, matches
from simulator.study.expected import plain


def test_an_output_folder_gets_all_its_files_together(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "new")
    assert not folder.path.exists(), "checking leaves nothing behind"
    with folder.staged() as staging:
        (staging / "a").write_text("1")
        (staging / "b").write_text("2")
        assert not (folder.path / "a").exists()
    assert sorted(file.name for file in folder.path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_leaves_a_new_folder_unmade(tmp_path: Path, stop: type[BaseException]) -> None:
    folder = OutputFolder(tmp_path / "new")
    with pytest.raises(stop), folder.staged() as staging:
        (staging / "a").write_text("half")
        raise stop
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), OutputFolder(tmp_path).staged() as staging:
        (staging / "a").write_text("half")
        raise KeyboardInterrupt
    assert [(file.name, file.read_text(encoding="utf-8")) for file in tmp_path.iterdir()] == [("a", "old")]


@pytest.mark.parametrize(("path", "said"), [
    ("file", "'file' is a file|it is a file"),
    ("file/out", "is a file, not a folder"),
    ("missing/out", "does not exist"),
])
def test_an_impossible_output_folder_is_refused(tmp_path: Path, path: str, said: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=said):
        OutputFolder(tmp_path / path)


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc").is_dir(), reason="needs a folder that cannot be written")
def test_an_unwritable_output_folder_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    target = closed / "out" if os.geteuid() != 0 else Path("/proc/out")  # root may write into any folder but such
    with pytest.raises(InputError, match="cannot write to"):
        OutputFolder(target)


def test_write_text_makes_its_folder_or_says_why_not(tmp_path: Path) -> None:
    write_text(tmp_path / "results" / "x.md", "text")
    assert (tmp_path / "results" / "x.md").read_text(encoding="utf-8") == "text"
    with pytest.raises(InputError, match="cannot write"):
        write_text(tmp_path / "results" / "x.md" / "y.md", "text")


def test_names_are_chosen_by_part_or_by_sign() -> None:
    assert matches(None, "anything")
    assert matches("flows", "flows_coupled")
    assert matches("cold_*", "cold_run")
    assert not matches("cold_*", "a_cold_run")
    assert choose("dp", ["a:dp", "a:tp", "b:dp"], "scenario") == ["a:dp", "b:dp"]
    with pytest.raises(InputError, match=r"did you mean 'a:tp'.*there are: a:dp, a:tp"):
        choose("a:to", ["a:dp", "a:tp"], "scenario")


def test_json_is_plain_and_strict() -> None:
    value = {"a": np.float64(1.5), "b": [np.int64(2), float("nan")], "c": ("x", None, float("inf"))}
    assert json.loads(to_json(plain(value))) == {"a": 1.5, "b": [2, None], "c": ["x", None, None]}


def test_markdown_tables_hold_any_text() -> None:
    assert table(("a", "b"), [("1|2", "x\ny")]) == "| a    | b   |\n|------|-----|\n| 1\\|2 | x y |\n"
    assert [number(value) for value in (None, "x", 0.123456, 3128, 83805.2)] == ["-", "x", "0.1235", "3128", "83,805"]


def test_a_benchmark_row_has_the_promised_keys() -> None:
    case = Benchmark("flows", "what", lambda: Measurement(1.0, 0.1), "us/flow", 2.0)
    keys = {"name", "value", "unit", "target", "met", "cpu_s", "peak_mib"}
    assert set(BenchmarkRow(case, Measurement(1.0, 0.1), 20.0).as_object()) == keys
    assert BenchmarkRow(case, Measurement(1.0, 0.1), 20.0).as_object()["met"] is True
    missing = BenchmarkRow(case, reason="no such part").as_object()
    assert set(missing) == keys | {"reason"}
    assert missing["met"] is False
    assert Benchmark("rate", "what", lambda: Measurement(3.0, 0.1), "tasks/s", 2.0, more_is_better=True).met(3.0)


def test_what_is_over_soon_says_nothing_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("run") as tell:
        tell(0.5)
    assert capsys.readouterr() == ("", "")


def test_a_line_now_and_then_where_nobody_watches(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "EVERY_S", 0.01)
    err, until_s = "", time.monotonic() + 60.0

    def wait_for(line: str) -> None:
        nonlocal err
        while not re.search(line, err, re.MULTILINE):
            assert time.monotonic() < until_s, err
            printed = capsys.readouterr()
            assert not printed.out
            err += printed.err

    with progress_bar("run", "building its programs") as tell:
        wait_for(r"^run: building its programs, \d+ s$")
        tell(0.25)
        wait_for(r"^run: 25%, \d+ s$")
        tell(0.75)
        wait_for(r"^run: 75%, \d+ s, about \d+ s left$")


def test_what_is_left_follows_from_the_pace_since_the_first_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that goes on has half of it from before: a tenth more in 5 s leaves 20 s."""
    told, now_s = Told(), [100.0]
    monkeypatch.setattr("simulator.commands.request.time.monotonic", lambda: now_s[0])
    assert told.left_s is None
    told.tell(0.5)
    assert told.left_s is None
    now_s[0] += 5.0
    told.tell(0.6)
    assert told.left_s == pytest.approx(20.0)


def test_a_run_that_tells_nothing_shows_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            shown.append(text)
            said.set()
            return len(text)

    said, before = threading.Event(), threading.active_count()
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr(request, "PATIENCE_S", 0.01)
    with progress_bar("a silent phase") as tell:
        assert tell is not None
        assert said.wait(60)
    assert any("a silent phase" in text for text in shown)
    for thread in threading.enumerate()[before:]:
        thread.join(60)
    assert threading.active_count() == before
