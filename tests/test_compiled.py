"""Modules that run compiled: only where they were compiled from the present sources, and with the same results."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import simulator
from simulator.compiled import DIGEST, digest_of, folder_name, use_compiled
from simulator.paths import own_location

ROOT = Path(__file__).resolve().parents[1]
MODULE = "tool/part/hot.py"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one module that was compiled just now."""
    monkeypatch.delenv("BRAID_PLAIN", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    source = tmp_path / MODULE
    extension = tmp_path / "tool" / folder_name() / f"tool/part/hot{EXTENSION_SUFFIXES[0]}"
    for file in (source, extension):
        file.parent.mkdir(parents=True)
        file.write_text("x = 1")
    (tmp_path / "tool" / folder_name() / DIGEST).write_text(f"{digest_of(tmp_path, [MODULE])}\n{MODULE}\n")
    return tmp_path / "tool"


def test_a_module_compiled_from_the_present_source_is_found(package: Path) -> None:
    assert use_compiled(package)
    spec = sys.meta_path[0].find_spec("tool.part.hot", None)
    assert spec is not None
    assert spec.origin == str(package / folder_name() / f"tool/part/hot{EXTENSION_SUFFIXES[0]}")
    assert sys.meta_path[0].find_spec("tool.part.other", None) is None


def test_an_edited_source_runs_as_python(package: Path) -> None:
    (package.parent / MODULE).write_text("x = 2")
    before = list(sys.meta_path)
    assert not use_compiled(package)
    assert sys.meta_path == before


def test_a_source_that_is_gone_is_no_error(package: Path) -> None:
    (package.parent / MODULE).unlink()
    assert not use_compiled(package)


def test_braid_plain_has_all_run_as_python(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_PLAIN", "1")
    assert not use_compiled(package)


def test_without_compiled_modules_all_run_as_python(package: Path) -> None:
    (package / folder_name() / DIGEST).unlink()
    assert not use_compiled(package)


def test_every_module_to_be_compiled_exists() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        targets = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]
    modules = targets["wheel"]["hooks"]["custom"]["modules"]
    assert [module for module in modules if not (ROOT / module).is_file()] == []


def test_an_empty_note_has_all_run_as_python(package: Path) -> None:
    (package / folder_name() / DIGEST).write_text("")
    assert not use_compiled(package)


def test_a_compiled_frame_is_not_the_users_wherever_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.physics.flow import Capacity

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="rate -1") as caught:
        Capacity("narrow", -1.0)
    assert own_location(caught.value) == f"{__file__}:{caught.traceback[0].lineno + 1}"


@pytest.mark.skipif(not simulator.COMPILED, reason="nothing is compiled here")
@pytest.mark.parametrize("arguments", [("contention:staging",),
                                       ("trt_min_latency:gtc", "--set", "model.shapes.layers=8")], ids=" ".join)
def test_results_are_the_same_to_the_last_digit(arguments: tuple[str, ...]) -> None:
    results = [
        subprocess.run(
            [sys.executable, "-m", "simulator", "run", *arguments, "--json"],
            env=os.environ | more, cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout
        for more in ({}, {"BRAID_PLAIN": "1"})
    ]  # fmt: skip
    assert results[0] == results[1]
