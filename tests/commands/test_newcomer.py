"""What somebody who starts with Braid gets wrong in files of their own, and what they are told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.study import studies
from simulator.study.library import load_scenario
from simulator.study.sweep import StudyTable
from tests.commands.processes import environment
from tests.conftest import ROOT, Outcome

Braid = Callable[..., Outcome]
DP = "a3_prefill:dp"
OWN = """
from simulator.study.library import load_scenario
from simulator.model import ops
from simulator.study.scenario import Expected, Workload


def program(npu, case):
    {program}


WORKLOAD = Workload(
    program=program,
    groups=lambda case: {groups},
    coordinates=lambda case, rank: {{}},
    memory=lambda case: {memory},
    measures=lambda case, seconds: {measures},
)


def mine():
    scenario = load_scenario("a3_prefill:dp").variant(title="mine", workload=WORKLOAD, expected=())
    return scenario.variant(expected=({expected}))
"""
RIGHT = {
    "program": "npu.launch(ops.gemm(64, 64, 64), 'a')",
    "groups": "{'world': [tuple(range(case.ranks))]}",
    "memory": "[('weights', 'weights', 8)]",
    "measures": "{'latency_ms': seconds * 1e3}",
    "expected": "",
}


@pytest.fixture
def own(braid: Braid, tmp_path: Path) -> Callable[..., Outcome]:
    """Runs a scenario of one's own, right but for what is given."""

    def run(*words: str, **wrong: str) -> Outcome:
        file = tmp_path / f"own{len(list(tmp_path.iterdir()))}.py"
        file.write_text(OWN.format(**{**RIGHT, **wrong}))
        return braid("run", f"{file}:mine", *words)

    return run


def test_a_file_of_ones_own_runs(own: Callable[..., Outcome]) -> None:
    assert own().code == 0


def test_a_program_that_calls_braid_wrongly_is_shown_by_its_own_line(own: Callable[..., Outcome]) -> None:
    for program in ("npu.wait(None)", "npu.launch(ops.gemm(64, 64, 64))", "npu.launch(case.knobs.colour, 'a')"):
        done = own(program=program)
        assert done.is_one_clear_message(1), done
        assert ".py:8: " in done.err
        assert "defect" not in done.err


@pytest.mark.parametrize(("wrong", "said"), [
    ({"program": "npu.group('wrld')"}, "no group 'wrld' in this layout (did you mean 'world'?): there are world"),
    ({"program": "npu.group('world')", "groups": "{}"}, "no group 'world' in this layout: there are none"),
    ({"program": "npu.launch(ops.gemm(-5, 64, 64), 'a')"}, "gemm_int8: a size is negative"),
    ({"memory": "[('weights', 8)]"}, "memory: ('weights', 8) is not (name, category, bytes)"),
    ({"memory": "[('weights', 'wights', 8)]"}, "category is 'wights': one of weights"),
    ({"measures": "{'latency_ms': 'long'}"}, "measures: latency_ms is 'long', not a number"),
    ({"measures": "None"}, "measures: got None, not names with numbers"),
    ({"expected": "Expected(id='x', metric='latency_ms', value=1, role='predict', against='a3_prefill:dq'),"},
     "expected value x: 'a3_prefill:dq' is no scenario (did you mean 'a3_prefill:dp'?)"),
])
def test_what_a_workload_or_a_scenario_says_wrongly(
    own: Callable[..., Outcome], wrong: dict[str, str], said: str
) -> None:
    done = own(**wrong)
    assert done.is_one_clear_message(2), done
    assert said in done.err


@pytest.mark.parametrize(("words", "said"), [
    ("metric='latncy_ms', value=1, role='predict'", "x: no metric 'latncy_ms' (did you mean 'latency_ms'?)"),
    ("metric='tokens', value=1, role='fit'", "x: no metric 'tokens'"),
])
def test_an_expected_value_of_no_metric_is_said(own: Callable[..., Outcome], words: str, said: str) -> None:
    expected = f"Expected(id='x', {words}),"
    done = own(expected=expected)
    assert done.code == 0
    assert said in done.out
    assert said in own("--json", expected=expected).err


def test_an_expected_ratio_to_what_has_no_such_metric_is_said(own: Callable[..., Outcome]) -> None:
    done = own(measures="{'own_ms': seconds}",
               expected="Expected(id='x', metric='own_ms', value=1, role='fit', against='contention:staging'),")
    assert done.code == 0, done
    assert "x: contention:staging has no metric 'own_ms'" in done.out


@pytest.mark.parametrize(("against", "setting", "why"), [
    ("a3_prefill:dp", "machine.chip.hbm.capacity=8 GiB", "the fullest rank does not fit: "),
    ("contention:staging", "batch.requests=32", "--set batch.requests: no such setting"),
])
def test_an_expected_ratio_to_what_cannot_be_changed_so_is_said_in_a_line(
    own: Callable[..., Outcome], against: str, setting: str, why: str
) -> None:
    expected = f"Expected(id='x', metric='latency_ms', value=1, role='fit', against='{against}'),"
    done = own("--json", "--set", setting, expected=expected)
    assert done.code == 0, done
    assert f"warning: expected x: {against} cannot run so: {why}" in done.err
    assert all(line.startswith("warning: ") for line in done.err.splitlines()), "not the lines below the first"


def test_files_in_the_same_folder_can_be_imported(
    braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sizes_of_mine.py").write_text("LAYERS = '4'\n")
    (tmp_path / "study_of_mine.py").write_text(
        "from sizes_of_mine import LAYERS\nfrom simulator.study.library import load_scenario\n"
        "def mine():\n    return load_scenario('a3_prefill:dp').replace({'model.shapes.layers': LAYERS})\n")
    monkeypatch.chdir(ROOT)
    assert braid("show", f"{tmp_path}/study_of_mine.py:mine").code == 0


def test_what_a_file_of_ones_own_replaces_is_a_change_like_any(braid: Braid, tmp_path: Path) -> None:
    (tmp_path / "few.py").write_text(
        "from simulator.study.library import load_scenario\n"
        "def mine():\n    return load_scenario('contention:staging').replace({'cards': '8'})\n")
    done = braid("run", f"{tmp_path}/few.py:mine", "--json")
    assert done.json["changes"] == {"cards": "8"}
    again = braid("run", done.json["scenario"], "--json", *(word for key, text in done.json["changes"].items()
                                                           for word in ("--set", f"{key}={text}")))
    assert again == done
    assert "by `replace` in a file of your own" in " ".join(braid("run", "--help").out.replace("│", " ").split())


def test_files_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    for folder, layers in (("a", 4), ("b", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "common_of_mine.py").write_text(f"LAYERS = '{layers}'\n")
        (tmp_path / folder / f"study_{folder}.py").write_text(
            "from common_of_mine import LAYERS\nfrom simulator.study.library import load_scenario\n"
            "def mine():\n    return load_scenario('a3_prefill:dp').replace({'model.shapes.layers': LAYERS})\n")
    mine = [load_scenario(f"{tmp_path}/{folder}/study_{folder}.py:mine") for folder in "ab"]
    assert [one.changes["model.shapes.layers"] for one in mine] == ["4", "5"]


def test_a_file_that_a_program_of_ones_own_does_not_find_is_said_with_its_line(own: Callable[..., Outcome]) -> None:
    done = own(program="open('nowhere.txt')")
    assert done.is_one_clear_message(1), done
    assert "own0.py:8: cannot read or write 'nowhere.txt'" in done.err, done


def test_arithmetic_of_ones_own_is_not_the_clocks(own: Callable[..., Outcome]) -> None:
    done = own(program="2.0 ** 5000")
    assert "own0.py:8: OverflowError" in done.err, done


def test_a_value_that_is_wrong_is_said_with_the_line_that_it_is_in(own: Callable[..., Outcome]) -> None:
    done = own(program="int('many')")
    assert done.is_one_clear_message(2), done
    assert "own0.py:mine: " in done.err
    assert "own0.py:8: invalid literal for int() with base 10: 'many'" in done.err


@pytest.mark.parametrize("wrong", [
    {"program": "{}['lost']"}, {"memory": "{}['lost']"}, {"groups": "{}['lost']"}, {"measures": "{}['lost']"}])
def test_an_error_of_ones_own_is_said_with_its_line(own: Callable[..., Outcome], wrong: dict[str, str]) -> None:
    done = own(**wrong)
    assert done.is_one_clear_message(1), done
    assert "KeyError: 'lost'" in done.err
    assert "own0.py:" in done.err
    assert "defect" not in done.err


def beside(folder: Path, program: str) -> str:
    """A scenario whose program lies in another file of the same folder, on line 2."""
    (folder / "program_of_mine.py").write_text(f"def program(npu, case):\n    {program}\n")
    (folder / "study.py").write_text(
        "from program_of_mine import program\nfrom simulator.study.library import load_scenario\n"
        "def mine():\n    parent = load_scenario('a3_prefill:dp')\n"
        "    return parent.variant(workload=parent.workload._replace(program=program))\n")
    return f"{folder}/study.py:mine"


def test_an_error_in_a_file_beside_is_said_with_its_line(braid: Braid, tmp_path: Path) -> None:
    done = braid("run", beside(tmp_path, "npu.lanch('one')"))
    assert done.is_one_clear_message(1), done
    assert "program_of_mine.py:2: AttributeError" in done.err
    assert "defect" not in done.err


def test_an_error_without_words_has_a_line_too(own: Callable[..., Outcome]) -> None:
    done = own(program="assert case.ranks == 3")
    assert done.err.endswith("own0.py:8: AssertionError\n")


@pytest.mark.parametrize(("text", "said"), [
    ("x = 1\ny = x / 0\ndef mine(): ...\n", "broken.py:2: ZeroDivisionError: division by zero"),
    ("def mine():\n    return 1 / 0\n", "broken.py:2: ZeroDivisionError: division by zero"),
    ("x = 1\nprint(y)\ndef mine(): ...\n", "broken.py:2: NameError: name 'y' is not defined"),
    ("from simulator.study.library import load_scenario\ndef mine():\n"
     "    return load_scenario('a3_prefill:dp').replace({'model.shapes.layrs': '4'})\n",
     "broken.py:3: deepseek_r1: shapes.layrs: got '4'"),
    ("import sys\nsys.exit('no data')\ndef mine(): ...\n", "broken.py:2: SystemExit('no data'): "),
    ("import sys\ndef mine():\n    sys.exit(0)\n", "broken.py:3: SystemExit(0): "),
])
def test_what_goes_wrong_while_a_file_is_read_has_a_line(braid: Braid, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    done = braid("run", f"{tmp_path}/broken.py:mine", "--json")
    assert done.is_one_clear_message(2), done
    assert said in done.err
    assert "defect" not in done.err


LEAVING = "__import__('sys').exit()"


@pytest.mark.parametrize("wrong", [{"program": LEAVING}, {"memory": LEAVING}, {"measures": LEAVING}])
def test_a_program_that_leaves_the_process_is_refused(own: Callable[..., Outcome], wrong: dict[str, str]) -> None:
    done = own(**wrong)
    assert done.is_one_clear_message(2), done
    assert "own0.py:" in done.err
    assert "SystemExit(None): a scenario or program must not end the process" in done.err


@pytest.mark.parametrize(("words", "code", "said"), [
    ("{}['lost']", 1, "KeyError: 'lost'"), ("raise SystemExit(4)", 2, "SystemExit(4): a scenario or program must not")])
def test_what_a_live_host_of_ones_own_raises_has_its_line(
    braid: Braid, tmp_path: Path, words: str, code: int, said: str
) -> None:
    (tmp_path / "host.py").write_text(
        "from simulator.study.library import load_scenario\n"
        f"def live(host, case):\n    yield host.env.timeout(5)\n    {words}\n"
        "def mine():\n    parent = load_scenario('pplx:efa_ep16')\n"
        "    return parent.variant(workload=parent.workload._replace(live=live), expected=())\n")
    done = braid("run", f"{tmp_path}/host.py:mine")
    assert done.is_one_clear_message(code), done
    assert f"host.py:4: {said}" in done.err


def test_a_sweep_goes_on_after_a_program_that_leaves_the_process(braid: Braid, tmp_path: Path) -> None:
    words = "npu.launch(__import__('simulator.model.ops').model.ops.gemm(64, 64, 64), 'a')\n"
    words += "    if case.batch.requests == 32: raise SystemExit(3)"
    done = braid("sweep", beside(tmp_path, words), "batch.requests", "32", "64", "--metrics", "latency_ms", "--json")
    assert done.code == 1
    assert "program_of_mine.py:3: SystemExit(3)" in json.loads(done.out)[0]["reason"]
    assert json.loads(done.out)[1]["latency_ms"] > 0


@pytest.mark.parametrize(("loop", "last"), [
    ("npu.launch(ops.gemm(64, 64, 64), 'again')", "100 launches and host waits, the last one 'again' (layer -1, "
                                                 "stream 'compute'), and no more are allowed"),
    ("npu.host_wait(one)", "100 launches and host waits, the last one 'one' (layer -1, stream 'compute'), "
                           "and no more are allowed"),
])
def test_a_program_that_never_ends_is_refused_where_it_is(own: Callable[..., Outcome], loop: str, last: str) -> None:
    done = own(program="npu.max_tasks = 100\n    one = npu.launch(ops.gemm(64, 64, 64), 'one')\n    while True:\n"
                       f"        {loop}")
    assert done.is_one_clear_message(2), done
    assert f"own0.py:11: rank 0: {last}: does this program end? If it does, it can set npu.max_tasks\n" in done.err


def test_ctrl_c_while_a_program_is_recorded_is_no_error_of_it(own: Callable[..., Outcome]) -> None:
    done = own(program="raise KeyboardInterrupt")
    assert (done.code, done.out, done.err) == (130, "", "interrupted\n")


def test_what_files_and_programs_print_goes_to_stderr(braid: Braid, tmp_path: Path) -> None:
    file = tmp_path / "loud.py"
    right = {**RIGHT, "program": "print('recorded'); npu.launch(ops.gemm(64, 64, 64), 'a')",
             "measures": "print('measured') or {'latency_ms': seconds * 1e3}",
             "expected": f"Expected(id='x', metric='latency_ms', value=1, role='fit', against='{file}:other'),"}
    file.write_text(f"{OWN.format(**right)}    \nprint('read')\ndef other():\n    print('called')\n"
                    "    return load_scenario('a3_prefill:dp').variant(title='other', workload=WORKLOAD)\n"
                    "def steps():\n    from simulator.study.scenario import LadderStep\n"
                    "    return mine().variant(expected=(), ladder=(LadderStep(title='a', changes={'cards': '8'}),))\n")
    for words in (("run", f"{file}:mine"), ("sweep", f"{file}:other", "cards", "8", "16", "--metrics", "latency_ms"),
                  ("ladder", f"{file}:steps", "--metrics", "latency_ms")):
        done = braid(*words, "--json")
        assert done.code == 0, done
        assert json.loads(done.out)
        assert "recorded\n" in done.err
        assert "measured\n" in done.err
    for words in (("show", f"{file}:mine"), ("show", f"{file}:mine", "--program"),
                  ("compare", f"{file}:mine", f"{file}:other")):
        done = braid(*words)
        assert done.code == 0, done
        assert "recorded\n" in done.err
        assert not {"read", "called", "recorded", "measured"} & set(done.out.splitlines())


def test_ranks_that_do_not_divide_are_said_before_memory_that_is_short(own: Callable[..., Outcome]) -> None:
    for groups in ("{'pairs': [(0, 1), (2,)]}", "{'pairs': blocks(case.ranks, 3, 'layout.tensor_parallel')}"):
        groups = groups.replace("blocks", "__import__('simulator.model.layout').model.layout.blocks")
        done = own(groups=groups, memory="[('weights', 'weights', 1e15)]")
        assert done.is_one_clear_message(2), done
        assert "does not fit" not in done.err


@pytest.mark.parametrize(("name", "setting", "said"), [
    ("cm384_decode:decode_even", "layout.tensor_parallel=3", "128 heads do not divide over 3 ranks"),
    ("pplx_decode:ep16", "cards=5", "256 experts do not divide over 5 ranks"),
    ("a2_decode:even", "layout.tensor_parallel=3", "32 ranks do not divide into groups of 3 (layout.tensor_parallel)"),
])
def test_what_the_library_does_not_divide_is_said_before_memory_too(
    braid: Braid, name: str, setting: str, said: str
) -> None:
    words = ("run", name, "--set", "machine.chip.hbm.capacity=1 GiB")
    done = braid(*words, "--set", setting)
    assert done.is_one_clear_message(2), done
    assert done.err == f"Error: {name}: {said}\n"
    assert "the fullest rank does not fit" in braid(*words).err


EXTENDS = {
    "itself": ("extends = './itself.toml'\n", "extends: leads back to"),
    "nobody": ("extends = 'atlas_a33'\n", "nobody.toml: extends: no machine or part 'atlas_a33' (did you mean"),
    "number": ("extends = 3\n", "number.toml: extends: got 3: the name of a machine or part, the path of a .toml"),
}


@pytest.mark.parametrize("name", EXTENDS)
def test_a_machine_that_extends_what_cannot_be(braid: Braid, tmp_path: Path, name: str) -> None:
    text, said = EXTENDS[name]
    (tmp_path / f"{name}.toml").write_text(text)
    done = braid("show", DP, "--set", f"machine={tmp_path / name}.toml")
    assert done.is_one_clear_message(2), done
    assert said in done.err


def test_a_machine_extends_its_neighbour_wherever_it_is_used(braid: Braid, tmp_path: Path) -> None:
    number = '{ value = 3.2, unit = "TB/s", kind = "assumed", source = "a guess" }'
    (tmp_path / "base.toml").write_text(f"extends = 'atlas_a3'\n[chip.hbm]\npeak = {number}\n")
    (tmp_path / "mine.toml").write_text("extends = './base.toml'\nname = 'mine'\n")
    assert "3.2 TB/s" in braid("show", DP, "--set", f"machine={tmp_path}/mine.toml").out


def test_a_file_named_without_its_suffix_is_found_out(
    braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_machine.toml").write_text("extends = 'atlas_a3'\n")
    assert "did you mean './my_machine.toml'?" in braid("run", DP, "--set", "machine=my_machine").err


@pytest.mark.parametrize(("setting", "code", "said"), [
    ("batch.requests=100000000000", 2, "must be less than or equal to"),
    ("batch.requests=1000000", 1, "the fullest rank does not fit"),
    ("routing.skew=inf", 2, "must be a finite number"),
    ("batch.prompt_lengths=[1,2", 2, "must be a list, as in 1024,2048 (now none)"),
    ("batch.requests=0", 2, "--set batch.requests: got '0': must be greater than 0 (now 64)"),
    ("machine.chip.hbm.peak=1e-30 B/s", 1, "lasts longer than the 106 days that the clock can count"),
])
def test_very_large_and_very_small(braid: Braid, setting: str, code: int, said: str) -> None:
    done = braid("run", DP, "--set", setting)
    assert done.is_one_clear_message(code), done
    assert said in done.err


@pytest.mark.parametrize(("key", "meant"), [
    ("chip.hbm.peak", "'machine.chip.hbm.peak'"),
    ("hbm.peak", "'machine.chip.hbm.peak'"),
    ("chip.hbm.peek", "'machine.chip.hbm.peak'"),
    ("machines.chip.hbm.peak", "'machine.chip.hbm.peak'"),
    ("layers", "'model.shapes.layers'"),
    ("engine", "'knobs.engine'"),
    ("skew", "'routing.skew'"),
    ("batch.request", "'batch.requests'"),
    ("knob.engine", "'knobs.engine'"),
])
def test_a_key_without_its_beginning_is_found_out(braid: Braid, key: str, meant: str) -> None:
    done = braid("show", DP, "--set", f"{key}=1")
    assert done.is_one_clear_message(2), done
    assert f"--set {key}: no such setting (did you mean {meant}?); there are " in done.err


@pytest.mark.parametrize("key", ["knobs.fused_top_k", "startup", "colour"])
def test_a_key_that_could_be_many_or_none_has_no_guess(braid: Braid, key: str) -> None:
    done = braid("show", DP, "--set", f"{key}=1")
    assert done.is_one_clear_message(2), done
    assert f"--set {key}: no such setting; there are " in done.err


def test_a_wrong_key_beside_a_wrong_machine_is_no_defect(braid: Braid) -> None:
    done = braid("show", DP, "--set", "machine=atlas_a33", "--set", "hbm.peak=1 TB/s")
    assert done.is_one_clear_message(2), done
    assert "did you mean 'atlas_a3'" in done.err
    assert "--set hbm.peak: no such setting" in done.err


@pytest.mark.parametrize(("name", "settings", "said"), [
    ("a3_prefill:microbatch", ("batch.requests=32",), "batch.requests gives 32, and 64 are one for each of every rank"),
    ("a3_prefill:microbatch", ("batch.prompt_lengths=4096,512",), "batch.prompt_lengths gives 2, and 64 are"),
    ("a3_prefill:sp_tp_sp", ("batch.requests=1",), "batch.requests gives 1, and 2 are one for each"),
    ("pplx_decode:ep32_two", ("batch.per_rank=1",), "batch.per_rank is 1: set it to 2 or more"),
])
def test_a_micro_batch_without_requests_is_refused(
    braid: Braid, name: str, settings: tuple[str, ...], said: str
) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    done = braid("run", name, *words)
    assert done.is_one_clear_message(2), done
    assert done.err.startswith(f"Error: {name}: ")
    assert said in done.err


def test_one_request_more_and_some_rank_has_two_micro_batches(braid: Braid) -> None:
    assert braid("show", "a3_prefill:microbatch", "--set", "batch.requests=33").code == 0
    assert braid("show", "a3_prefill:dp", "--set", "batch.requests=1").code == 0


@pytest.mark.parametrize("more", [(), ("--no-record",)], ids=["recorded", "not recorded"])
def test_an_expected_ratio_to_what_cannot_run_so_is_said(braid: Braid, more: tuple[str, ...]) -> None:
    words = ("a3_prefill:sp_tp_sp", "--set", "batch.requests=2", *more)
    why = "expected a3.prefill.sp: a3_prefill:microbatch cannot run so: micro-batch 2 of 2 has no prompts"
    done = braid("run", *words)
    assert (done.code, done.err) == (0, ""), done
    assert why in " ".join(done.out.split())
    done = braid("run", *words, "--json")
    assert why in done.err
    (row,) = done.json["expected"]
    assert (row["simulated"], row["error"]) == (None, None)


def test_a_request_per_die_is_one_micro_batch(braid: Braid) -> None:
    for requests, exchanges in ((2, 1), (3, 2)):
        settings = (f"batch.per_card={requests}", "model.shapes.layers=4", "batch.draft_tokens=0")
        words = [word for setting in settings for word in ("--set", setting)]
        program = braid("show", "cm384_decode:decode_even", "--program", *words).out
        assert program.count("dispatch.write") == exchanges


@pytest.mark.parametrize("name", ["point_to_point:efa", "pplx_rl:update"])
def test_a_transfer_with_nobody_to_receive_it(braid: Braid, name: str) -> None:
    done = braid("run", name, "--set", "cards=1")
    assert done.is_one_clear_message(2), done
    assert "set cards to" in done.err


def test_what_show_calls_none_can_be_set_so(braid: Braid) -> None:
    done = braid("show", DP, "--set", "batch.prompt_lengths=none")
    assert done.code == 0, done.err
    assert "batch.prompt_lengths    none" in done.out


def test_what_a_run_refuses_names_the_scenario(braid: Braid) -> None:
    for setting in ("cards=100000", "layout.expert_parallel=7"):
        assert braid("run", DP, "--set", setting).err.startswith(f"Error: {DP}: ")


def test_a_sweep_goes_on_after_a_value_that_cannot_run(braid: Braid) -> None:
    words = ("sweep", "a3_prefill:dp", "batch.requests", "32", "4096", "64", "--set", "model.shapes.layers=4")
    done = braid(*words, "--metrics", "latency_ms")
    assert done.code == 1
    assert [line.split()[0] for line in done.out.splitlines()[2:] if line] == ["32", "4096", "64"]
    assert done.out.splitlines()[3].split() == ["4096", "-"]
    assert done.err.startswith("Error: batch.requests = 4096: a3_prefill:dp: the fullest rank does not fit")
    rows = json.loads(braid(*words, "--json").out)
    assert rows[1]["latency_ms"] is None
    assert "does not fit" in rows[1]["reason"]
    assert "reason" not in rows[0]
    assert braid(*words[:3], "4096").code == 1


def test_a_study_of_the_library_that_cannot_run_everywhere_says_so() -> None:
    rows = ("1", (2.0,)), ("2", (None,))
    table = StudyTable("t", "k", (("s", "m"),), rows, reasons=(("2", "does not fit\n  ledger"),))
    lines = "\n".join(studies.markdown([table]))
    assert "2 did not run: does not fit" in lines
    assert "ledger" not in lines


def test_a_sweep_needs_a_metric(braid: Braid) -> None:
    assert braid("sweep", DP, "batch.requests", "32", "--metrics", " , ").is_one_clear_message(2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_no_defect() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "simulator", "list"], cwd=ROOT, env=environment(), stdout=full,
                              stderr=subprocess.PIPE, encoding="utf-8", check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: cannot read or write: No space left on device\n")


def test_no_memory_left_is_no_defect(braid: Braid, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.study import library

    def run_out() -> None:
        raise MemoryError

    monkeypatch.setattr(library, "scenario_names", run_out)
    done = braid("list")
    assert done.is_one_clear_message(1), done
    assert done.err == "Error: out of memory: this needs more than the computer has\n"
