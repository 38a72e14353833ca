"""How commands behave towards who types them: short answers, nothing overwritten, nothing said that is not so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator import paths
from tests.commands.processes import MAIN, environment
from tests.conftest import Outcome

Braid = Callable[..., Outcome]
DP = "a3_prefill:dp"
SMALL = ("--set", "model.shapes.layers=4", "--set", "batch.requests=32")


@pytest.mark.parametrize(("words", "nearest", "lister"), [
    (("run", "nosuch"), "", "braid list"),
    (("run", "microbatches"), "a3_prefill:microbatch", "braid list"),
    (("run", "a3_prefil"), "a3_prefill:dp", "braid list"),
    (("serve", "llama_70b"), "one_server:llama_3_1_70b", "braid services"),
])  # fmt: skip
def test_a_name_that_is_none_is_answered_by_the_five_nearest(
    braid: Braid, words: tuple[str, str], nearest: str, lister: str
) -> None:
    done = braid(*words)
    assert done.is_one_clear_message(2), done
    names = done.err.partition("the nearest are ")[2].partition(";")[0].split(", ")
    assert len(names) == 5
    assert nearest in (*names, "")
    assert f"`{lister}` has all" in done.err


@pytest.mark.parametrize("words", [
    ("run", DP, *SMALL, "--kernels"), ("compare", DP, "a3_prefill:dp_tnd", *SMALL), ("list",), ("models",),
    ("machines",), ("show", DP), ("show", DP, "--program", *SMALL),
    ("sweep", DP, "batch.requests", "32", "64", *SMALL[:2]),
    ("step", "--model", "llama_3_1_8b", "--machine", "dgx_h100", "--set", "knobs.layers=3"),
    ("serve", "--model", "llama_3_1_8b", "--machine", "dgx_h100", "--requests", "4", "--isl", "64", "--osl", "4"),
    ("--help",), ("run", "--help"), ("calibrate", "--help"), ("validate", "a3.prefill.dp"),
])  # fmt: skip
def test_no_line_ends_in_blanks(braid: Braid, words: tuple[str, ...]) -> None:
    done = braid(*words)
    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if line != line.rstrip()] == []


def test_a_changed_run_has_no_error_against_what_was_published(braid: Braid) -> None:
    assert {row["error"] for row in braid("run", DP, *SMALL, "--json").json["expected"]} == {None}
    rows = [line.split() for line in braid("run", DP, *SMALL).out.splitlines() if line.startswith("a3.prefill")]
    assert len(rows) == 4
    assert all(row[-2:] in (["-", "fit"], ["-", "predict"]) for row in rows), rows


@pytest.mark.parametrize(("words", "title"), [
    (("step", "--model", "llama_3_1_8b", "--machine", "dgx_h100", "--set", "knobs.layers=3"),
     "transformer:decode: One step of llama_3_1_8b"),
    (("show", "transformer:prefill"), "transformer:prefill: One step of llama_3_1_70b"),
    (("run", "contention:staging", "--set", "model=kimi_k2"), ", kimi_k2"),
    (("run", DP, *SMALL), "one stream"),
    (("serve", "one_server:llama_3_1_70b", "--set", "engines.step.model=llama_3_1_8b", "--requests", "2",
      "--isl", "32", "--osl", "2"), ", llama_3_1_8b"),
])  # fmt: skip
def test_titles_name_the_model_that_runs(braid: Braid, words: tuple[str, ...], title: str) -> None:
    done = braid(*words)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].endswith(title)


def test_scenarios_are_listed_by_system(braid: Braid) -> None:
    lines = braid("list").out.splitlines()
    rows = braid("list", "--json").json
    (own,) = (row for row in rows if row["name"] == DP)
    assert own["system"].startswith("Atlas A3, 16 cards = 32 dies: prefill of DeepSeek-R1")
    (place,) = (place for place, line in enumerate(lines) if line.split()[0] == DP)
    assert [line for line in lines[:place] if not line.startswith("  ")][-1] == own["system"]
    assert len(rows) == len([line for line in lines if line.startswith("  ")])


def test_words_filter_lists(braid: Braid) -> None:
    named = [row["name"] for row in braid("list", "a3", "MICROBATCH", "--json").json]
    assert named == ["a3_prefill:microbatch", "a3_prefill:microbatch_aiv", "a3_prefill:microbatch_slow_host"]
    assert all("sglang" in str(row).lower() for row in braid("services", "SGLang", "--json").json)
    refused = braid("list", "microbach")
    assert refused.is_one_clear_message(2), refused
    assert "a3_prefill:microbatch" in refused.err


def test_show_knows_services(braid: Braid) -> None:
    text = braid("show", "one_server:llama_3_1_70b", "--set", "load.concurrency=7").out
    for said in ("EngineArgs.get_batch_defaults", "engines: 1 x 8 cards of NVIDIA DGX H100, tp=8; llama_3_1_70b",
                 "engines.scheduling.max_num_seqs", "engines.cache.block_size", "front.router", "load.concurrency",
                 "layout.tp"):
        assert said in text
    assert next(line.split()[1] for line in text.splitlines() if line.startswith("  load.concurrency")) == "7"
    assert "prefill: 15 x 16 cards" in braid("show", "cloudmatrix384:service").out
    assert braid("show", "one_server:llama_3_1_70b", "--program").is_one_clear_message(2)


def test_show_knows_services_of_ones_own(braid: Braid, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from simulator.serving.library import load_service\n"
                                      "def mine():\n    return load_service('one_server:llama_3_1_70b')\n")
    assert "load.concurrency" in braid("show", f"{tmp_path}/mine.py:mine").out


def test_show_has_json(braid: Braid) -> None:
    scenario = braid("show", DP, "--json").json
    assert scenario["settings"]["batch.requests"]["value"] == "64"
    assert {"value", "unit", "kind", "source"} <= set(scenario["numbers"]["machine.chip.hbm.peak"])
    assert "latency_ms" in scenario["metrics"]
    service = braid("show", "one_server:llama_3_1_70b", "--json").json
    assert service["settings"]["load.concurrency"]["value"] == "64"
    assert service["steps"]["engines"]["cards"] == 8


def test_show_says_what_its_letters_mean(braid: Braid) -> None:
    assert "confidence: H two independent sources, M one direct source, L inference" in braid("show", DP).out


def test_compare_has_json(braid: Braid) -> None:
    done = braid("compare", DP, DP, *SMALL, "--set", "B:knobs.attention=tnd", "--json")
    one = braid("run", DP, *SMALL, "--json")
    assert set(done.json) == {"A", "B", "comparison"}
    assert done.json["A"] == one.json
    assert done.json["B"]["changes"]["knobs.attention"] == "tnd"


SWEEP = ("sweep", DP, "batch.requests", "32", "64", *SMALL[:2], "--metrics", "latency_ms", "--json")


def test_a_sweep_in_processes_gives_the_same_rows_and_keeps_every_result(braid: Braid, tmp_path: Path) -> None:
    one = braid(*SWEEP)
    assert braid(*SWEEP, "--jobs", 2, "--out", tmp_path / "out").json == one.json
    assert {file.parent.name for file in tmp_path.glob("out/*/result.json")} == {"32", "64"}
    assert {file.parent.name for file in tmp_path.glob("out/*/trace.json.gz")} == {"32", "64"}


def test_a_sweep_has_the_seed_and_the_ranks_that_it_is_given(braid: Braid) -> None:
    rows = {seed: braid("sweep", DP, "launch_jitter", "0.5", *SMALL, "--seed", seed, "--metrics", "latency_ms",
                        "--json").json[0]["latency_ms"] for seed in (1, 2)}
    assert rows[1] != rows[2]
    run = braid("run", DP, *SMALL, "--set", "launch_jitter=0.5", "--seed", 1, "--json")
    assert run.json["metrics"]["latency_ms"] == rows[1]
    assert braid(*SWEEP, "--ranks", "all").json == braid(*SWEEP).json


def test_a_metric_that_no_run_has_is_refused_before_a_sweep(braid: Braid, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.study import sweep

    monkeypatch.setattr(sweep, "simulate", lambda *_, **__: pytest.fail("it ran"))
    for name in (DP, "transformer:decode", "trt_min_latency:base"):
        done = braid("sweep", name, "cards", "8", "16", "--metrics", "latncy_ms")
        assert done.is_one_clear_message(2), done
        assert "has no metric latncy_ms;" in done.err


@pytest.mark.parametrize("name", [DP, "trt_min_latency:base", "transformer:prefill", "cm384_decode:decode_ten_layers",
                                  "deepep:ep8", "transformer:decode", "pplx_decode:one_node", "point_to_point:efa"])
def test_no_metric_of_a_run_is_unknown_before_it(name: str) -> None:
    from simulator.study.glossary import unknown
    from simulator.study.library import load_scenario
    from simulator.study.simulate import simulate

    scenario = load_scenario(name)
    assert unknown(list(simulate(scenario).metrics), [scenario]) == []


@pytest.mark.parametrize("words", [
    ("run", DP, *SMALL), ("compare", DP, DP, *SMALL), SWEEP,
    ("serve", "--model", "llama_3_1_8b", "--machine", "dgx_h100", "--requests", "2", "--isl", "32", "--osl", "2")])
def test_a_folder_of_other_things_is_written_into_by_force_alone(
    braid: Braid, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "result.json").write_text("mine")
    refused = braid(*words, "--out", tmp_path)
    assert refused.is_one_clear_message(2), refused
    assert "--force" in refused.err
    assert [one.name for one in tmp_path.iterdir()] == ["result.json"]
    assert braid(*words, "--out", tmp_path, "--force").code == 0
    assert braid(*words, "--out", tmp_path).code == 0, "what it wrote itself"


@pytest.mark.parametrize("command", [(sys.executable, "-P", "-m", "simulator"), (sys.executable, "-P", "-c", MAIN)])
def test_a_folder_may_have_a_simulator_of_its_own(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "simulator.py").write_text("from simulator.study.library import load_scenario\n"
                                           f"def mine():\n    return load_scenario('{DP}')\n")
    words = ("sweep", "simulator.py:mine", *SWEEP[2:], "--jobs", "2")
    done = subprocess.run([*command, *words], cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, len(json.loads(done.stdout))) == (0, 2), done.stderr


@pytest.mark.parametrize("name", ["deepep:ep8", "transformer:decode"])
def test_without_a_timeline_all_metrics_of_the_workload_are_kept(braid: Braid, name: str) -> None:
    kept, forgotten = (braid("run", name, "--json", *more).json for more in ((), ("--no-record",)))
    assert forgotten["metrics"].items() <= kept["metrics"].items()
    assert [row["simulated"] for row in forgotten["expected"]] == [row["simulated"] for row in kept["expected"]]
    assert not {"communication_ms", "gemm_ms"} & set(forgotten["metrics"])
    assert not [metric for metric in set(kept["metrics"]) - set(forgotten["metrics"])
                if metric.startswith(("dispatch_us", "throughput", "iteration"))]


OWN = """
from simulator.study.library import load_scenario
from simulator.study.scenario import Expected

def mine():
    short = load_scenario("a3_prefill:dp").replace({"model.shapes.layers": "4", "batch.requests": "32"})
    return short.variant(batch=short.batch.model_copy(update={"requests": 64}),
                         expected=(Expected(id="mine", metric="latency_ms", value=100.0, role="predict"),))
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_sweep_runs_what_a_run_does_whatever_its_file_changed(braid: Braid, tmp_path: Path, jobs: str) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN, "utf-8")
    ran = json.loads(braid("run", f"{own}:mine", "--json").out)
    swept = json.loads(braid("sweep", f"{own}:mine", "launch_jitter", "0", "--metrics", "latency_ms", "--jobs", jobs,
                             "--json").out)  # fmt: skip
    assert swept[0]["latency_ms"] == ran["metrics"]["latency_ms"]
    assert ran["expected"][0]["error"] is not None, "nothing was changed since it was loaded"


def test_every_value_of_a_sweep_has_a_folder_of_its_own(braid: Braid, tmp_path: Path) -> None:
    models = [tmp_path / name for name in ("x y.toml", "x-y.toml")]
    for one in models:
        one.write_text(paths.find("workloads/models", "deepseek_r1").read_text("utf-8"), "utf-8")
    assert not braid("sweep", "contention:staging", "model", *map(str, models), "--metrics", "latency_ms", "--out",
                     str(tmp_path / "swept")).code  # fmt: skip
    assert [one.name[0] for one in sorted((tmp_path / "swept").iterdir())] == ["0", "1"]
