"""The command line as a user meets it: what each command prints, and what every mistake leads to."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.commands.processes import environment
from tests.conftest import ROOT, Outcome

Braid = Callable[..., Outcome]
COMMANDS = ("step", "list", "services", "models", "machines", "show", "run", "serve", "compare", "view", "sweep",
            "ladder", "steps", "validate", "influence", "bench", "calibrate", "probe")
DP, MICROBATCH = "a3_prefill:dp", "a3_prefill:microbatch"
SMALL = ("--set", "model.shapes.layers=5", "--set", "batch.requests=32")
EXPECTED = {"id", "metric", "value", "simulated", "error", "role"}


# --- help -------------------------------------------------------------------------------------------------------------


def test_help_names_every_command(braid: Braid) -> None:
    done = braid("--help")
    assert done.code == 0
    assert all(command in done.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(braid: Braid, command: str) -> None:
    done = braid(command, "--help")
    assert done.code == 0
    assert "Example" in done.out
    assert f"braid {command}" in done.out.partition("Example")[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_can_be_copied_from_a_narrow_terminal(braid: Braid, command: str) -> None:
    examples = braid(command, "--help").out.partition("Example")[2].partition("╭")[0].splitlines()[1:]
    assert all(line.lstrip().startswith(("#", "braid")) for line in examples if line.strip()), examples


def test_the_module_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "simulator", "list"], cwd=tmp_path, env=environment(),
                          capture_output=True, encoding="utf-8", check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert DP in done.stdout


# --- what the commands print ------------------------------------------------------------------------------------------


def test_models_are_listed_with_their_sizes(braid: Braid) -> None:
    head, *rows = braid("models").out.splitlines()
    assert head.split()[:4] == ["model", "parameters", "active", "layers"]
    assert len(rows) >= 18
    own = braid("models", "deepseek_r1", str(ROOT / "tests" / "data" / "configs" / "gpt_oss_20b.json")).out.splitlines()
    assert own[1].split() == ["deepseek_r1", "671.0B", "36.6B", "61", "MLA", "128", "70,272"]
    assert own[2].endswith("GQA 64/8, window 128 in 12 of 24          49,152")
    wrong = braid("models", "qwen4_8b")
    assert (wrong.code, "did you mean 'qwen3_8b'?" in wrong.err) == (2, True)


def test_list_names_scenarios_with_a_line_each(braid: Braid) -> None:
    lines = braid("list").out.splitlines()
    named = dict(line.split(None, 1) for line in lines if line.startswith("  "))
    assert {DP, MICROBATCH} <= set(named)
    assert all(len(title) > 10 for title in named.values())


def test_show_says_what_a_scenario_consists_of(braid: Braid) -> None:
    done = braid("show", MICROBATCH)
    assert done.code == 0
    for wanted in ("Atlas A3", "batch.requests", "weights", "published", "fitted", "assumed"):
        assert wanted in done.out


def test_show_says_what_settings_mean(braid: Braid) -> None:
    settings = braid("show", MICROBATCH).out.partition("Settings")[2].partition("Expected values")[0].splitlines()
    meaning = {line.split()[0]: " ".join(line.split()[2:]) for line in settings[1:] if line}
    assert meaning["knobs.attention"] == "ntd, tnd: layout of FlashAttention's operands"
    assert meaning["knobs.read_sizes"].startswith("the host blocks")
    assert meaning["kernels"].startswith("software generation")
    assert meaning["layout.expert_parallel"] == ""


def test_show_program_is_in_launch_order(braid: Braid) -> None:
    done = braid("show", MICROBATCH, "--program", "--set", "model.shapes.layers=5")
    assert done.code == 0
    assert 0 < done.out.index("dispatch") < done.out.index("combine")


def test_run_prints_a_report(braid: Braid) -> None:
    done = braid("run", DP, *SMALL)
    assert done.code == 0, done.err
    assert "expected values are those of the scenario without these changes" in done.out
    for wanted in (DP, "a3.prefill.dp", "latency_ms", "fit", "batch.requests"):
        assert wanted in done.out


def test_run_without_recording_prints_what_follows_from_the_makespan(braid: Braid, tmp_path: Path) -> None:
    kept, forgotten = (braid("run", DP, "--json", *SMALL, *more) for more in ((), ("--no-record",)))
    assert forgotten.json["metrics"]["latency_ms"] == kept.json["metrics"]["latency_ms"]
    assert "communication_ms" not in forgotten.json["metrics"]
    assert forgotten.json["parameters"] == []
    assert "not recorded" in braid("run", DP, "--no-record", *SMALL).out
    for more in (("--out", str(tmp_path / "out")), ("--kernels",)):
        refused = braid("run", DP, "--no-record", *more, *SMALL)
        assert (refused.code, "--no-record" in refused.err) == (2, True)
    assert not (tmp_path / "out").exists()


def test_kernels_are_listed_by_name_with_waiting_apart(braid: Braid) -> None:
    rows = json.loads(braid("run", DP, "--kernels", "--json", *SMALL).out)["kernels"]
    assert {"name", "kind", "per_rank", "bound_by", "mean_us", "min_us", "max_us", "waiting_max_us"} <= set(rows[0])
    assert all(one["min_us"] <= one["mean_us"] <= one["max_us"] for one in rows)
    assert rows[0]["name"] in braid("run", DP, "--kernels", *SMALL).out


def test_run_json_is_one_object(braid: Braid) -> None:
    done = braid("run", DP, "--json", *SMALL, "--seed", 3)
    assert set(done.json) == {"scenario", "changes", "seed", "metrics", "expected", "parameters"}
    assert done.json["scenario"] == DP
    assert done.json["changes"] == {"model.shapes.layers": "5", "batch.requests": "32"}
    assert done.json["seed"] == 3
    assert {"latency_ms", "throughput_tok_s_per_card", "exposed_comm_ms", "hidden_comm_ms"} <= set(done.json["metrics"])
    assert all(set(row) == {*EXPECTED, "band"} for row in done.json["expected"])
    assert done.json["parameters"]


def test_all_ranks_and_roles_agree(braid: Braid) -> None:
    folded, unfolded = (braid("run", MICROBATCH, "--json", *SMALL[:2], "--ranks", ranks) for ranks in ("roles", "all"))
    assert folded.json["metrics"]["latency_ms"] == unfolded.json["metrics"]["latency_ms"]


def test_run_out_writes_timeline_trace_and_json(braid: Braid, tmp_path: Path) -> None:
    done = braid("run", DP, "--json", *SMALL, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "result.json", "timeline.parquet", "trace.json.gz"]
    written = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert {key: written[key] for key in done.json} == done.json
    assert (written["about"]["ranks"], written["about"]["settings"]["machine"]) == (32, "atlas_a3")
    assert pq.read_table(tmp_path / "out" / "timeline.parquet").num_rows > 100
    assert json.loads(gzip.decompress((tmp_path / "out" / "trace.json.gz").read_bytes()))["traceEvents"]


def test_compare_shows_both(braid: Braid, tmp_path: Path) -> None:
    done = braid("compare", DP, MICROBATCH, *SMALL[:2], "--out", tmp_path / "out")
    assert done.code == 0, done.err
    for wanted in (DP, MICROBATCH, "latency_ms", "exposed_comm_ms"):
        assert wanted in done.out
    assert sorted(folder.name for folder in (tmp_path / "out").iterdir()) == ["a3_prefill-dp", "a3_prefill-microbatch"]


def test_validate_json_is_one_list(braid: Braid) -> None:
    done = braid("validate", "a3.prefill.dp", "--json")
    assert done.code == 0, done.err
    assert {row["id"] for row in done.json} == {"a3.prefill.dp"}
    assert all(set(row) == EXPECTED | {"scenario"} for row in done.json)


def test_validate_reports_a_scenario_that_cannot_run_and_goes_on(
    braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator.study import library

    broken = tmp_path / "broken.py"
    broken.write_text("def scenario():\n    raise ValueError('out of ideas')\n")
    monkeypatch.setattr(library, "scenario_names", lambda: [(f"{broken}:scenario", ""), (DP, "")])
    monkeypatch.setattr("simulator.serving.validate.service_names", list)
    monkeypatch.chdir(tmp_path)
    done = braid("validate")
    assert done.code == 1
    assert "out of ideas" in " ".join(done.out.split())  # wherever the line was broken
    report = (tmp_path / "results" / "validation.md").read_text(encoding="utf-8")
    assert "out of ideas" in report
    assert "a3.prefill.dp" in report


def test_validate_reports_a_ratio_to_what_cannot_run(
    braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator.study import library

    few = tmp_path / "few.py"
    few.write_text(
        "from simulator.study.library import load_scenario\n"
        "def mine():\n    step = load_scenario('contention:staging')\n"
        "    other = step.expected[0].model_copy(update={'against': __file__ + ':other'})\n"
        "    return step.variant(expected=(other,))\n"
        "def other():\n    return load_scenario('a3_prefill:microbatch').replace({'batch.requests': '2'})\n")
    monkeypatch.setattr(library, "scenario_names", lambda: [(f"{few}:mine", ""), ("contention:staging", "")])
    monkeypatch.setattr("simulator.serving.validate.service_names", list)
    monkeypatch.chdir(tmp_path)
    done = braid("validate")
    assert done.code == 1
    assert f"{few}:mine: not simulated: {few}:other cannot run so: " in " ".join(done.out.split())
    report = (tmp_path / "results" / "validation.md").read_text(encoding="utf-8")
    assert "not simulated: values of 1 scenarios" in report
    assert "a3.contention.staging" in report


def test_influence_reports_a_study_that_cannot_run(
    braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator.study import library

    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from simulator.study.library import load_scenario\nfrom simulator.study.scenario import Study\n"
        "def scenario():\n    study = Study(title='Which one?', key='batch.colour', values=('red',), metrics=())\n"
        f"    return load_scenario('{DP}').variant(expected=(), studies=(study,))\n")
    monkeypatch.setattr(library, "scenario_names", lambda: [(f"{wrong}:scenario", ""), (DP, "")])
    monkeypatch.chdir(tmp_path)
    assert braid("influence").code == 1
    report = (tmp_path / "results" / "influence.md").read_text(encoding="utf-8")
    assert "Which one?" in report
    assert "did not run: --set batch.colour: no such setting" in report
    assert "# What is assumed, by influence" in report


def test_bench_json_is_a_list_of_objects(braid: Braid) -> None:
    done = braid("bench", "cold_help", "--json")
    assert done.code == 0, done.out
    assert {"name", "value", "unit", "target", "met", "cpu_s", "peak_mib"} <= set(done.json[0])


# --- mistakes ---------------------------------------------------------------------------------------------------------

WRONG = {
    "scenario": (("run", "a3_prefill:microbach"), "did you mean 'a3_prefill:microbatch'"),
    "file": (("run", "a3_prefil:dp"), "did you mean 'a3_prefill'"),
    "no function": (("run", "a3_prefill"), "a3_prefill:dp"),
    "missing file": (("run", "nowhere/study.py:mine"), "does not exist"),
    "command": (("rnu",), "Did you mean 'run'"),
    "option": (("run", DP, "--rank", "all"), "--ranks"),
    "choice": (("run", DP, "--ranks", "some"), "'roles', 'all'"),
    "not a pair": (("run", DP, "--set", "batch.requests"), "KEY=VALUE"),
    "key": (("run", DP, "--set", "batch.request=3"), "did you mean 'batch.requests'"),
    "value": (("run", DP, "--set", "batch.requests=many"), "batch.requests"),
    "machine key": (("run", DP, "--set", "machine.chip.hbm.peek=1 TB/s"), "peak"),
    "unit": (("run", DP, "--set", "machine.chip.hbm.peak=3.2 TB/sec"), "did you mean 'TB/s'"),
    "dimension": (("run", DP, "--set", "machine.chip.hbm.peak=3.2 GB"), "TB/s"),
    "machine": (("run", DP, "--set", "machine=atlas_a33"), "did you mean 'atlas_a3'"),
    "missing machine": (("show", DP, "--set", "machine=./none.toml"), "does not exist"),
    "kernels": (("run", DP, "--set", "kernels=newest"), "generation 'newest'"),
    "engine": (("run", DP, "--set", "knobs.engine=ai_cpu"), "aiv, aiv_zero_copy, sdma"),
    "no value": (("run", DP, "--set", "batch.prompt_lengths=a,3"), "got 'a,3'"),
    "engine by its setting": (("run", DP, "--set", "knobs.engine=sdna"), f"{DP}: knobs.engine: no engine 'sdna' (did"),
    "generation by its setting": (("run", DP, "--set", "kernels=newest"), "kernels: atlas_a3 has no kernel generation"),
    "more ranks than the machine has": (("run", DP, "--set", "cards=100000"), "768 dies"),
    "compare": (("compare", DP, "a3_prefill:microbach"), "did you mean 'a3_prefill:microbatch'"),
    "validate": (("validate", "a4*"), "matches 'a4*'"),
    "bench": (("bench", "flowz"), "matches 'flowz'"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_input_gives_one_message_that_says_what_is_right(braid: Braid, mistake: str) -> None:
    arguments, said = WRONG[mistake]
    done = braid(*arguments)
    assert done.is_one_clear_message(2), done
    assert said in done.err


def test_everything_wrong_with_the_settings_is_said_at_once(braid: Braid) -> None:
    wrong = {"batch.request": "3", "cards": "-1", "batch.requests": "0", "machine.chip.hbm.peak": "3.20",
             "machine.chip.colour": "1", "model.shapes.heads": "0.5"}
    done = braid("run", DP, *(word for key, text in wrong.items() for word in ("--set", f"{key}={text}")))
    assert done.is_one_clear_message(2), done
    for said in ("--set batch.request: no such setting", "--set cards: got '-1'", "--set batch.requests: got '0'",
                 "chip.hbm.peak: got '3.20'", "chip.colour: got '1': no key", "shapes.heads: got '0.5'"):
        assert said in done.err


def test_what_an_own_file_lacks_is_said(braid: Braid, tmp_path: Path) -> None:
    file = tmp_path / "arguments.py"
    load = "from simulator.study.library import load_scenario"
    file.write_text(f"{load}\n\ndef mine(ranks):\n    return load_scenario('a3')\n")
    for name in ("mine", "other"):
        done = braid("run", f"{file}:{name}")
        assert done.is_one_clear_message(2), done
        assert "no function in this file can be called without arguments" in done.err
    assert "mine needs ranks: a scenario function takes no arguments" in braid("run", f"{file}:mine").err
    more = tmp_path / "more.py"
    more.write_text(file.read_text(encoding="utf-8") + "\ndef plain():\n    return load_scenario('a3')\n"
                    "\ndef _hidden():\n    pass\n", encoding="utf-8")
    assert f"there are {more}:plain" in braid("run", f"{more}:mine").err
    assert "rename _hidden" in braid("run", f"{more}:_hidden").err
    assert "load_scenario is imported" in braid("run", f"{more}:load_scenario").err


def test_a_typo_in_a_users_own_program_is_shown_where_it_is(braid: Braid, tmp_path: Path) -> None:
    (tmp_path / "typo.py").write_text(
        "from dataclasses import replace\nfrom simulator.study.library import load_scenario\n"
        "def program(npu, case):\n    npu.lanch('one')\n"
        "def mine():\n    parent = load_scenario('a3_prefill:dp')\n"
        "    return parent.variant(workload=parent.workload._replace(program=program))\n")
    done = braid("run", f"{tmp_path / 'typo.py'}:mine")
    assert done.is_one_clear_message(1), done
    assert "typo.py:4: AttributeError" in done.err
    assert "defect" not in done.err


def test_show_says_what_an_expected_value_is_a_ratio_to(braid: Braid) -> None:
    assert "/ a3_prefill:dp" in braid("show", MICROBATCH).out


def test_a_file_of_the_library_alone_lists_its_own_scenarios(braid: Braid) -> None:
    done = braid("run", "a2_prefill")
    assert "a2_prefill:convert" in done.err
    assert "a3_prefill:dp" not in done.err


def test_a_machine_too_small_is_refused_with_the_ledger(braid: Braid) -> None:
    done = braid("run", DP, "--set", "machine.chip.hbm.capacity=8 GiB")
    assert done.is_one_clear_message(1), done
    assert "weights" in done.err
    assert "GiB" in done.err


BROKEN = {
    "syntax": ("def mine(:\n", "SyntaxError"),
    "raises": ("def mine():\n    return 1 / 0\n", "ZeroDivisionError"),
    "no scenario": ("def mine():\n    return 3\n", "returns int, not a Scenario"),
    "import": ("import no_such_module\ndef mine(): ...\n", "no_such_module"),
    "fields": ("from simulator.study.library import load_scenario\ndef mine():\n"
               "    return load_scenario('a3_prefill:dp').variant(cards=-1, colour='red')\n", "cards"),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_users_own_file_that_is_wrong(braid: Braid, tmp_path: Path, mistake: str) -> None:
    text, said = BROKEN[mistake]
    (tmp_path / f"{mistake.replace(' ', '_')}.py").write_text(text)
    done = braid("run", f"{tmp_path / mistake.replace(' ', '_')}.py:mine")
    assert done.is_one_clear_message(2), done
    assert said in done.err
    assert "http" not in done.err


def test_ladder_shows_a_row_per_step(braid: Braid) -> None:
    small = ("--set", "model.shapes.layers=5")
    rows = json.loads(braid("ladder", "trt_min_latency:base", *small, "--json").out)
    assert rows[0]["step"] == "trt_min_latency:base"
    assert len(rows) == 16
    assert rows[-1]["throughput_tok_s"] > rows[0]["throughput_tok_s"]
    shown = braid("ladder", "trt_min_latency:base", *small, "--metrics", "tpot_ms").out
    assert "three MTP draft tokens" in shown
    assert braid("ladder", DP).code == 2
    assert braid("ladder", "trt_min_latency:base", *small, "--metrics", "nonsense").code == 2


def test_sweep_shows_a_row_per_value(braid: Braid) -> None:
    done = braid("sweep", DP, "batch.requests", "32", "64", *SMALL[:2], "--metrics", "latency_ms", "--json")
    assert done.code == 0, done.err
    first, second = done.json
    assert set(first) == {"batch.requests", "latency_ms"}
    assert first["latency_ms"] < second["latency_ms"]
    assert "64" in braid("sweep", DP, "batch.requests", "64", *SMALL[:2]).out


@pytest.mark.parametrize("command", [("run", DP), ("compare", DP, MICROBATCH)], ids=["run", "compare"])
@pytest.mark.parametrize("target", ["file", "file/out", "missing/out", "/proc/out"])
def test_an_impossible_output_folder_is_refused_before_simulating(
    braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], target: str
) -> None:
    from simulator.study import simulate as simulation

    def simulate(*_: object, **__: object) -> None:
        raise AssertionError("simulated before looking at the folder")

    monkeypatch.setattr(simulation, "simulate", simulate)
    (tmp_path / "file").touch()
    done = braid(*command, "--out", tmp_path / target)
    assert done.is_one_clear_message(2), done
    assert "cannot write to" in done.err


@pytest.mark.parametrize("command", ["validate", "bench"])
def test_reports_are_refused_before_work_too(
    braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "results").touch()
    monkeypatch.chdir(tmp_path)
    done = braid(command)
    assert done.is_one_clear_message(2), done


def test_parallel_validation_gives_the_same_rows(braid: Braid) -> None:
    assert braid("validate", "contention", "--json", "--jobs", "2") == braid("validate", "contention", "--json")


def test_a_defect_is_one_message_and_debug_shows_where(braid: Braid, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.study import library

    def break_down() -> None:
        raise KeyError("lost")

    monkeypatch.setattr(library, "scenario_names", break_down)
    done = braid("list")
    assert done.is_one_clear_message(1), done
    monkeypatch.setenv("BRAID_DEBUG", "1")
    assert "Traceback" in braid("list").err


def test_machines_are_listed_with_their_parts_and_parts_are_not(braid: Braid) -> None:
    listed = {row["name"]: row for row in braid("machines", "--json").json}
    assert {"atlas_a3", "dgx_h100", "gb200_nvl72"} <= set(listed)
    assert "h100_sxm" not in listed
    assert {"h100_sxm", "cx7_400g"} <= set(listed["dgx_h100"]["extends"])
    assert (listed["dgx_h100"]["ranks"], listed["atlas_a3"]["extends"]) == (512, [])
    text = braid("machines").out
    assert len(text.splitlines()) == len(listed)
    assert "(h20_node, ndr_400g, cx7_400g, gdr_proxy, h100_sxm.vllm" in text
