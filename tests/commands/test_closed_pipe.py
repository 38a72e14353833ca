"""Whoever reads a command's output may close it: the command ends quietly, with the exit code of shells for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.processes import HANGS_S, started
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


REPORTS = {
    "validate": ("validation.md", "from simulator.study import library\n"
                 "library.scenario_names = lambda: [('contention:staging', '')]\n"
                 "from simulator.serving import validate\n"
                 "validate.service_names = list\n"),
    "bench": ("benchmarks.md", "from simulator.bench import suite\n"
              "suite.BENCHMARKS = [one for one in suite.BENCHMARKS if one.name == 'cold_help']\n"
              "suite.growth = lambda: []\n"),
}


def read_by_nobody(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose output nobody reads."""
    return unread(ROOT, "-m", "simulator", *arguments)


def unread(folder: Path, *words: str) -> tuple[int, str]:
    """Those of a Python whose output nobody reads."""
    with started(folder, *words) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        return running.wait(HANGS_S), running.stderr.read()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_pipe_ends_quietly(command: str) -> None:
    assert read_by_nobody(*COMMANDS[command]) == (141, "")


def test_files_are_written_whoever_reads(tmp_path: Path) -> None:
    both = "a3_prefill:dp", "a3_prefill:dp"
    assert read_by_nobody("compare", *both, *SMALL, "--out", str(tmp_path / "out")) == (141, "")
    assert [len(list(folder.iterdir())) for folder in (tmp_path / "out").iterdir()] == [3, 3]


@pytest.mark.parametrize("command", REPORTS)
def test_reports_are_written_whoever_reads(tmp_path: Path, command: str) -> None:
    report, few = REPORTS[command]
    code, _ = unread(tmp_path, "-c", f"{few}from simulator.commands.main import main\nmain(['{command}'])")
    assert code == 141
    assert (tmp_path / "results" / report).read_text(encoding="utf-8").startswith("# ")
