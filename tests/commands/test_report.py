"""`braid report`: one file from folders and scenarios, never over what is not its own, every mistake one message."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.commands import report as command
from simulator.commands.output import OutputFolder, write_result
from simulator.errors import InputError
from simulator.serving.files import write_files
from simulator.serving.outcome import outcome
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from tests.conftest import Outcome
from tests.serving.hand import together

Braid = Callable[..., Outcome]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/a, runs/b, service: folders as `run --out` and `serve --out` write them."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "runs").mkdir()
    result = simulate(load_scenario("contention:staging"))
    for name in "ab":
        write_result(result, OutputFolder(folder / "runs" / name))
    (folder / "service").mkdir()
    write_files(outcome(together()), folder / "service", {"service": "hand:made", "title": "by hand"})
    return folder


@pytest.fixture(autouse=True)
def plotly(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Not what draws, which takes a while to read and to pack; returns what would have given it."""
    given = command.plotly_script
    monkeypatch.setattr(command, "plotly_script", lambda: "/* plotly */")
    return given


def test_a_folder_gets_its_page(braid: Braid, kept: Path) -> None:
    done = braid("report", kept / "runs" / "a")
    assert (done.code, done.err) == (0, "")
    page = kept / "runs" / "a" / "report.html"
    assert done.out == f"wrote {page}\n"
    text = page.read_text(encoding="utf-8")
    assert "contention:staging" in text
    assert "compute_<wbr>stretch" in text
    assert braid("report", kept / "runs" / "a").code == 0, "a page is written again"


def test_a_scenario_is_simulated(braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = braid("report", "contention:staging", "--seed", "3")
    assert done.out == "wrote contention-staging.html\n"
    assert "seed 3" in (tmp_path / "contention-staging.html").read_text(encoding="utf-8")


def test_two_runs_are_set_against_each_other_and_more_are_a_sweep(braid: Braid, kept: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert braid("report", kept / "runs", "--out", page).code == 0
    assert "B - A" in page.read_text(encoding="utf-8")
    assert braid("report", kept / "runs", kept / "runs" / "a", "--out", page).code == 0
    assert "3 scenarios side by side" in page.read_text(encoding="utf-8")


def test_services_have_a_page_and_a_curve(braid: Braid, kept: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert braid("report", kept / "service", "--out", page).code == 0
    text = page.read_text(encoding="utf-8")
    counted = "4 requests: 2 done, 1 refused, 1 unfinished"
    for said in ("hand:made: by hand", counted, "time_<wbr>to_<wbr>first", "KV cache"):
        assert said in text
    assert braid("report", kept / "service", kept / "service", "--out", page).code == 0
    assert "Pareto front" in page.read_text(encoding="utf-8")


def test_a_file_of_another_kind_is_kept_unless_forced(braid: Braid, kept: Path, tmp_path: Path) -> None:
    page = tmp_path / "mine.html"
    page.write_text("mine")
    done = braid("report", kept / "runs" / "a", "--out", page)
    assert done.is_one_clear_message(2), done
    assert "--force" in done.err
    assert page.read_text() == "mine"
    assert braid("report", kept / "runs" / "a", "--out", page, "--force").code == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_open_shows_the_page(braid: Braid, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    assert braid("report", kept / "runs" / "b", "--out", tmp_path / "a page.html", "--open").code == 0
    assert shown == [(tmp_path / "a page.html").as_uri()]


@pytest.mark.parametrize(("arguments", "said"), [
    (["nowhere/at-all"], "there is no folder 'nowhere/at-all'"), (["nosuch:scenario"], "nosuch"),
    (["{kept}"], "holds no result"), (["{kept}/runs/a", "{kept}/service"], "a page is of the one or the other"),
    (["{kept}/runs/a", "--seed", "1"], "are of a scenario, which is simulated"),
    (["{kept}/service", "--seed", "9"], "is of a service"), (["{kept}/runs/a", "--out", "{kept}"], "is a folder"),
    (["{kept}/runs/a", "--out", "{kept}/no/page.html"], "does not exist"), (["{kept}/broken"], "run it again")])
def test_every_mistake_is_one_message(braid: Braid, kept: Path, tmp_path: Path, arguments: list[str],
                                      said: str) -> None:  # fmt: skip
    copy = tmp_path / "kept"
    shutil.copytree(kept, copy)
    shutil.copytree(kept / "service", copy / "broken")
    (copy / "broken" / "profile_export_aiperf.json").write_text("{}")
    if arguments == ["{kept}"]:
        for name in ("service", "broken"):
            shutil.rmtree(copy / name)
    done = braid("report", *(one.format(kept=copy) for one in arguments))
    assert done.is_one_clear_message(2), done
    assert said in done.err


def test_without_plotly_it_says_what_to_install(plotly: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.offline", raising=False)
    with pytest.raises(InputError, match=r"pip install '\.\[report\]'"):
        plotly()
