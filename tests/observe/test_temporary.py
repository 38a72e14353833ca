"""Temporary names and locks end with their process, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.observe.files import whole_file
from simulator.observe.temporary import LOCK, MARK, WHOLE, a_folder, held, settle, temporary, together
from tests.commands.processes import environment, started, wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no such locks")

KILLED = """
import os, signal, sys
from pathlib import Path
from simulator.observe import temporary
folder, step = Path(sys.argv[1]), int(sys.argv[2])
steps = [0]

def counted(call):
    def count(*words, **more):
        if steps[0] == step:
            os.kill(os.getpid(), signal.SIGKILL)
        steps[0] += 1
        return call(*words, **more)
    return count

for name in ("rename", "replace", "open"):
    setattr(os, name, counted(getattr(os, name)))
with temporary.together(folder) as staged:
    for one in "ab":
        (staged / one).write_text("new")
    (staged / "more").mkdir()
    (staged / "more" / "c").write_text("new")
print("done")
"""
WAITS = """
import sys
from pathlib import Path
from simulator.observe.temporary import held, temporary
with held(Path(sys.argv[1])), temporary(Path(sys.argv[1]), "x") as part:
    part.write_text("half")
    Path(sys.argv[1], "begun").touch()
    sys.stdin.read()
    import time; time.sleep(1000)
"""


def texts(folder: Path) -> dict[str, str]:
    """All files in a folder and below, by their names."""
    return {str(one.relative_to(folder)): one.read_text() for one in folder.rglob("*") if one.is_file()}


def old(folder: Path) -> dict[str, str]:
    """Files of an earlier run, of one more in a folder of them."""
    folder.mkdir()
    (folder / "more").mkdir()
    for name in ("a", "b", "more/c", "more/d"):
        (folder / name).write_text("old")
    return texts(folder)


def test_a_kill_before_any_step_leaves_the_old_files_or_the_new_ones(tmp_path: Path) -> None:
    new = dict.fromkeys(("a", "b", "more/c"), "new")
    seen = set()
    for step in range(20):
        folder = tmp_path / str(step)
        was = old(folder)
        done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(step)], env=environment(), check=False,
                              capture_output=True, text=True)
        left = [one.name for one in folder.iterdir() if one.name not in ("a", "b", "more")]
        assert all(name.startswith(MARK) for name in left), left
        settle(folder)
        assert texts(folder) in (was, new), f"step {step}"
        seen.add((done.returncode, texts(folder) == new, bool(left)))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert seen == {(-signal.SIGKILL, False, True), (-signal.SIGKILL, True, True), (0, True, False)}


def test_a_folder_and_what_a_living_process_writes_there_is_its_own_until_it_is_killed(tmp_path: Path) -> None:
    with started(tmp_path, "-c", WAITS, str(tmp_path / "out")) as running:
        wait_until((tmp_path / "out" / "begun").exists, running)
        with pytest.raises(BlockingIOError, match=f"process {running.pid} on "), held(tmp_path / "out"):
            pass
        settle(tmp_path / "out")
        there = sorted(one.name for one in (tmp_path / "out").iterdir())
        assert there[1:] == [LOCK, "begun"], "and its temporary file"
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == there
    with held(tmp_path / "out"):
        assert {one.name for one in (tmp_path / "out").iterdir()} == {LOCK, "begun"}
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["begun"]


def test_a_new_folder_goes_with_its_lock_if_nothing_is_in_it(tmp_path: Path) -> None:
    with held(tmp_path / "new"):
        assert (tmp_path / "new" / LOCK).read_text().startswith(f"process {os.getpid()} on ")
    assert list(tmp_path.iterdir()) == []


def test_what_begins_like_it_and_is_not_locked_goes_at_the_next_write(tmp_path: Path) -> None:
    (tmp_path / f"{MARK}00000000-x").write_text("half")
    (tmp_path / f"{MARK}00000001-staged").mkdir()
    (tmp_path / f"{MARK}00000001-staged" / "mine").write_text("half")
    (tmp_path / f"{MARK}00000002-staged{WHOLE}").mkdir()
    (tmp_path / f"{MARK}00000002-staged{WHOLE}" / "mine").write_text("whole")
    with whole_file(tmp_path / "other") as part:
        part.write_text("other")
        settle(tmp_path)
        assert part.exists(), "this process is at it"
    assert texts(tmp_path) == {"mine": "whole", "other": "other"}


def test_a_file_has_the_mode_of_any_other_file(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with whole_file(tmp_path / "whole") as part:
        part.write_text("x")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_without_locks_nothing_is_refused_and_nothing_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                 ) -> None:
    import fcntl

    def none(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", none)
    (tmp_path / f"{MARK}00000000-x").write_text("of another, perhaps")
    with held(tmp_path), temporary(tmp_path, "y", a_folder), together(tmp_path) as staged:
        (staged / "a").write_text("1")
    assert texts(tmp_path) == {f"{MARK}00000000-x": "of another, perhaps", "a": "1"}


def test_an_error_of_writing_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space") as raised, whole_file(tmp_path / "x") as part:
        part.write_text("half")
        raise OSError(28, "No space left on device")
    assert raised.value.filename == str(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_what_others_call_so_is_theirs(tmp_path: Path) -> None:
    (tmp_path / f"{MARK}notes").mkdir()
    (tmp_path / f"{MARK}notes" / "mine").write_text("1")
    (tmp_path / f"{MARK}mine.txt").write_text("2")
    settle(tmp_path)
    assert texts(tmp_path) == {f"{MARK}notes/mine": "1", f"{MARK}mine.txt": "2"}


def test_ctrl_c_while_files_get_their_names_leaves_the_rest_to_the_next(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    replace, names = os.replace, []

    def stopped(source: str, target: str) -> None:
        if names:
            raise KeyboardInterrupt
        names.append(target)
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), together(tmp_path) as staged:
        for one in "ab":
            (staged / one).write_text("new")
        patch.setattr(os, "replace", stopped)
    settle(tmp_path)
    assert texts(tmp_path) == {"a": "new", "b": "new"}


def test_a_name_may_be_as_long_as_a_name_can_be(tmp_path: Path) -> None:
    long = "模" * 83 + ".json"
    with whole_file(tmp_path / long) as part:
        part.write_text("1")
    assert texts(tmp_path) == {long: "1"}
