"""`braid step` and `braid steps` as a user meets them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.model.library import load_transformer
from simulator.model.transformer import active_parameters
from tests.conftest import ROOT, Outcome

Braid = Callable[..., Outcome]
SMALL = ("--model", "llama_3_1_8b", "--machine", "dgx_h100")
PEAK_FLOPS = 989.5e12  # of an H100 in BF16, NVIDIA's datasheet
WEIGHT_BYTES = 16e9


def test_a_step_prints_ledger_time_and_utilisation(braid: Braid) -> None:
    done = braid("step", *SMALL, "--batch", 16, "--context", 2048)
    assert done.code == 0, done.err
    for wanted in ("weights", "cache, bf16", "usable", "tpot_ms", "throughput_tok_s_per_card", "mfu", "mbu",
                   "budget of one layer", "critical path"):
        assert wanted in done.out, wanted


def test_json_has_metrics_memory_and_what_was_changed(braid: Braid) -> None:
    done = braid("step", *SMALL, "--batch", 16, "--context", 2048, "--json")
    assert set(done.json) == {"scenario", "changes", "seed", "metrics", "expected", "parameters", "memory"}
    assert done.json["changes"]["batch.requests"] == "16"
    assert {"tpot_ms", "iteration_ms", "throughput_tok_s", "throughput_tok_s_per_card", "mfu", "mbu"} <= set(
        done.json["metrics"])
    items = {item["name"]: item for item in done.json["memory"]}
    assert items["cache, bf16"]["bytes"] == pytest.approx(16 * 2049 * 131072)
    weights = sum(item["bytes"] for item in items.values() if item["category"] == "weights")
    assert weights == pytest.approx(16.06e9, rel=0.001)


def test_utilisation_is_of_the_chips_peaks(braid: Braid) -> None:
    metrics = braid("step", *SMALL, "--batch", 16, "--context", 1, "--json").json["metrics"]
    seconds = metrics["tpot_ms"] / 1e3
    useful = 2.0 * 16 * active_parameters(load_transformer("llama_3_1_8b"))
    assert metrics["mfu"] == pytest.approx(useful / seconds / PEAK_FLOPS, rel=0.02)
    assert WEIGHT_BYTES * 0.9 / seconds / 3.35e12 < metrics["mbu"] <= 1.0


def test_a_mesh_that_is_left_out_is_the_smallest_that_fits(braid: Braid) -> None:
    changes = braid("step", "--model", "llama_3_1_70b", "--machine", "dgx_h100", "--set", "knobs.layers=3",
                    "--json").json["changes"]
    assert (changes["layout.tp"], changes["cards"]) == ("4", "4")


def test_words_are_settings_of_the_scenario(braid: Braid) -> None:
    stepped = braid("step", *SMALL, "--mesh", "tp=2", "--phase", "prefill", "--context", 512, "--json").json
    ran = braid("run", "transformer:prefill", "--json", *(word for key, value in stepped["changes"].items()
                                                          for word in ("--set", f"{key}={value}"))).json
    assert stepped["metrics"]["ttft_ms"] == ran["metrics"]["ttft_ms"]


def test_what_is_saved_runs_and_gives_the_same(braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*SMALL, "--mesh", "tp=2", "--batch", 8, "--context", 512, "--precision", "all=fp8")
    done = braid("step", *words, "--save", "mine.py", "--json")
    assert done.code == 0, done.err
    again = braid("run", "mine.py:decode", "--json")
    assert again.code == 0, again.err
    assert again.json["metrics"]["tpot_ms"] == done.json["metrics"]["tpot_ms"]
    (tmp_path / "file").write_text("")
    assert braid("step", *words, "--save", "file/mine.py").is_one_clear_message(2)


def test_experts_apart_from_attention_take_turns_with_it(braid: Braid) -> None:
    words = ("step", "--model", "qwen3_30b_a3b", "--machine", "dgx_h200", "--mesh", "dp=6,ep=2,apart=2",
             "--batch", 3072, "--context", 1024, "--exchange", "all_to_all", "--set", "knobs.layers=3", "--json")
    one, two, three = (braid(*words, *more) for more in (
        (), ("--schedule", "ping_pong"), ("--schedule", "ping_pong", "--micro-batches", 3)))
    assert (one.code, two.code, three.code) == (0, 0, 0), two.err
    assert two.json["changes"]["layout.apart"] == "2"
    assert two.json["changes"]["cards"] == "8"
    times = [done.json["metrics"]["tpot_ms"] for done in (one, two, three)]
    assert min(times) == times[1] < 0.7 * times[0]


def test_a_config_json_is_a_model(braid: Braid) -> None:
    config = ROOT / "tests" / "data" / "configs" / "gpt_oss_20b.json"
    own, library = (braid("step", "--model", model, "--machine", "dgx_h100", "--mesh", "tp=1", "--batch", 4, "--json")
                    for model in (config, "gpt_oss_20b"))
    assert own.code == 0, own.err
    assert own.json["metrics"]["tpot_ms"] == library.json["metrics"]["tpot_ms"]


# --- mistakes ---------------------------------------------------------------------------------------------------------

WRONG = {
    "heads": (("--mesh", "tp=3"), "tp=3 does not divide the 32 heads of llama_3_1_8b; 1, 2, 4, 8, 16 or 32 would"),
    "axis": (("--mesh", "tpp=2"), "'tpp=2' is no axis (did you mean 'tp'?); axes are tp, cp, dp"),
    "ranks": (("--mesh", "tp=2,dp=512"), "1024 ranks; dgx_h100 takes at most 512"),
    "experts": (("--mesh", "dp=4,ep=4"), "ep=4: llama_3_1_8b has no experts; leave ep out"),
    "apart": (("--mesh", "dp=6,ep=2,apart=2"), "apart=2: llama_3_1_8b has no experts; leave apart out"),
    "micro-batches": (("--schedule", "two_batches", "--micro-batches", "3", "--batch", "8"),
                      "knobs.micro_batches: schedule two_batches takes 2, not 3"),
    "stack": (("--stack", "vlm"), "dgx_h100 has no kernels of it (did you mean 'vllm'?)"),
    "phase": (("--phase", "prefil"), "one of decode, prefill, mixed (did you mean 'prefill'?)"),
    "schedule": (("--schedule", "two_batch"), "knobs.schedule"),
    "precision": (("--precision", "all=fp7"), "must be one of"),
    "model": (("--model", "llama_3_8b"), "did you mean 'llama_3_1_8b'?"),
    "machine": (("--machine", "dgx_h300"), "did you mean 'dgx_h200'?"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_say_what_is_right(braid: Braid, mistake: str) -> None:
    words, said = WRONG[mistake]
    done = braid("step", *SMALL, *words)
    assert done.is_one_clear_message(2), done
    assert said in done.err


def test_kernels_are_sought_for_the_precision_that_is_set(braid: Braid) -> None:
    """Ascend has none in FP8, which the checkpoint is in."""
    words = ("step", "--model", "deepseek_r1", "--machine", "atlas_a2", "--mesh", "dp=16,ep=16", "--batch", 16,
             "--set", "knobs.layers=4")
    refused = braid(*words)
    assert refused.is_one_clear_message(2), refused
    assert "set knobs.precision, as all=int8" in refused.err
    assert braid(*words, "--precision", "all=int8", "--json").json["changes"]["kernels"] == "cann_2025"


def test_a_context_beyond_memory_names_what_fits(braid: Braid) -> None:
    words = (*SMALL, "--mesh", "tp=1", "--batch", 64)
    done = braid("step", *words, "--context", 400000)
    assert done.is_one_clear_message(1), done
    assert "batch.context=7775 would fit" in done.err
    assert "cache, bf16" in done.err, "the ledger"
    for context, code in ((7775, 0), (7776, 1)):
        assert braid("step", *words, "--context", context, "--set", "knobs.layers=3").code == code


def test_weights_beyond_memory_want_a_larger_mesh(braid: Braid) -> None:
    done = braid("step", "--model", "llama_3_1_405b", "--machine", "dgx_h100", "--mesh", "tp=2")
    assert done.is_one_clear_message(1), done
    assert "the weights alone do not fit: a larger mesh would" in done.err


# --- all of them ------------------------------------------------------------------------------------------------------


def test_steps_of_one_model_on_one_machine(braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = braid("steps", "llama_3_1_8b", "dgx_h100", "--json").json
    found = {(cell["cards"], cell["load"]): cell for cell in cells}
    assert len(found) == len(cells) == 9
    assert {cell["metric"] for cell in cells} == {"tpot_ms", "ttft_ms"}
    assert not list(tmp_path.iterdir()), "a part of the table is not kept"
    one = braid("step", *SMALL, "--mesh", "tp=2", "--batch", 64, "--context", 4096, "--json").json
    assert found[2, "decode 64"]["ms"] == pytest.approx(one["metrics"]["tpot_ms"], rel=1e-6)
    assert found[2, "decode 64"]["kernels"] == one["changes"]["kernels"]


def test_steps_print_a_table_and_the_reasons(braid: Braid) -> None:
    done = braid("steps", "qwen2_5_7b", "dgx_h100")
    assert done.code == 0, done.err
    assert "tp=8 does not divide the 28 heads of it" in " ".join(done.out.split())
    assert "9 steps of 1 models on 1 machines; 6 simulated, 3 refused: 3 mesh" in " ".join(done.out.split())


def test_a_pattern_that_chooses_nothing_is_refused(braid: Braid) -> None:
    done = braid("steps", "qwen9")
    assert done.is_one_clear_message(2), done
    assert "no model or machine with kernels of a transformer matches 'qwen9'" in done.err


def test_all_steps_are_kept(braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.study import steps

    def cells(model: str, machine: str) -> list[steps.Cell]:
        return [steps.Cell(model, machine, cards, load, "vllm", "bf16", 1.5)
                for cards in steps.CARDS for load in steps.LOADS]

    monkeypatch.setattr(steps, "cells_of", cells)
    monkeypatch.chdir(tmp_path)
    done = braid("steps")
    assert done.code == 0, done.err
    assert "wrote results/steps.md" in done.out
    report = (tmp_path / "results" / "steps.md").read_text(encoding="utf-8")
    assert "## NVIDIA DGX H100 (`dgx_h100`)" in report
    assert report.count("| llama_3_1_8b ") == len(steps.machines())
    assert [file.name for file in (tmp_path / "results").iterdir()] == ["steps.md"]
