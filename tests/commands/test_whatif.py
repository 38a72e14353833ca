"""`braid whatif`: its tables, the same numbers as JSON, and what it keeps and refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.study import whatif
from tests.conftest import Outcome

Braid = Callable[..., Outcome]
SMALL = "contention:staging"


def test_all_parts_of_a_small_scenario_as_tables_and_the_same_numbers_as_json(
        braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_CACHE", str(tmp_path))
    told = braid("whatif", SMALL, "--draws", 4, "--json")
    assert told.code == 0
    assert not told.err
    made = told.json
    assert list(made) == ["scenario", "changes", "seed", "metric", "value", "makespan_ms", "free", "faster",
                          "elasticity", "knobs", "band"]
    assert (made["metric"], made["value"]) == ("latency_ms", pytest.approx(made["makespan_ms"]))
    shown = braid("whatif", SMALL, "--draws", 4)
    assert shown.code == 0
    assert "left to run: 0 (--fresh runs all)" in shown.err, "what --json ran is kept"
    lines: dict[str, list[str]] = {}
    for line in shown.out.splitlines():
        lines.setdefault(line.partition("   ")[0].strip(), line.split())
    for row in (*made["free"], *made["faster"]):
        if max(row["promised"], abs(row["saved"])) < 0.0005:
            assert row["what"].replace(" ", "") in "".join(shown.out.split())
            continue
        cells = lines[row["what"]]
        expected = [f"{row['share']:.1%}", f"{row['promised']:.1%}", f"{row['saved']:.1%}", f"{row['speed_up']:.3f}"]
        assert cells[len(row["what"].split()) :][:4] == expected
        assert row["remark"] or row["saved"] <= row["share"] + 1e-9
    (one,) = made["elasticity"]
    assert lines[one["parameter"]][-1] == f"{one['elasticity']:+.3f}"
    (spread,) = made["band"]["metrics"]
    assert lines["latency_ms"][2:5] == [f"{spread[name]:.4g}" for name in ("p10", "p50", "p90")]
    assert made["knobs"] == {"waterfalls": [], "off": []}
    assert "no knobs that are on or off" in shown.out


def test_fresh_runs_what_is_kept_and_gives_the_same(braid: Braid, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_CACHE", str(tmp_path))
    asked = ("whatif", SMALL, "--only", "free", "--json")
    first, fresh = braid(*asked), braid(*asked, "--fresh")
    assert first.json == fresh.json
    assert not fresh.err


MINE = """
from simulator.study.scenario import LadderStep, Scenario
from tests.study.whatif_scenarios import scenario, switched

def mine() -> Scenario:
    steps = (LadderStep(title="slower", changes={"knobs.slower": "true"}),
             LadderStep(title="wrong", changes={"knobs.slower": "perhaps"}))
    return scenario(switched, ladder=steps[:1])
"""


def test_knobs_and_the_ladder_of_a_file_of_ones_own_which_is_kept_until_it_changes(
        braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_CACHE", str(tmp_path / "cache"))
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    asked = ("whatif", f"{mine}:mine", "--only", "knobs")
    made = braid(*asked, "--json").json
    knobs, ladder = made["knobs"]["waterfalls"]
    assert [step["switch"] for step in knobs["steps"]] == ["beside", "left_out"]
    assert (knobs["start"], knobs["end"], knobs["remainder"]) == (0.122, 0.101, pytest.approx(0.021))
    assert (ladder["start"], ladder["end"], ladder["remainder"]) == (0.101, 0.132, 0.0)
    shown = braid(*asked)
    assert "left to run: 0" in shown.err
    assert "+0.02100" in next(line for line in shown.out.splitlines() if line.startswith("remainder"))
    mine.write_text(MINE.replace("steps[:1]", "steps"))
    monkeypatch.delitem(sys.modules, "braid_scenarios.mine")
    refused = braid(*asked)
    assert (refused.code, refused.err) == (0, ""), "nothing is kept of another file"
    assert "did not run: --set knobs.slower: got 'perhaps'" in refused.out


DEEP = """
from pathlib import Path
from simulator.study.scenario import Scenario
from tests.replay.small import passes_mb
from tests.study.whatif_scenarios import scenario
from braid_test_parts.sizes import SIZE_MB

def program(npu, case) -> None:
    npu.launch(passes_mb(SIZE_MB), "it")
    npu.launch(passes_mb(int((Path(__file__).parent / "size.txt").read_text())), "that")

def mine() -> Scenario:
    return scenario(program)
"""


def test_nothing_is_kept_of_a_program_that_changed_in_a_package_or_a_data_file(
        braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    package = tmp_path / "own" / "braid_test_parts"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    mine = tmp_path / "own" / "deep.py"
    mine.write_text(DEEP)

    def values(package_mb: int, file_mb: int) -> tuple[dict[str, float], str]:
        (package / "sizes.py").write_text(f"SIZE_MB = {package_mb}  # {'x' * package_mb}")
        (mine.parent / "size.txt").write_text(str(file_mb))
        for name in [one for one in sys.modules if one.startswith(("braid_test_parts", "braid_scenarios.deep"))]:
            monkeypatch.delitem(sys.modules, name)
        made = braid("whatif", f"{mine}:mine", "--only", "free", "--json")
        return {row["what"]: row["value"] for row in made.json["free"] if row["how"] == "free"}, made.err

    for package_mb, file_mb in ((2, 4), (3, 4), (3, 5)):
        found, said = values(package_mb, file_mb)
        assert not said, "nothing is known of what has changed"
        assert found["it free"] == pytest.approx(0.001 + 0.01 * file_mb)
        assert found["that free"] == pytest.approx(0.001 + 0.01 * package_mb)
    assert "left to run: 0" in values(2, 4)[1], "what was so before is known still"


def test_the_text_says_what_was_run_and_what_has_no_effect(braid: Braid) -> None:
    known, other = "batch.gemms=1", "machine.host.launch_graph=1 us"
    shown = braid("whatif", SMALL, "--only", "knobs", "--seed", 3, "--set", known, "--set", other)
    title = braid("run", SMALL).out.splitlines()[0].partition(": ")[2]
    assert shown.out.splitlines()[:4] == [f"{SMALL}: {title}", "seed 3", "changed: batch.gemms = 1",
                                          "changed: machine.host.launch_graph = 1 us"]
    assert shown.err == f"warning: machine.host.launch_graph has no effect on {SMALL}: nothing in this run reads it\n"


@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_says_that_the_same_command_goes_on_if_it_does(braid: Braid, tmp_path: Path, kept: bool,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BRAID_CACHE", str(tmp_path / "new" if kept else tmp_path / "file"))
    real, asked = whatif.simulate, []

    def interrupted(*given: object, **how: object) -> object:
        asked.append(given)
        if len(asked) > 5:
            raise KeyboardInterrupt
        return real(*given, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(whatif, "simulate", interrupted)
    stopped = braid("whatif", SMALL, "--only", "free")
    assert (stopped.code, stopped.out) == (130, "")
    assert ("the same command goes on" in stopped.err) == kept
    assert stopped.err.count("what-ifs are not kept: cannot write") == (not kept)
    monkeypatch.setattr(whatif, "simulate", real)
    again = braid("whatif", SMALL, "--only", "free")
    assert again.code == 0
    assert ("kept from before: 4; left to run: 10" in again.err) == kept


def test_two_processes_give_what_one_gives(braid: Braid) -> None:
    asked = ("whatif", SMALL, "--only", "band", "--draws", 2, "--json", "--set", "batch.gemms=2")
    assert braid(*asked, "--jobs", 2).json == braid(*asked).json


@pytest.mark.parametrize(("words", "right"), [
    (("--only", "fre"), "did you mean 'free'"), (("--only", ","), "parts are free,faster"),
    (("--metric", "latency"), "has no metric latency"), (("--set", "free=gem"), "did you mean 'gemm'")])  # fmt: skip
def test_what_cannot_be_is_refused_with_what_is_right(braid: Braid, words: tuple[str, str], right: str) -> None:
    refused = braid("whatif", SMALL, *words)
    assert refused.is_one_clear_message(2)
    assert right in refused.err


def test_any_run_can_have_a_block_for_nothing(braid: Braid) -> None:
    made = braid("run", SMALL, "--set", "free=all_gather", "--json").json
    assert made["changes"] == {"free": "all_gather"}
    assert made["metrics"]["all_gather_ms"] == made["metrics"]["communication_ms"] == 0.0
    assert made["metrics"]["compute_stretch"] == pytest.approx(1.0)
