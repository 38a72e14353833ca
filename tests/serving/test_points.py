"""Measured serving points: the closed loop by hand, filters, and what cannot be expressed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.serving import measured as measuring
from simulator.serving import points
from simulator.serving.engine import Engine
from simulator.serving.measured import NotExpressible, measured
from simulator.serving.point_errors import PointRow, beside, read_others, reasons, summary
from simulator.serving.points import compare, predicted, read_points
from simulator.study.scenario import Scenario
from simulator.study.step import StepWords
from tests.conftest import ROOT

POINT: dict[str, Any] = {
    "id": "a", "model": "llama_3_1_8b", "gpu_key": "H100", "n_gpus": 1, "fw_key": "vllm",
    "layout": {"tp": 1, "pp": 1, "ep": 1}, "isl": 1000, "osl": 200, "concurrency": 5, "tpot_ms": {"mean": 12.0},
    "ttft_ms": {"p50": 50.0}, "output_tok_s_per_gpu": 300.0,
}  # fmt: skip
SECONDS = {"tpot_ms": 10.72, "ttft_ms": 51.0, "output_tok_s_per_gpu": 450.0}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every point that can be expressed takes as long as SECONDS says."""

    def said(point: Mapping[str, Any]) -> dict[str, float]:
        measured(point)
        return dict(SECONDS)

    monkeypatch.setattr(points, "predicted", said)


def words_of(point: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> StepWords:
    """How the step of a point is asked for."""
    found: list[StepWords] = []

    def step_of(words: StepWords) -> Scenario:
        found.append(words)
        raise InputError("enough")

    monkeypatch.setattr(measuring, "step_of", step_of)
    with pytest.raises(InputError, match="enough"):
        measured(point)
    return found[0]


# --- the load ---------------------------------------------------------------------------------------------------------


def test_a_closed_loop_of_ten_rounds_of_lengths_that_are_alike() -> None:
    service, requests, concurrency = measured(POINT)
    assert (concurrency, len(requests), service.gpus) == (5, 50, 1)
    assert set(requests.input_tokens) == {1000}
    assert set(requests.output_tokens) == {200}


def test_a_campaign_draws_lengths_between_four_fifths_and_all_of_the_nominal_one() -> None:
    drawn = POINT | {"source_kind": "inferencex", "isl": 1000, "isl_mean": 900.0, "concurrency": 64}
    lengths = measured(drawn).requests.input_tokens
    assert (lengths.min(), lengths.max()) == (pytest.approx(800, abs=5), pytest.approx(1000, abs=5))
    assert lengths.mean() == pytest.approx(900, rel=0.01)
    whole = measured(POINT | {"source_kind": "sglang_cookbook", "isl_mean": 500.0, "num_prompts": 1000}).requests
    assert (whole.input_tokens.min(), whole.input_tokens.max()) == (pytest.approx(1, abs=9), pytest.approx(1000, abs=9))


def test_replicas_share_the_load() -> None:
    replicas = measured(POINT | {"n_gpus": 8, "concurrency": 40})
    assert (replicas.concurrency, len(replicas.requests), replicas.service.gpus) == (5, 50, 1)
    assert measured(POINT | {"n_gpus": 8, "concurrency": None, "replica_concurrency": 5}).concurrency == 5


def test_without_a_concurrency_requests_come_at_a_rate_or_all_at_once() -> None:
    at_once = measured(POINT | {"concurrency": None, "request_rate": "inf (all queued)", "num_prompts": 30})
    assert (at_once.concurrency, len(at_once.requests), at_once.requests.arrival_s.max()) == (0, 30, 0.0)
    rate = measured(POINT | {"concurrency": None, "request_rate": 20.0, "n_gpus": 2, "num_prompts": 4000}).requests
    assert len(rate) / rate.arrival_s[-1] == pytest.approx(10.0, rel=0.05)


def test_attention_data_parallel_groups_are_an_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    point = POINT | {"layout": {"tp": 1, "ep": 8, "attention_dp": 8}, "n_gpus": 8}
    assert words_of(point, monkeypatch).mesh == "tp=1,dp=8,pp=1,ep=8"


def test_engines_that_prefill_stand_apart_from_those_that_decode() -> None:
    layout = {"prefill": {"num_workers": 2, "tp_size": 1}, "decode": {"num_workers": 3, "tp_size": 2, "moe_ep_size": 1}}
    point = POINT | {"mode": "disagg", "layout": layout, "n_gpus": 8, "concurrency": 40}
    found = measured(point)
    assert found.service.prefill is not None
    assert [(one.count, one.step.cards) for one in (found.service.prefill, found.service.engines)] == [(2, 1), (3, 2)]
    assert (found.service.gpus, found.concurrency) == (8, 40)
    with pytest.raises(NotExpressible, match=r"9 GPUs are no whole replicas of tp=1,.* and tp=2,"):
        measured(point | {"n_gpus": 9})


def test_prompts_of_others_do_not_hold_up_decode_that_stands_apart() -> None:
    layout = {"prefill": {"num_workers": 1, "tp_size": 1}, "decode": {"num_workers": 1, "tp_size": 1}}
    busy = POINT | {"isl": 2000, "osl": 100, "concurrency": 12, "num_prompts": 24}
    together, apart = (predicted(busy | more) for more in ({}, {"mode": "disagg", "layout": layout, "n_gpus": 2}))
    assert apart["tpot_ms"] < together["tpot_ms"]


def test_the_engine_is_as_its_framework_has_it_unless_the_point_says_so() -> None:
    engines = measured(POINT | {"fw_key": "trtllm"}).service.engines
    assert (engines.scheduling.scheduler, engines.scheduling.enable_chunked_prefill) == ("trtllm", False)
    own = {"scheduling.max_num_batched_tokens": 512, "host.step_ms": 3.0, "front.request_ms": 0}
    service = measured(POINT | {"settings": own}).service
    assert service.engines.scheduling.max_num_batched_tokens == 512
    assert (service.engines.host.step_ms, service.front.request_ms) == (3.0, 0.0)


# --- what is simulated of it ------------------------------------------------------------------------------------------

SMALL = POINT | {"isl": 64, "osl": 16, "concurrency": 2}


def test_in_a_closed_loop_the_rate_is_little_s_law() -> None:
    """c requests are inside all the time: c x o tokens in each TTFT + (o - 1) TPOT, on all GPUs."""
    found = predicted(SMALL)
    stay_ms = found["ttft_ms"] + 15 * found["tpot_ms"]
    assert found["output_tok_s_per_gpu"] == pytest.approx(2 * 16 / stay_ms * 1e3, rel=0.02)
    means = {key: value for key, value in SMALL.items() if key != "output_tok_s_per_gpu"} | {"ttft_ms": {"mean": 50.0}}
    unpublished = predicted(means)
    stay_ms = unpublished["ttft_ms"] + 15 * unpublished["tpot_ms"]
    assert unpublished["output_tok_s_per_gpu"] == pytest.approx(2 * 16 / stay_ms * 1e3)


def test_more_in_flight_wait_longer() -> None:
    few, many = (predicted(SMALL | {"concurrency": count, "isl": 512}) for count in (2, 32))
    assert many["ttft_ms"] > 1.5 * few["ttft_ms"]
    assert many["tpot_ms"] > few["tpot_ms"]


def test_a_step_that_is_decided_ahead_lets_a_request_wait_for_one_more() -> None:
    """Where the clients are in step with the engine: each comes when another one has ended."""
    point = SMALL | {"osl": 64, "concurrency": 4, "range_ratio": 0.5, "num_prompts": 80}
    at_once, ahead = (predicted(point | {"settings": {"scheduling.async_scheduling": one}}) for one in (False, True))
    assert 0.7 < (ahead["ttft_ms"] - at_once["ttft_ms"]) / ahead["tpot_ms"] < 1.1


def test_held_back_prompts_wait_for_so_many_steps_at_most() -> None:
    point = SMALL | {"fw_key": "trtllm", "osl": 64, "concurrency": 4, "range_ratio": 0.5, "num_prompts": 80}

    def ttft_ms(ratio: float) -> float:
        own = {"scheduling.batch_wait_timeout_iters": 20, "scheduling.batch_wait_max_tokens_ratio": ratio}
        return predicted(point | {"settings": own})["ttft_ms"]

    never, long, few_tokens = ttft_ms(0.0), ttft_ms(1.0), ttft_ms(0.001)
    step_ms = predicted(point)["tpot_ms"]
    assert 10 * step_ms < long - never < 22 * step_ms
    assert few_tokens == never, "8 tokens have come with the first prompt"


def test_host_time_of_a_request_is_part_of_its_ttft() -> None:
    without, with_ = (predicted(SMALL | {"concurrency": 1, "settings": {"front.request_ms": ms}}) for ms in (0, 50))
    assert with_["ttft_ms"] - without["ttft_ms"] == pytest.approx(50.0, rel=0.01)


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


def test_one_draft_token_of_a_model_whose_acceptance_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM captures graphs of tokens, of which a request has two."""
    drafted = POINT | {"family": "glm-5", "model": "zai-org/GLM-5-FP8", "quantisation": "fp8", "gpu_key": "H200",
                       "n_gpus": 8, "layout": {"tp": 8}, "speculative": "mtp, 1 draft token"}  # fmt: skip
    words = words_of(drafted, monkeypatch)
    assert words.model == "glm_5"
    assert words.settings == {"batch.drafts": "1", "batch.acceptance": "0.7"}
    monkeypatch.undo()
    engines = measured(drafted).service.engines
    assert engines.capture[:6] == (1, 2, 4, 8, 12, 16)
    assert engines.capture[-1] == 256


def test_medians_are_compared_where_medians_are_published() -> None:
    point = POINT | {"tpot_ms": {"p50": 3.0, "p99": 9.0}, "ttft_ms": {"p50": 50.0, "p99": 90.0}}
    assert points.measured_values(point) == {"tpot_ms": 3.0, "ttft_ms": 50.0, "output_tok_s_per_gpu": 300.0}
    assert points._is_median(point)
    assert not points._is_median(point | {"ttft_ms": {"mean": 1.0, "p50": 50.0}})


@pytest.mark.parametrize(("changes", "reason"), [
    ({"mode": "disagg"}, "mode disagg: layout has no prefill and decode"),
    ({"speculative": "mtp"}, "speculative: mtp"),
    ({"speculative": "mtp, 1 draft token"}, "speculative: mtp, 1 draft token"),
    ({"concurrency": None}, "no concurrency and no request_rate"),
    ({"isl": None}, "no isl or osl"),
    ({"gpu_key": "MI300X"}, "gpu_key MI300X: no such machine"),
    ({"model": "ours"}, "model ours: not in the library"),
    ({"layout": None}, "no layout with tp"),
    ({"layout": {"tp": 2, "pp": 2}, "n_gpus": 6}, "6 GPUs are no whole replicas of tp=2,dp=1,pp=2,ep=1"),
    ({"isl": "256"}, "no isl or osl"),
    ({"num_prompts": 10**12}, "1000000000000 requests: at most 10,000,000 can be simulated"),
    ({"quantisation": {"fp8": 1}}, "quantisation {'fp8': 1}: none of fp8"),
    ({"isl": 1e30}, "isl is 1e+30, osl 200: each must be at most"),
    ({"layout": {"tp": "two"}}, "layout.tp is 'two': it must be a whole number, at least 1"),
    ({"layout": {"tp": -1}}, "layout.tp is -1: it must be a whole number, at least 1"),
    ({"n_gpus": [8]}, "n_gpus is [8]: it must be a whole number"),
    ({"num_prompts": "many"}, "num_prompts is 'many': it must be a whole number"),
    ({"range_ratio": "half"}, "range_ratio is 'half': it must be a number above 0"),
    ({"gemm_quant": "fp6"}, "quantisation fp6: none of fp8"),
], ids=str)  # fmt: skip
def test_what_cannot_be_expressed_has_a_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotExpressible) as refused:
        measured(POINT | changes)
    assert str(refused.value).startswith(reason)


# --- rows, their errors and their reasons -----------------------------------------------------------------------------


def test_a_row_for_every_metric_that_was_measured(asked: None) -> None:
    told: list[float] = []
    other = POINT | {"id": "b", "ttft_ms": None, "tpot_ms": 10.72, "output_tok_s_per_gpu": 0}
    rows = compare([POINT, other], 1, told.append).rows
    assert [(row.id, row.metric, row.value) for row in rows] == [
        ("a", "tpot_ms", 12.0), ("a", "ttft_ms", 50.0), ("a", "output_tok_s_per_gpu", 300.0), ("b", "tpot_ms", 10.72)]
    assert rows[0].error == pytest.approx(10.72 / 12.0 - 1)
    assert rows[3].error == pytest.approx(0.0)
    assert told == [1.0], "one launch"
    assert set(rows[0].as_object()) == {"id", "metric", "value", "simulated", "error"}


def test_refusals_are_named_and_counted(asked: None) -> None:
    wrong = POINT | {"gpu_key": "MI300X"}
    rows = compare([POINT, wrong | {"id": "b"}, wrong | {"id": "c"}, POINT | {"id": "d", "mode": "disagg"}]).rows
    why = rows[3].reason
    assert why.startswith("gpu_key MI300X: no such machine; there are A100, H100, ")
    assert reasons(rows) == [(why, 2, "b"),
                             ("mode disagg: layout has no prefill and decode", 1, "d")]
    refused = [row for row in rows if row.id == "b"]
    assert [(row.simulated, row.error) for row in refused] == [(None, None)] * 3
    assert all(row.as_object()["reason"] == why for row in refused)


def test_a_point_without_a_number_and_a_file_without_points_are_named(asked: None, tmp_path: Path) -> None:
    bare = {key: value for key, value in POINT.items() if not key.startswith(("tpot", "ttft", "output"))}
    (row,) = compare([bare]).rows
    assert row.reason == "no number of tpot_ms, ttft_ms, output_tok_s_per_gpu was measured"
    with pytest.raises(InputError, match=r"empty\.jsonl has no points"):
        (tmp_path / "empty.jsonl").write_text("")
        read_points(tmp_path / "empty.jsonl", {})


def test_a_run_that_is_stopped_is_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "_begin", stopped)
    with pytest.raises(KeyboardInterrupt):
        predicted(POINT)


def test_what_the_machine_refuses_is_a_reason_too() -> None:
    rows = compare([POINT | {"layout": {"tp": 3}, "n_gpus": 3}]).rows
    assert {row.reason for row in rows} == {
        "transformer:decode: mesh tp=3: tp=3 does not divide the 32 heads of llama_3_1_8b; 1, 2, 4, 8, 16 or 32 would"}


def test_errors_by_family() -> None:
    sizes = {"x": [0.1, -0.2, 0.3], "y": [-0.5]}
    rows = [PointRow(str(number), (family, "", ""), "tpot_ms", 10.0, 10.0 * (1 + error))
            for family, errors in sizes.items() for number, error in enumerate(errors)]
    rows.append(PointRow("z", ("y", "", ""), "tpot_ms", 10.0, None, "why"))
    found = {(one.metric, one.group): (one.points, round(one.signed, 6), round(one.median, 6)) for one in summary(rows)}
    assert found == {("tpot_ms", "all"): (4, -0.05, 0.25), ("tpot_ms", "x"): (3, 0.1, 0.2),
                     ("tpot_ms", "y"): (1, -0.5, 0.5)}


def test_errors_beside_those_of_others(tmp_path: Path) -> None:
    rows = [PointRow(name, ("x", "H100", "vllm"), "tpot_ms", 10.0, said) for name, said in (("a", 11.0), ("b", 8.0))]
    rows.append(PointRow("c", ("x", "H100", "vllm"), "tpot_ms", 10.0, 20.0))
    file = tmp_path / "others.jsonl"
    file.write_text('{"id": "a", "formula": {"tpot": 9.5}}\n\n{"id": "b", "formula": {"tpot": 10.1, "ttft": 3}}\n')
    table = beside(rows, read_others(file))
    assert [(metric, group, count) for metric, group, count, _ in table] == [
        ("tpot_ms", group, 2) for group in ("all", "H100", "vllm", "x", "x H100 vllm")], "c has no other prediction"
    assert table[0][3] == {"braid": (pytest.approx(0.15), pytest.approx(0.15)),
                           "formula": (pytest.approx(0.03), pytest.approx(0.03))}
    with pytest.raises(InputError, match="line 1: a prediction is a JSON object with the id"):
        file.write_text('{"tpot": 3}')
        read_others(file)


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
    ("\n \n{", {}, "line 4: "),
    ("[" * 5000, {}, "line 2: maximum recursion depth exceeded"),
    ('{"id": ' + "1" * 5000 + "}", {}, "line 2: Exceeds the limit"),
    (POINT | {"ttft_ms": {"mean": float("nan")}}, {}, "line 2: ttft_ms.mean is no number between -1e+15 and 1e+15"),
    (POINT | {"concurrency": 10**400}, {}, "line 2: concurrency is no number between"),
    (POINT, {"gpukey": "H100"}, "--where gpukey: no point of "),
    (POINT, {"concurrency": "4..many"}, "--where concurrency: got '4..many': a range is of two numbers"),
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


def test_what_other_processes_have_done_before_ctrl_c_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches come as they are done: the last of three, before Ctrl-C."""
    def one_of(work: Any, those: Sequence[str], jobs: int, tell: Any) -> Iterator[tuple[int, Any]]:
        yield 2, [({"tpot_ms": 9.0}, "")]
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.serving.points.as_done", one_of)
    rows, left = compare([POINT | {"id": id_, "n_gpus": gpus} for id_, gpus in (("a", 1), ("b", 2), ("c", 4))], 2)
    assert left == 2
    assert {(row.id, row.metric, row.simulated) for row in rows} >= {("c", "tpot_ms", 9.0)}
    assert {row.id for row in rows} == {"c"}
