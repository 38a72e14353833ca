"""`braid validate --points` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.commands.results import _show_ranks
from simulator.serving.point_errors import PointRow
from tests.conftest import Outcome

Braid = Callable[..., Outcome]
POINT = {"id": "a", "model": "llama_3_1_8b", "gpu_key": "H100", "n_gpus": 1, "fw_key": "vllm", "layout": {"tp": 1},
         "isl": 128, "osl": 64, "concurrency": 2, "tpot_ms": {"mean": 6.0}, "ttft_ms": {"p50": 15.0}}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three points, of which one cannot be expressed."""
    points = [POINT, POINT | {"id": "b", "concurrency": 4}, POINT | {"id": "c", "speculative": "mtp"}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, points)))
    return tmp_path / "mine.jsonl"


def test_json_is_a_row_for_every_metric(braid: Braid, file: Path) -> None:
    rows = braid("validate", "--points", file, "--json").json
    assert [(row["id"], row["metric"]) for row in rows] == [(id_, metric) for id_ in "abc"
                                                            for metric in ("tpot_ms", "ttft_ms")]
    assert all(set(row) == {"id", "metric", "value", "simulated", "error"} for row in rows[:4])
    assert all(row["error"] == pytest.approx(row["simulated"] / row["value"] - 1) for row in rows[:4])
    assert {row["reason"] for row in rows[4:]} == {"speculative: mtp"}


def test_errors_by_family_and_what_is_not_simulated(braid: Braid, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    done = braid("validate", "--points", file)
    assert done.code == 0, done.err
    assert "not simulated: 1 point, as c: speculative: mtp" in done.out
    assert [line.split()[:3] for line in done.out.splitlines() if line.startswith(("tpot_ms", "ttft_ms"))] == [
        [metric, *group.split()] for metric in ("tpot_ms", "ttft_ms")
        for group in ("all 2", "H100 2", "llama_3_1_8b 2", "vllm 2", "llama_3_1_8b H100")]
    assert not (file.parent / "results").exists()


def test_the_order_of_layouts_beside_that_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    points = [POINT | {"id": str(tp), "layout": {"tp": tp}, "n_gpus": 8} for tp in (1, 2, 4, 8)]
    rows = [PointRow(str(tp), ("x", "H100", "vllm"), "output_tok_s_per_gpu", tp, tp + 1) for tp in (1, 2, 4, 8)]
    _show_ranks(points, rows, {str(tp): {"formula": {"tok_s_gpu": -tp}} for tp in (1, 2, 4, 8)})
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("layout, stack  ")]
    assert [line[2:] for line in lines] == [
        ["all", "1", "4", "100%", "1.00", "100%"], ["x", "H100", "1", "4", "100%", "1.00", "100%"],
        ["all", "1", "4", "100%", "1.00", "100%", "0%", "-1.00", "12%"],
        ["x", "H100", "1", "4", "100%", "1.00", "100%", "0%", "-1.00", "12%"]]


def test_where_chooses_points(braid: Braid, file: Path) -> None:
    rows = braid("validate", "--points", file, "--where", "concurrency=1..2,speculative=mtp", "--json").json
    assert {row["id"] for row in rows} == {"c"}


@pytest.mark.parametrize(("where", "said"), [
    ("concurency=1", "--where concurency: no point of "),
    ("concurrency", "--where concurrency: write FIELD=VALUE"),
])  # fmt: skip
def test_a_filter_that_is_wrong(braid: Braid, file: Path, where: str, said: str) -> None:
    done = braid("validate", "--points", file, "--where", where)
    assert done.is_one_clear_message(2), done
    assert said in done.err
