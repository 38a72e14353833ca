"""The README is true: every command in it runs, every file in it works, its accuracy table is that of the validation.

Its `sh` blocks (the two commands) are run by CI as they stand; its other blocks are run, or are files that are, here,
large scenarios with five layers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Outcome

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line.removeprefix("$ ") for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]
SIMULATES = ("run", "explain", "compare", "report", "sweep", "ladder")
FILES = {re.match(r"# (\S+)\n", text)[1]: text for kind, text in BLOCKS if kind in ("python", "toml")}  # type: ignore[index]
LONG, FEWER_LAYERS = ("a3_prefill:m", "a2_decode", "cm384_decode", "trt_min"), ("--set", "model.shapes.layers=5")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the reader has it: the clone's own folders, and the files that the README has them write."""
    for folder in ("topologies", "scenarios", "workloads"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "results").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    assert README.count("\n") <= 200
    for link in re.findall(r"\]\((?!https:)([^)]+)\)", README):
        assert (ROOT / link).is_file(), link


def test_there_are_two_commands_and_ci_takes_them_from_here() -> None:
    commands = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
    assert len(commands) == 2
    assert all(command.startswith("python3 -m venv .venv && .venv/bin/pip install") for command in commands)
    assert "README.md" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(braid: Callable[..., Outcome], desk: Path, command: str) -> None:
    name, *arguments = shlex.split(command)
    assert name == "braid"
    few = FEWER_LAYERS if any(one.startswith(LONG) for one in arguments) and arguments[0] in SIMULATES else ()
    done = braid(*arguments, *few)
    assert done.code == 0, done.err
    assert done.out


def test_every_kind_of_block_is_checked() -> None:
    assert {kind for kind, _ in BLOCKS} <= {"sh", "console", "python", "toml", "text"}


def test_the_accuracy_table_is_that_of_the_validation() -> None:
    report = (ROOT / "results" / "validation.md").read_text(encoding="utf-8").partition("\n## ")[0]
    wanted = "\n".join(line for line in report.splitlines() if line.startswith("|"))
    assert wanted
    assert wanted in README, f"the README's accuracy table is not that of results/validation.md, which is\n{wanted}"
