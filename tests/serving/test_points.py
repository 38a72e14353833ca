"""Measured serving points: the closed loop by hand, filters, and what cannot be expressed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.study import points
from simulator.study.points import NotExpressible, PointRow, compare, predicted, read_points, reasons, summary
from simulator.study.scenario import Scenario
from simulator.study.step import StepWords
from tests.conftest import ROOT

POINT: dict[str, Any] = {
    "id": "a", "model": "llama_3_1_8b", "gpu_key": "H100", "n_gpus": 1, "fw_key": "vllm",
    "layout": {"tp": 1, "pp": 1, "ep": 1}, "isl": 1000, "osl": 200, "concurrency": 5, "tpot_ms": {"mean": 12.0},
    "ttft_ms": {"p50": 50.0}, "output_tok_s_per_gpu": 300.0,
}  # fmt: skip
SECONDS = {"prefill": 0.040, "decode": 0.010, "mixed": 0.046}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[StepWords]:
    """What steps are asked for, where each phase takes as long as SECONDS says."""
    found: list[StepWords] = []

    def step_of(words: StepWords) -> StepWords:
        found.append(words)
        return words

    monkeypatch.setattr(points, "step_of", step_of)
    monkeypatch.setattr(points, "_seconds", lambda words: SECONDS[words.phase])
    return found


def words_of(point: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> StepWords:
    """How the first step of a point is asked for."""
    found: list[StepWords] = []

    def step_of(words: StepWords) -> Scenario:
        found.append(words)
        raise InputError("enough")

    monkeypatch.setattr(points, "step_of", step_of)
    with pytest.raises(InputError, match="enough"):
        predicted(point)
    return found[0]


# --- the closed loop --------------------------------------------------------------------------------------------------


def test_the_closed_loop_by_hand(asked: list[StepWords]) -> None:
    """Five in flight: four others end while one decodes 200 tokens, and each brings a prompt of 36 ms more."""
    found = predicted(POINT)
    token_s = 0.010 + 4 / 200 * (0.046 - 0.010)
    first_s = 0.046 + 0.010 / 2
    assert found["tpot_ms"] == pytest.approx(1e3 * token_s) == pytest.approx(10.72)
    assert found["ttft_ms"] == pytest.approx(1e3 * first_s) == pytest.approx(51.0)
    assert found["output_tok_s_per_gpu"] == pytest.approx(5 * 200 / (first_s + 199 * token_s))


def test_one_request_alone_never_waits_for_a_prompt_beside_it(asked: list[StepWords]) -> None:
    found = predicted(POINT | {"concurrency": 1})
    assert found["tpot_ms"] == pytest.approx(10.0)
    assert found["ttft_ms"] == pytest.approx(40.0 + 5.0)
    assert [words.phase for words in asked] == ["prefill", "decode"]


def test_what_each_step_works_on(asked: list[StepWords]) -> None:
    predicted(POINT)
    steps = {words.phase: words for words in asked}
    assert steps["prefill"].settings == {"batch.requests": "1", "batch.context": "1000"}
    assert steps["decode"].settings == {"batch.requests": "5", "batch.context": "1100"}, "half-way through 200"
    assert steps["mixed"].settings == {"batch.requests": "5", "batch.context": "1100", "batch.prompt": "1000"}
    assert {(words.model, words.machine, words.stack, words.mesh) for words in asked} == {
        ("llama_3_1_8b", "dgx_h100", "vllm", "tp=1,dp=1,pp=1,ep=1")}


def test_the_rate_is_that_of_all_gpus(asked: list[StepWords]) -> None:
    one, eight = (predicted(POINT | {"n_gpus": count, "layout": {"tp": count}})["output_tok_s_per_gpu"]
                  for count in (1, 8))  # fmt: skip
    assert eight == pytest.approx(one / 8)


def test_replicas_share_the_load(asked: list[StepWords]) -> None:
    one, eight = predicted(POINT), predicted(POINT | {"n_gpus": 8, "concurrency": 40})
    assert eight == pytest.approx(one)
    assert predicted(POINT | {"n_gpus": 8, "concurrency": None, "replica_concurrency": 5}) == pytest.approx(one)


def test_attention_data_parallel_groups_are_an_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    point = POINT | {"layout": {"tp": 1, "ep": 8, "attention_dp": 8}, "n_gpus": 8}
    assert words_of(point, monkeypatch).mesh == "tp=1,dp=8,pp=1,ep=8"


def test_in_steady_state_the_rate_is_little_s_law(asked: list[StepWords]) -> None:
    """Requests in flight = completions a second x how long one stays; a long output spends all of it in decode."""
    long = predicted(POINT | {"osl": 10**6})
    assert long["output_tok_s_per_gpu"] == pytest.approx(5 / (long["tpot_ms"] / 1e3), rel=1e-4)


# --- the words of a point ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "precision"), [
    ({"gemm_quant": "fp8"}, "all=fp8,experts=fp8"),
    ({"gemm_quant": "fp8_block", "moe_quant": "nvfp4"}, "all=fp8_block,experts=nvfp4"),
    ({"family": "deepseek-v3arch", "gemm_quant": "fp4"}, "all=nvfp4,attention=bf16"),
    ({"family": "deepseek-v3arch", "gemm_quant": "fp8"}, None),
    ({"family": "gpt-oss-120b", "gemm_quant": "mxfp4"}, None),
    ({"family": "qwen3-235b", "model": "Qwen/Qwen3-235B-A22B-FP8", "gemm_quant": "fp8"}, "all=fp8_block"),
    ({"family": "kimi-k2", "gemm_quant": "int4"}, "all=bf16,experts=int4"),
    ({}, None),
], ids=str)  # fmt: skip
def test_precision(changes: dict[str, str], precision: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert words_of(POINT | changes, monkeypatch).settings.get("knobs.precision") == precision


def test_a_family_stands_for_its_model_and_a_config_json_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert words_of(POINT | {"family": "llama-70b", "model": "ours"}, monkeypatch).model == "llama_3_1_70b"
    config = str(ROOT / "tests" / "data" / "configs" / "gpt_oss_20b.json")
    assert words_of(POINT | {"model": config}, monkeypatch).model == config


def test_a_config_json_gives_the_numbers_of_its_model() -> None:
    config = str(ROOT / "tests" / "data" / "configs" / "gpt_oss_20b.json")
    small = POINT | {"isl": 64, "osl": 16, "concurrency": 2}
    own, library = (predicted(small | {"model": model}) for model in (config, "gpt_oss_20b"))
    assert own == library
    assert own["tpot_ms"] > 1.0


@pytest.mark.parametrize(("changes", "reason"), [
    ({"mode": "disagg"}, "mode disagg: prefill and decode apart"),
    ({"speculative": "mtp"}, "speculative: mtp"),
    ({"concurrency": None}, "no concurrency: not a closed loop"),
    ({"isl": None}, "no isl or osl"),
    ({"gpu_key": "MI300X"}, "gpu_key MI300X: no such machine"),
    ({"model": "ours"}, "model ours: not in the library"),
    ({"layout": None}, "no layout with tp"),
    ({"layout": {"tp": 2, "pp": 2}, "n_gpus": 6}, "6 GPUs are no whole replicas of tp=2, pp=2"),
    ({"isl": "256"}, "no isl or osl"),
    ({"gemm_quant": "fp6"}, "quantisation fp6: none of fp8"),
], ids=str)  # fmt: skip
def test_what_cannot_be_expressed_has_a_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotExpressible) as refused:
        predicted(POINT | changes)
    assert str(refused.value).startswith(reason)


# --- rows, their errors and their reasons -----------------------------------------------------------------------------


def test_a_row_for_every_metric_that_was_measured(asked: list[StepWords]) -> None:
    told: list[float] = []
    other = POINT | {"id": "b", "ttft_ms": None, "tpot_ms": 10.72, "output_tok_s_per_gpu": 0}
    rows = compare([POINT, other], told.append)
    assert [(row.id, row.metric, row.value) for row in rows] == [
        ("a", "tpot_ms", 12.0), ("a", "ttft_ms", 50.0), ("a", "output_tok_s_per_gpu", 300.0), ("b", "tpot_ms", 10.72)]
    assert rows[0].error == pytest.approx(10.72 / 12.0 - 1)
    assert rows[3].error == pytest.approx(0.0)
    assert told == [0.5, 1.0]
    assert set(rows[0].as_object()) == {"id", "metric", "value", "simulated", "error"}


def test_refusals_are_named_and_counted(asked: list[StepWords]) -> None:
    wrong = POINT | {"gpu_key": "MI300X"}
    rows = compare([POINT, wrong | {"id": "b"}, wrong | {"id": "c"}, POINT | {"id": "d", "mode": "disagg"}])
    why = rows[3].reason
    assert why.startswith("gpu_key MI300X: no such machine; there are A100, H100, ")
    assert reasons(rows) == [(why, 2, "b"),
                             ("mode disagg: prefill and decode apart", 1, "d")]
    refused = [row for row in rows if row.id == "b"]
    assert [(row.simulated, row.error) for row in refused] == [(None, None)] * 3
    assert all(row.as_object()["reason"] == why for row in refused)


def test_a_point_without_a_number_and_a_file_without_points_are_named(asked: list[StepWords], tmp_path: Path) -> None:
    bare = {key: value for key, value in POINT.items() if not key.startswith(("tpot", "ttft", "output"))}
    (row,) = compare([bare])
    assert row.reason == "no number of tpot_ms, ttft_ms, output_tok_s_per_gpu was measured"
    with pytest.raises(InputError, match=r"empty\.jsonl has no points"):
        (tmp_path / "empty.jsonl").write_text("")
        read_points(tmp_path / "empty.jsonl", {})


def test_what_the_machine_refuses_is_a_reason_too() -> None:
    rows = compare([POINT | {"layout": {"tp": 3}, "n_gpus": 3}])
    assert {row.reason for row in rows} == {
        "transformer:prefill: mesh tp=3: tp=3 does not divide the 32 heads of llama_3_1_8b; 1, 2, 4, 8, 16 or 32 would"}


def test_errors_by_family() -> None:
    sizes = {"x": [0.1, -0.2, 0.3], "y": [-0.5]}
    rows = [PointRow(str(number), family, "tpot_ms", 10.0, 10.0 * (1 + error))
            for family, errors in sizes.items() for number, error in enumerate(errors)]
    rows.append(PointRow("z", "y", "tpot_ms", 10.0, None, "why"))
    found = {(metric, family): (count, pytest.approx(signed), pytest.approx(size))
             for metric, family, count, signed, size, _ in summary(rows)}
    assert found == {("tpot_ms", "all"): (4, -0.05, 0.25), ("tpot_ms", "x"): (3, 0.1, 0.2),
                     ("tpot_ms", "y"): (1, -0.5, 0.5)}


# --- files ------------------------------------------------------------------------------------------------------------


def written(folder: Path, *lines: object) -> Path:
    file = folder / "points.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return file


def test_filters_are_values_or_ranges(tmp_path: Path) -> None:
    file = written(tmp_path, *(POINT | {"id": str(count), "concurrency": count} for count in (1, 4, 16, 64)), "",
                   POINT | {"id": "h200", "gpu_key": "H200", "concurrency": 4})
    for where, ids in (({}, ["1", "4", "16", "64", "h200"]), ({"concurrency": "4..16"}, ["4", "16", "h200"]),
                       ({"concurrency": "..4", "gpu_key": "h100"}, ["1", "4"]), ({"concurrency": "16.."}, ["16", "64"]),
                       ({"gpu_key": "H200"}, ["h200"])):
        assert [point["id"] for point in read_points(file, where)] == ids


@pytest.mark.parametrize(("line", "where", "said"), [
    ("{", {}, "points.jsonl, line 2: "),
    ("[1]", {}, "line 2: a point is a JSON object with an id"),
    ('{"model": "x"}', {}, "line 2: a point is a JSON object with an id"),
    (POINT, {"gpukey": "H100"}, "--where gpukey: no point of "),
], ids=str)  # fmt: skip
def test_files_that_are_wrong(tmp_path: Path, line: object, where: dict[str, str], said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_points(written(tmp_path, POINT, line), where)
    assert said in str(refused.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read points from"):
        read_points(tmp_path / "none.jsonl", {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read points from"):
        read_points(tmp_path / "binary", {})
