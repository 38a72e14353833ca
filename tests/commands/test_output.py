"""Folders of results: refused before the work, one run at a time, whole or as before; a sweep goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.commands import output
from simulator.errors import InputError, RunError
from simulator.observe.temporary import LOCK, MARK
from simulator.study import sweep as study
from tests.commands.processes import environment
from tests.conftest import Outcome

Braid = Callable[..., Outcome]
RUN = "run", "contention:staging"
SWEEP = "sweep", "contention:staging", "machine.chip.hbm.peak", "1.2 TB/s", "1.6 TB/s"
OTHER = """
import sys
from pathlib import Path
from simulator.observe.temporary import held
with held(Path(sys.argv[1])):
    print("begun", flush=True)
    sys.stdin.read()
"""


def files(folder: Path) -> dict[str, bytes]:
    """All that is in a folder and below."""
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def test_a_second_run_on_one_folder_is_refused_and_names_the_first(braid: Braid, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OTHER, str(tmp_path / "out")], env=environment(), text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        refused = braid(*RUN, "--out", tmp_path / "out")
        assert refused.is_one_clear_message(2), refused
        assert f"another run writes to '{tmp_path / 'out'}': process {other.pid} on " in refused.err
        other.kill()
    assert (tmp_path / "out" / LOCK).exists(), "a process that is killed leaves it"
    assert braid(*RUN, "--out", tmp_path / "out").code == 0
    assert sorted(files(tmp_path / "out")) == ["result.json", "timeline.parquet", "trace.json.gz"]


def test_what_a_killed_run_left_goes_with_the_next_one(braid: Braid, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "out"):
        place.mkdir(exist_ok=True)
        (place / f"{MARK}00000007-probe").mkdir()
    assert braid(*RUN, "--out", tmp_path / "out").code == 0
    assert not list(tmp_path.rglob(f"{MARK}*"))


@pytest.mark.parametrize("words", [RUN, SWEEP])
def test_a_disk_that_is_nearly_full_is_told_before_the_work(
    braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real._replace(free=5000))
    done = braid(*words, "--out", tmp_path / "out")
    assert done.is_one_clear_message(2), done
    assert f"cannot write to '{tmp_path / 'out'}': 4 KiB are free there" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["open", "mkdir"])
def test_a_folder_that_is_read_only_is_told_before_the_work(
    braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The disk is, or the file system's mount: bits of permission mean nothing to root."""
    real: Callable[..., Any] = getattr(os, call)

    def refuse(path: Any, *words: Any, **more: Any) -> Any:
        if str(path).startswith(str(tmp_path)) and (call == "mkdir" or words[0] & os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, *words, **more)

    monkeypatch.setattr(os, call, refuse)
    done = braid(*RUN, "--out", tmp_path / "out")
    assert done.is_one_clear_message(2), done
    assert f"cannot write to '{tmp_path / 'out'}': Read-only file system" in done.err


FULL = """
import resource, sys
from simulator.commands.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)  # of a file; what is beyond is not written
main(sys.argv[2:])
"""


@pytest.mark.parametrize(("words", "most_bytes"), [(RUN, 1000), (RUN, 10_000), ((
    "serve", "one_server:llama_3_1_70b", "--requests", "2", "--isl", "32", "--osl", "2"), 3000)])  # fmt: skip
def test_a_disk_that_is_full_in_the_middle_is_told_and_leaves_what_was_there(
    tmp_path: Path, words: tuple[str, ...], most_bytes: int
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "trace.json.gz").write_text("old")
    done = subprocess.run([sys.executable, "-c", FULL, str(most_bytes), *words, "--out", str(out)], cwd=tmp_path,
                          env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr == f"Error: cannot write to '{out}': File too large\n"
    assert files(tmp_path) == {"out/trace.json.gz": b"old"}


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="root may mount a small disk")
def test_a_disk_that_is_full_is_told_by_what_it_is(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)], capture_output=True,
                             check=False)
    if mounted.returncode:
        pytest.skip("this root may not")
    try:
        folder = output.OutputFolder.__new__(output.OutputFolder)  # not refused for so little room
        folder.path = tmp_path / "out"
        with pytest.raises(RunError, match="No space left on device"), folder.staged() as staging:
            (staging / "a").write_bytes(bytes(4096))
            (staging / "b").write_bytes(bytes(1 << 16))
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(InputError, match="KiB are free there"):
            output.OutputFolder(tmp_path / "out")
        with pytest.raises(RunError, match=f"cannot write '{tmp_path}/x.md': No space"):
            output.write_text(tmp_path / "x.md", "x" * (1 << 16))
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_sweep_goes_on_where_it_was_stopped(
    braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    simulate = study.simulate
    monkeypatch.setattr(study, "simulate", lambda one, **how: ran.append(one.name) or simulate(one, **how))
    whole, out = braid(*SWEEP, "--json", "--out", tmp_path / "whole"), tmp_path / "out"
    assert len(ran) == 2
    braid(*SWEEP[:-1], "--out", out)
    went_on = braid(*SWEEP, "--json", "--out", out)
    assert len(ran) == 2 + 1 + 1
    assert went_on.out == whole.out
    assert went_on.err == "values kept from before: 1; left to run: 1 (--fresh runs all)\n"
    assert files(out) == files(tmp_path / "whole")
    for more in (["--fresh"], ["--seed", "1"], ["--ranks", "all"]):
        ran.clear()
        assert braid(*SWEEP, *more, "--out", out).code == 0
        assert len(ran) == 2, "another run, or asked for"


def test_a_sweep_that_was_killed_at_its_first_value_begins_again(braid: Braid, tmp_path: Path) -> None:
    (tmp_path / "out" / "1.2-TB-s" / f"{MARK}00000000-staged").mkdir(parents=True)
    (tmp_path / "out" / "1.2-TB-s" / f"{MARK}00000000-staged" / "timeline.parquet").write_text("half")
    assert braid(*SWEEP, "--out", tmp_path / "out").code == 0
    assert not list(tmp_path.rglob(f"{MARK}*"))


@pytest.mark.parametrize("spoilt", ["sweep.json", "trace.json.gz", "result.json"])
def test_a_value_whose_files_are_not_all_there_is_simulated_again(braid: Braid, tmp_path: Path, spoilt: str) -> None:
    assert braid(*SWEEP, "--out", tmp_path / "out").code == 0
    whole = files(tmp_path / "out")
    (tmp_path / "out" / "1.2-TB-s" / spoilt).unlink()
    done = braid(*SWEEP, "--out", tmp_path / "out")
    assert "values kept from before: 1;" in done.err
    assert files(tmp_path / "out") == whole


@pytest.mark.parametrize("value", [None, 10**400])
def test_an_older_note_of_a_value_is_no_result(tmp_path: Path, braid: Braid, value: int | None) -> None:
    assert braid(*SWEEP, "--out", tmp_path / "out").code == 0
    note = tmp_path / "out" / "1.2-TB-s" / "sweep.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"metrics": {"latency_ms": value}}))
    assert "values kept from before: 1;" in braid(*SWEEP, "--out", tmp_path / "out").err
