"""Fixtures that several tests share."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Text in tests is as wide and as plain as in a file, whatever the terminal or the runner of the tests says. Taken away
# before anything is imported: rich-click reads some of these only then.
for _name in ("COLUMNS", "LINES", "TERMINAL_WIDTH", "TERM", "FORCE_COLOR", "PY_COLORS", "NO_COLOR", "GITHUB_ACTIONS",
              "TTY_COMPATIBLE", "TTY_INTERACTIVE", "RICH_CLICK_THEME", "PYTHONIOENCODING", "BRAID_DEBUG"):  # fmt: skip
    os.environ.pop(_name, None)
gc.set_threshold(50_000, 20, 20)  # collecting thousands of tests makes much that stays
os.environ["BRAID_CACHE"] = "off"  # steps of services are not kept where a user keeps them


@dataclass(frozen=True)
class Outcome:
    """What a command line left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def is_one_clear_message(self, code: int) -> bool:
        """The exit code, nothing on stdout, and one message without a traceback on stderr."""
        lines = self.err.splitlines()
        alone = len([line for line in lines if line.startswith("Error: ")]) == 1 and lines[0].startswith("Error: ")
        return self.code == code and not self.out and alone and "Traceback" not in self.err


def pytest_addoption(parser: pytest.Parser) -> None:
    """--repin writes the files of tests/golden anew."""
    parser.addoption("--repin", action="store_true", help="write the golden timelines anew; say why in the commit")


@pytest.fixture
def braid(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs one command line in this process: braid("run", "a3_prefill:dp") -> Outcome."""
    from simulator.commands.main import main

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Outcome(int(end.value.code or 0), printed.out, printed.err)

    return run
