"""`braid whatif`: its tables, the same numbers as JSON, and what it keeps and refuses."""

from __future__ import annotations

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
    first, kept, fresh = braid(*asked), braid(*asked), braid(*asked, "--fresh")
    assert first.json == kept.json == fresh.json
    assert "kept from before: 14" in kept.err
    assert not fresh.err


def test_knobs_and_a_ladder_of_which_one_cannot_run(braid: Braid) -> None:
    """Four layers, so that it is quick."""
    out = braid("whatif", "trt_min_latency:base", "--only", "knobs", "--set", "model.shapes.layers=4", "--json").json
    knobs, ladder = out["knobs"]["waterfalls"]
    assert [step["switch"] for step in knobs["steps"]] == ["cuda_graph"]
    assert ladder["start"] == out["value"]
    assert ladder["steps"][-1]["value"] == ladder["end"]
    assert ladder["remainder"] == pytest.approx(ladder["end"] - ladder["start"] - ladder["alone"])
    (refused,) = [row for row in out["knobs"]["off"] if row["reason"]]
    assert (refused["knob"], refused["value"]) == ("smart_router", None)


def test_ctrl_c_says_that_the_same_command_goes_on(braid: Braid, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_CACHE", str(tmp_path))
    real, asked = whatif.simulate, []

    def interrupted(*given: object, **how: object) -> object:
        asked.append(given)
        if len(asked) > 5:
            raise KeyboardInterrupt
        return real(*given, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(whatif, "simulate", interrupted)
    stopped = braid("whatif", SMALL, "--only", "free")
    assert (stopped.code, stopped.out) == (130, "")
    assert "the same command goes on" in stopped.err
    monkeypatch.setattr(whatif, "simulate", real)
    again = braid("whatif", SMALL, "--only", "free")
    assert again.code == 0
    assert "kept from before: 4; left to run: 10" in again.err


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
