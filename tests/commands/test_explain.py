"""`braid explain`: the same of a scenario and of its folder; what is asked about; what cannot be answered says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.commands.output import OutputFolder, write_result
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from tests.conftest import Outcome

Braid = Callable[..., Outcome]
MICROBATCH = "a3_prefill:microbatch"
SMALL = ("--set", "model.shapes.layers=5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five layers, as `run --out` writes it."""
    result = simulate(load_scenario(MICROBATCH).replace({"model.shapes.layers": "5"}))
    path = tmp_path_factory.mktemp("runs") / "run"
    write_result(result, OutputFolder(path))
    return path


def text(done: Outcome) -> str:
    """What was printed, on one line."""
    assert done.code == 0, done.err
    return " ".join(done.out.split())


def test_a_folder_and_its_scenario_are_explained_alike(braid: Braid, tmp_path: Path) -> None:
    assert braid("run", MICROBATCH, *SMALL, "--out", tmp_path / "run").code == 0
    kept, again = braid("explain", tmp_path / "run", "--json"), braid("explain", MICROBATCH, *SMALL, "--json")
    assert kept.json == again.json
    assert kept.json["makespan_ps"] == sum(part["ps"] for part in kept.json["critical_path"])
    refused = braid("explain", tmp_path / "run", *SMALL)
    assert refused.is_one_clear_message(2), refused
    assert "are of a scenario, which is simulated" in refused.err


def test_words_say_what_bounds_what_hides_and_what_waits(braid: Braid, folder: Path) -> None:
    said = text(braid("explain", folder))
    assert "Its critical path runs over rank 0:" in said
    assert "combine.tokens (A) is at work for" in said
    assert "of it hidden under experts (B)" in said
    assert "dispatch (A) waits for init_routing (A) for" in said
    assert "The number that matters most is chip." in said
    assert "where it hides, and why the rest does not" in said


def test_a_focus_leaves_the_rest_out(braid: Braid, folder: Path) -> None:
    said = text(braid("explain", folder, "combine", "--micro-batch", "B"))
    assert "combine.tokens (B)" in said
    assert "combine.tokens (A)" not in said
    assert "parameters that matter most" not in said
    by_number = braid("explain", folder, "combine", "--micro-batch", "1")
    assert text(by_number) == said


def test_a_rank_that_another_one_stands_for_says_so_and_each_wait_is_told(braid: Braid, folder: Path) -> None:
    said = text(braid("explain", folder, "--rank", "7", "--layer", "4"))
    assert "Rank 7 does the same as rank 0, which was simulated for it." in said
    assert "Rank 0: dispatch.counts (A) of layer 4 on stream comm waits for init_routing (A), " not in said
    assert "Rank 0: combine.tokens (A) of layer 4 on stream comm waits for experts." in said


def test_a_metric_is_said_with_its_meaning(braid: Braid, folder: Path) -> None:
    said = text(braid("explain", folder, "block_combine_ms"))
    assert "block_combine_ms is " in said
    assert "combine.tokens (B)" in said
    assert "dispatch.tokens" not in said


@pytest.mark.parametrize(("words", "right"), [
    (("comb",), "has no metric, block, kind or task 'comb'; the nearest are combine"),
    (("--rank", "32"), "no rank 32: a3_prefill:microbatch has ranks 0 to 31"),
    (("--layer", "99"), "has no task of layer 99"),
    (("--micro-batch", "C"), "has no task of micro-batch C"),
    (("--micro-batch", "AB"), "--micro-batch AB: a letter, as A, or a number, as 0")])
def test_what_is_not_there_is_refused(braid: Braid, folder: Path, words: tuple[str, ...], right: str) -> None:
    done = braid("explain", folder, *words)
    assert done.is_one_clear_message(2), done
    assert right in done.err


def test_a_folder_that_is_no_run_says_what_writes_one(braid: Braid, tmp_path: Path) -> None:
    done = braid("explain", tmp_path)
    assert done.is_one_clear_message(2), done
    assert "has no result.json: `braid run SCENARIO --out FOLDER` writes such a folder" in done.err
