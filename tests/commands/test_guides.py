"""The guides under docs/ are true: their commands run in order, their files work, what they quote is printed."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs.pictures import FOLDER, PICTURES, arguments
from simulator.observe.events import FIRST_PID
from tests.conftest import ROOT, Outcome

PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Its kind, the name of a file that says none itself, its text."""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the reader has it, and where steps of services are kept."""
    for folder in ("topologies", "scenarios", "workloads", "services"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRAID_CACHE", str(tmp_path / "kept_steps"))
    return tmp_path


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Kind, name of the file that it is (or empty), text."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    first = re.compile(r"# (\S+\.\w+)\n")
    return [(kind, name or (said[1] if kind in ("python", "toml") and (said := first.match(text)) else ""), text)
            for kind, name, text in found]


def in_one_line(text: str) -> str:
    """Wherever lines were broken and columns begin."""
    return " ".join(text.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_it_is_short_and_its_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("\n") <= 120
    assert {kind for kind, _, _ in blocks(page)} <= {"console", "text", "python", "toml", "json", "bash"}
    for link in re.findall(r"\]\((?!https:)([^)]+)\)", text):
        assert (page.parent / link).is_file(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_commands_run_and_print_what_it_quotes(page: Path, braid: Callable[..., Outcome], desk: Path) -> None:
    for _, name, text in blocks(page):
        if name:
            (desk / name).parent.mkdir(exist_ok=True)
            (desk / name).write_text(text, encoding="utf-8")
    printed = ""
    for kind, _, text in blocks(page):
        for line in text.splitlines():
            if kind == "console":
                command, *arguments = shlex.split(line.removeprefix("$ "))
                assert command == "braid"
                done = braid(*arguments)
                assert done.code == 0, f"{line}\n{done.err}"
                printed = in_one_line(printed + done.out)
            elif kind == "text":
                assert in_one_line(line) in printed, line


def test_pictures_are_those_of_the_page_and_small() -> None:
    text = (ROOT / "docs" / "read_a_timeline.md").read_text(encoding="utf-8")
    assert re.findall(r"\(pictures/(\w+)\.png\)", text) == [one.name for one in PICTURES]
    assert sorted(FOLDER.iterdir()) == sorted(FOLDER / f"{one.name}.png" for one in PICTURES)
    for one in PICTURES:
        path = FOLDER / f"{one.name}.png"
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < 200_000


def test_pictures_show_what_the_page_says(braid: Callable[..., Outcome], desk: Path) -> None:
    text = (ROOT / "docs" / "read_a_timeline.md").read_text(encoding="utf-8")
    events: dict[str, list[dict[str, Any]]] = {}
    for one in PICTURES:
        if one.scenario not in events:
            assert braid(*arguments(one, desk / one.name)).code == 0
            with gzip.open(desk / one.name / "trace.json.gz") as file:
                events[one.scenario] = json.load(file)["traceEvents"]
        there = [event for event in events[one.scenario] if event["ph"] in "XC"]
        low, high = (1e3 * at for at in one.window_ms)
        names = {event["args"]["name"] for event in events[one.scenario] if event["name"] == "thread_name"}
        names |= {event["name"] for event in there if event["ph"] == "C"}
        assert all(any(name.startswith(lane) for name in names) for lane in one.lanes)
        if one.selected:
            rank, name = one.selected
            chosen = next(event for event in there if event["pid"] == FIRST_PID + rank and low <= event["ts"]
                          and event["name"].startswith(name))
            assert chosen["ts"] + chosen["dur"] <= high
        if one.told:
            assert all(f"`{key}`" in text and str(chosen["args"][key]) in text for key in ("who", "ended_by"))
            assert f"{chosen['args']['since_us'] / 1e3:.1f}" in in_one_line(text)
        if one.pointed:
            counter, at_ms = one.pointed
            value = [event["args"] for event in there if event["ph"] == "C" and event["name"].startswith(counter)
                     and event["ts"] <= 1e3 * at_ms][-1]["GB/s"]
            assert f"{value:,.1f} of 3,610 GB/s" in text
