"""Commands say the same wherever they run: other widths, colours, encodings, folders, no home."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.processes import environment

OWN = """
from simulator.study.library import load_scenario


def mine():
    return load_scenario("contention:staging").variant(title="Twice × as much, für 2 µs")
"""
ELSEWHERE = {
    "narrow, no colour": {"COLUMNS": "60", "NO_COLOR": "1", "TERM": "dumb"},
    "wide, in colour": {"COLUMNS": "200", "FORCE_COLOR": "1", "TERM": "xterm-256color"},
    "plain C, no home": {"LC_ALL": "C", "HOME": "/nonexistent"},
    "ASCII": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "Latin": {"PYTHONIOENCODING": "latin-1"},
}


@pytest.fixture(autouse=True)
def _own_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")


def words(folder: Path, **changes: str) -> list[str]:
    """What the command prints of the file in this folder, word by word, without colours; it prints no complaint."""
    done = subprocess.run([sys.executable, "-m", "simulator", "show", "mine.py:mine"], cwd=folder,
                          env=environment(**changes), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return re.sub(r"\x1b\[[\d;]*m", "", done.stdout.decode("utf-8")).split()


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What it prints here."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "mine.py").write_text(OWN, encoding="utf-8")
    said = words(folder)
    assert "×" in said
    return said


@pytest.mark.parametrize("where", ELSEWHERE)
def test_it_says_the_same_elsewhere(usual: list[str], tmp_path: Path, where: str) -> None:
    assert words(tmp_path, **ELSEWHERE[where]) == usual


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_it_says_the_same_without_an_input_in_a_folder_that_cannot_be_written(usual: list[str], tmp_path: Path) -> None:
    line = f"'{sys.executable}' -m simulator show mine.py:mine <&-"
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment(HOME=str(tmp_path)), capture_output=True,
                              check=True)
    finally:
        tmp_path.chmod(stat.S_IRWXU)
    assert done.stdout.decode("utf-8").split() == usual
