"""Whoever reads a command's output may close it: the command ends quietly, with the exit code of shells for that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SMALL = ("--set", "model.shapes.layers=4", "--set", "batch.requests=32", "--set", "cards=1",
         "--set", "layout.expert_parallel=2")
COMMANDS = {
    "help": ("--help",),
    "help of a command": ("run", "--help"),
    "list": ("list",),
    "show": ("show", "a3_prefill:dp"),
    "run": ("run", "a3_prefill:dp", *SMALL),
    "json": ("run", "a3_prefill:dp", *SMALL, "--json"),
}


def read_by_nobody(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose output nobody reads."""
    running = subprocess.Popen([sys.executable, "-m", "simulator", *arguments], cwd=ROOT, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    running.stdout.close()
    assert running.stderr is not None
    said = running.stderr.read()
    running.stderr.close()
    return running.wait(timeout=60), said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_pipe_ends_quietly(command: str) -> None:
    assert read_by_nobody(*COMMANDS[command]) == (141, "")


def test_files_are_written_whoever_reads(tmp_path: Path) -> None:
    both = "a3_prefill:dp", "a3_prefill:dp"
    assert read_by_nobody("compare", *both, *SMALL, "--out", str(tmp_path / "out")) == (141, "")
    assert [len(list(folder.iterdir())) for folder in (tmp_path / "out").iterdir()] == [3, 3]
