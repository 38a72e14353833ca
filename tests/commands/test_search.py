"""`braid search`: what it prints and writes, how it goes on, what it refuses; a search that is killed loses nothing."""

from __future__ import annotations

import json
import math
import random
import re
import shlex
import signal
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.search import kept, search
from simulator.search.answer import FILE, as_object, read_answer
from simulator.search.files import POINTS, SERVICES
from tests.commands.processes import MAIN, left_by, started, wait_until
from tests.conftest import Outcome

WORDS = ["search", "--model", "qwen3_8b", "--machine", "dgx_h100", "--isl", "512", "--osl", "64", "--fix", "stack=vllm",
         "--fix", "tokens=8192", "--vary", "tp=1,2", "--serve", "0"]  # fmt: skip
KEYS = {"version", "ask", "objective", "front", "top", "bounds", "layouts", "simulated", "dropped", "kept", "refused",
        "reasons", "notes", "dollars_per_gpu_hour", "requests"}  # fmt: skip


def run(*words: object) -> Outcome:
    """One command line in this process, in a fixture of this module."""
    from simulator.commands.main import main

    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return Outcome(int(end.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("search") / "out"


@pytest.fixture(scope="module")
def done(folder: Path) -> Outcome:
    """The search that the tests of this module look at."""
    return run(*WORDS, "--gpus", "1..2", "--out", folder, "--json", "--emit", "vllm", "--price", "3")


def test_json_has_all_of_the_answer_but_the_points(done: Outcome) -> None:
    assert done.code == 0, done.err
    assert set(done.json) == KEYS | {"launch"}
    assert done.json["launch"][1].startswith("vllm serve Qwen/Qwen3-8B --tensor-parallel-size 1")
    top = done.json["top"]
    assert [one["gpus"] for one in top] == [2, 2, 2]
    rates = [one["tok_s_per_gpu"] for one in top]
    assert rates == sorted(rates, reverse=True)
    assert all(one["tpot_ms"] <= 50 and one["ttft_ms"] <= 2000 for one in top)
    users = [one["tok_s_per_user"] for one in done.json["front"]]
    assert users == sorted(users, reverse=True)


def test_layouts_are_simulated_dropped_or_refused_by_reason(done: Outcome) -> None:
    found = done.json
    assert found["layouts"] == found["simulated"] + found["dropped"] + sum(found["refused"].values())
    assert set(found["refused"]) == set(found["reasons"]) == {"mesh"}


def test_files_hold_what_was_found(done: Outcome, folder: Path) -> None:
    from pyarrow import parquet

    found = read_answer(folder)
    written = json.loads((folder / FILE).read_text(encoding="utf-8"))
    assert {name: value for name, value in written.items() if name != "points"} == {
        name: value for name, value in done.json.items() if name != "launch"}
    assert json.loads(json.dumps(as_object(found))) == written
    table = parquet.read_table(folder / POINTS)
    assert table.num_rows == len(found.points) > len(found.front)
    assert {"stack", "mesh", "settings", "engines", "prefill", "gpus", "tpot_ms", "on_front"} <= {*table.column_names}
    assert sum(table["on_front"].to_pylist()) == len(found.front)
    assert {path.name for path in folder.iterdir()} == {FILE, POINTS, SERVICES, kept.TABLE, kept.JOURNAL, kept.LOCK}


def test_its_services_are_the_best(done: Outcome, folder: Path) -> None:
    from simulator.serving.library import load_service

    found = read_answer(folder)
    for place, one in enumerate(found.top, 1):
        service = load_service(f"{folder / SERVICES}:top_{place}")
        assert service.gpus == one.gpus
        assert (service.prefill is None) == (one.deployment.prefill is None)
        assert service.load.concurrency == one.concurrency


@pytest.mark.parametrize(("change", "said"), [
    ({"objective": "GB"}, "ValueError: objective is 'GB': one of tok_s_per_gpu"), ({"points": [1]}, "points.0: "),
    ({"top": None}, "top: "), ({"layouts": 1e400}, "layouts: "), ({"refused": {"a": "b"}}, "refused.a: "),
    ({"ask": {}}, "ask.model"), ({"dollars_per_gpu_hour": "</script>"}, "dollars_per_gpu_hour: "),
])  # fmt: skip
def test_an_answer_that_was_changed_is_refused_by_its_key(done: Outcome, folder: Path, tmp_path: Path,
                                                          change: dict[str, Any], said: str) -> None:
    whole = json.loads((folder / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(whole | change))
    with pytest.raises(InputError, match=f"of this version writes: {re.escape(said)}.*; search again"):
        read_answer(tmp_path)
    for key, value in (("tok_s_per_gpu", 0.0), ("tpot_ms", math.inf)):
        (tmp_path / FILE).write_text(json.dumps(whole | {"points": [whole["points"][0] | {key: value}]}))
        with pytest.raises(InputError, match=r"deployment 0: times that are finite"):
            read_answer(tmp_path)


def test_a_second_run_simulates_nothing(done: Outcome, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "measured", pytest.fail)
    again = run(*WORDS, "--gpus", "1..2", "--out", folder, "--json").json
    assert again["kept"] == again["simulated"] == done.json["simulated"]
    assert [again[name] for name in ("top", "front", "refused")] == [done.json[name] for name in
                                                                     ("top", "front", "refused")]  # fmt: skip
    other = run(*WORDS, "--gpus", "1..2", "--out", folder, "--json", "--objective", "tok_s_per_user")
    rates = [one["tok_s_per_user"] for one in other.json["top"]]
    assert rates == sorted(rates, reverse=True) != [one["tok_s_per_user"] for one in done.json["top"]]


def test_what_is_printed_can_be_run_and_gives_what_was_found(done: Outcome, folder: Path) -> None:
    """Of the best, alone in its layout and apart: TPOT of a decode step, and of what is served."""
    printed = run(*WORDS, "--gpus", "1..2", "--out", folder)
    commands = [shlex.split(line) for line in printed.out.replace(" \\\n", "").splitlines() if line.startswith("braid")]
    found = read_answer(folder)
    assert len(commands) == 3 * len(found.top)
    assert "GPUs of dgx_h100, 512 tokens in and 64 out" in printed.out
    for place, one in enumerate(found.top):
        served, decode, _ = commands[3 * place:3 * place + 3]
        if one.deployment.prefill is not None:
            assert served[2:] == [f"{folder / SERVICES}:top_{place + 1}"]
            step = run(*decode[1:], "--json")
            assert step.code == 0, step.err
            assert step.json["metrics"]["tpot_ms"] == pytest.approx(one.tpot_ms, rel=0.02)


def test_lines_of_deployments_that_were_served_say_what_was_served(folder: Path, done: Outcome) -> None:
    words = [*WORDS[:-2], "--serve", "1", "--gpus", "1", "--fix", "tp=1", "--fix", "mode=together", "--seed", "3",
             "--tpot", "8"]  # fmt: skip
    printed = run(*words, "--out", folder.with_name("served"))
    found = read_answer(folder.with_name("served"))
    (line,) = (line for line in printed.out.splitlines() if line.startswith("braid serve"))
    again = run(*shlex.split(line)[1:], "--json")
    assert again.code == 0, again.err
    assert found.top[0].served
    steady = again.json["steady_state_metrics"]
    assert steady["inter_token_latency"]["avg"] == pytest.approx(found.top[0].tpot_ms, rel=0.02)
    assert steady["output_token_throughput_per_gpu"]["avg"] == pytest.approx(found.top[0].tok_s_per_gpu, rel=0.02)


WRONG = [
    ("--gpus 0", "--gpus 0: a number of GPUs, or FROM..TO"), ("--gpus 64..8", "--gpus 64..8: a number of GPUs"),
    ("--fix tpp=1", "--fix tpp=1: tpp is no axis of a search (did you mean 'tp'?)"),
    ("--fix tp=x", "--fix tp=x: tp is 'x': a whole number of at least 1 would be right"),
    ("--vary tp=1,0", "--vary tp=1,0: tp is '0': a whole number of at least 1"),
    ("--fix tp=1" + "0" * 20, "a whole number of at least 1 and at most 1,000,000 would be right"),
    ("--gpus 1" + "0" * 20, "a number of GPUs, or FROM..TO, as 16 or 8..64, at most 1,000,000"),
    ("--fix ep=every", "ep is 'every': a whole number of at least 1, or all, would be right"),
    ("--fix cards=4", "an engine has more cards than there are GPUs"),
    ("--fix mode=both", "--fix mode=both: mode is 'both': together or apart"),
    ("--fix tokens=0", "--fix tokens=0: tokens is '0': a whole number of at least 1"),
    ("--fix apart=2", "there is nothing to search: "),
    ("--fix stack=vlm", "stack=vlm: dgx_h100 has no kernels of it (did you mean 'vllm'?); it has vllm,"),
    ("--fix knobs.core=1/2", "knobs.core=1/2: knobs.core: no such setting (did you mean 'knobs.cores'?)"),
    ("--fix exchange=nccl", "exchange=nccl: knobs.exchange: got 'nccl': must be 'all_reduce'"),
    ("--fix batch.requests=8", "batch.requests is no axis of a search, which gives it values itself"),
    ("--fix layout.tp=2", "layout.tp is no axis of a search, which gives it values itself; tp is one"),
    ("--fix drafts=1", "drafts=1: --acceptance P says how many of them are accepted"),
    ("--acceptance 0.7", "--acceptance 0.7: qwen3_8b has no layers that draft (MTP); --fix drafts=1"),
    ("--ttft nan", "'--ttft': nan is not a finite number"), ("--prefix nan", "'--prefix': nan is not a finite number"),
    ("--price inf", "'--price': inf is not a finite number"),
    ("--ttft 1", "1 layout: TTFT (vllm tp=1 tokens=8192: TTFT is above its limit)"),
    ("--tpot 0.5", "1 layout: TPOT (vllm tp=1 tokens=8192: by the roofline, even with one request)"),
    ("--isl 9000000", "1 layout: memory (vllm tp=1 tokens=8192: weights leave no room for one request)"),
    ("--model llama_3_1_405b", "1 layout: memory (vllm tp=1 tokens=8192: weights leave no room for one request)"),
    ("--limit 3", "--limit: of a recorded trace; give --trace FILE"),
    ("--jobs 2 --executor serial", "--jobs 2: --executor serial simulates one layout at a time"),
    ("--ray-address here --executor serial", "--ray-address: of --executor ray, not of serial"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[words for words, _ in WRONG])
def test_what_cannot_be_is_refused_in_one_message(braid: Callable[..., Outcome], words: str, said: str) -> None:
    some = [*WORDS, "--gpus", "1", *(f"--fix={one}" for one in ("tp=1", "pp=1", "mode=together")), *words.split()]
    outcome = braid(*some)
    assert outcome.is_one_clear_message(2), outcome
    assert said in outcome.err


FILES = [("tpp = [1]", "space.toml: tpp is no axis of a search (did you mean 'tp'?)"),
         ("tp = " + "[" * 5000, "--space: cannot read '{}/space.toml': RecursionError: "),
         ("tp = [1", "--space: cannot read '{}/space.toml': TOMLDecodeError: "),
         ("tp = []", "space.toml: tp is []: a list of values is right, as tp = [1, 2, 4]"),
         ("tp = 2024-01-01", "space.toml: tp is datetime.date(2024, 1, 1): a list of values is right"),
         ("tp = 'x'", "space.toml: tp is 'x': a whole number of at least 1 would be right"),
         ("[knobs]\ncores = ['all']", "knobs.cores=all: knobs.cores: got 'all'")]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), FILES, ids=[text for text, _ in FILES])
def test_a_wrong_file_of_axes_is_refused_in_one_message(braid: Callable[..., Outcome], tmp_path: Path, text: str,
                                                        said: str) -> None:
    (tmp_path / "space.toml").write_text(text, encoding="utf-8")
    outcome = braid(*WORDS, "--gpus", "1", "--space", tmp_path / "space.toml")
    assert outcome.is_one_clear_message(2), outcome
    assert said.format(tmp_path) in outcome.err


def test_a_file_has_axes_which_options_change(braid: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text("tp = [1, 2]\npp = 1\n[knobs]\ncores = ['', '1/2']\n", encoding="utf-8")
    some = braid(*WORDS[:-4], "--gpus", "1", "--space", tmp_path / "space.toml", "--fix", "mode=together", "--serve", 0,
                 "--json").json  # fmt: skip
    assert (some["layouts"], some["refused"]) == (4, {"mesh": 2})
    one = braid(*WORDS[:-4], "--gpus", "1", "--space", tmp_path / "space.toml", "--fix", "mode=together", "--serve", 0,
                "--json", "--fix", "knobs.cores=").json  # fmt: skip
    assert (one["layouts"], one["refused"]) == (2, {"mesh": 1})


def test_a_folder_of_other_things_is_not_written_to(braid: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    outcome = braid(*WORDS, "--gpus", "1", "--out", tmp_path)
    assert outcome.is_one_clear_message(2)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_another_search_has_the_folder(braid: Callable[..., Outcome], tmp_path: Path) -> None:
    with kept.Kept(tmp_path / "out", pytest.fail):
        outcome = braid(*WORDS, "--gpus", "1", "--out", tmp_path / "out")
    assert outcome.is_one_clear_message(2)
    assert "another search keeps its results in" in outcome.err


def test_what_cannot_be_written_is_printed_nonetheless(braid: Callable[..., Outcome], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with kept.Kept(out, pytest.fail):
        (out / FILE).mkdir()
    outcome = braid(*WORDS, "--gpus", "1", "--fix", "tp=1", "--out", out)
    assert outcome.code == 1
    assert outcome.err.startswith(f"Error: cannot write '{out / FILE}': ")
    assert "# 1: 1 x vllm tp=1 tokens=8192" in outcome.out


LENGTHS = ('{"timestamp": 0, "input_length": 512, "output_length": 1}\n'
           '{"timestamp": 9, "input_length": 256, "output_length": 1}\n')  # fmt: skip


def test_a_trace_is_searched_for_and_served(braid: Callable[..., Outcome], tmp_path: Path) -> None:
    """Even one of requests that have no second token, and none of which meets another."""
    (tmp_path / "mine.jsonl").write_text(LENGTHS, encoding="utf-8")
    words = [*WORDS[:5], *WORDS[9:13], "--gpus", "1", "--fix", "tp=1", "--fix", "mode=together", "--serve", "1"]
    outcome = braid(*words, "--trace", tmp_path / "mine.jsonl", "--limit", "2")
    assert outcome.code == 0, outcome.err
    (line,) = (line for line in outcome.out.splitlines() if line.startswith("braid serve"))
    assert line.endswith(f"--trace {tmp_path / 'mine.jsonl'} --limit 2")
    assert "--isl" not in line
    again = braid(*shlex.split(line)[1:], "--json")
    assert again.code == 0, again.err


# --- stopped -------------------------------------------------------------------------------------------------------

SLOW = """
import time
from pathlib import Path
from simulator.search import search

inner = search.measured


def measured(ask, family):
    with open("done.txt", "a", encoding="utf-8") as file:
        print(family.engines[0].mesh, file=file)
    if {ends} and family.engines[0].mesh != "tp=1":
        Path("begun").touch()
        time.sleep(1000)
    return inner(ask, family)


search.measured = measured
"""
SMALL = [*WORDS, "--gpus", "1..2", "--out", "out"]


def test_ctrl_c_leaves_what_is_there_and_the_same_search_goes_on(tmp_path: Path) -> None:
    with started(tmp_path, "-c", SLOW.format(ends=True) + MAIN, *SMALL) as running:
        wait_until((tmp_path / "begun").exists, running)
        running.send_signal(signal.SIGINT)
        code, out, err = left_by(running)
    assert code == 130
    assert err.endswith("stopped by Ctrl-C: what is shown is of the layouts so far; the same command goes on\n")
    assert "Traceback" not in err
    assert "# 1: 2 x vllm tp=1 tokens=8192" in out
    assert {engine.deployment.engines.mesh for engine in read_answer(tmp_path / "out").top} == {"tp=1"}
    with started(tmp_path, "-c", SLOW.format(ends=False) + MAIN, *SMALL, "--json") as running:
        code, out, err = left_by(running)
    assert code == 0, err
    assert json.loads(out)["kept"] == 1
    assert (tmp_path / "done.txt").read_text(encoding="utf-8").split() == ["tp=1", "tp=2", "tp=2"]


KILLS = 20
COUNTED = """
import os, signal, sys, time, threading
from simulator.search import kept, search

inner, put = search.measured, kept.Kept.put


def measured(ask, family):
    found = inner(ask, family)
    with open("measured.txt", "a", encoding="utf-8") as file:
        print(search.name_of(ask, family), file=file)
    return found


def kill_soon(_, name, row):
    put(_, name, row)
    with open("put.txt", "a", encoding="utf-8") as file:
        print(name, file=file)


search.measured, kept.Kept.put = measured, kill_soon
after_s = float(sys.argv.pop())
if after_s:
    timer = threading.Timer(after_s, lambda: os.kill(os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
"""
MANY = [*WORDS[:9], "--gpus", "1..4", "--vary", "stack=vllm,sglang", "--vary", "tokens=2048,8192", "--serve", "0",
        "--json", "--out", "out"]  # fmt: skip


@pytest.mark.slow
def test_killed_at_random_moments_nothing_is_lost_and_nothing_simulated_twice(tmp_path: Path) -> None:
    """Moments are drawn within the time that the search takes here; one whose row was put is never simulated again,
    and one that was killed between a simulation and its row is the only one that may be."""
    whole = run(*MANY[:-1], tmp_path / "undisturbed").json
    draws, kills = random.Random(17), 0
    for _ in range(KILLS):
        with started(tmp_path, "-c", COUNTED + MAIN, *MANY, str(draws.uniform(0.6, 2.0))) as running:
            code, _, err = left_by(running)
        assert code in (0, -signal.SIGKILL), err
        kills += code != 0
    with started(tmp_path, "-c", COUNTED + MAIN, *MANY, "0") as running:
        code, out, err = left_by(running)
    assert (code, "Traceback" in err) == (0, False)
    names: dict[str, list[str]] = {name: (tmp_path / f"{name}.txt").read_text(encoding="utf-8").split()
                                   for name in ("measured", "put")}  # fmt: skip
    assert len(names["put"]) == len(set(names["put"])), "a row was put twice: its family was simulated again"
    assert len(names["measured"]) - len(set(names["measured"])) <= kills
    found: dict[str, Any] = json.loads(out)
    assert kills
    assert [found[name] for name in ("front", "top", "refused", "dropped")] == [
        whole[name] for name in ("front", "top", "refused", "dropped")]  # fmt: skip
