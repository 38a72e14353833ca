"""Two runs side by side: what was changed on which side is said, and either side can be changed alone; what moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.observe.measured.files import WRITERS, kineto

Braid = Callable[..., Outcome]
DP, LOW = "a3_prefill:dp", "cm384_decode:decode_low"
SMALL = ("--set", "model.shapes.layers=4", "--set", "batch.requests=32")


def sides(text: str) -> tuple[str, str]:
    """The header's lines of A, and of B."""
    a, _, rest = text.partition("\nB  ")
    return a, rest.partition("\n\n")[0]


def test_a_change_of_both_sides_says_so(braid: Braid) -> None:
    for side in sides(braid("compare", DP, "a3_prefill:dp_tnd", *SMALL).out):
        assert "changed in A and B: batch.requests = 32" in side
        assert "changed in A and B: model.shapes.layers = 4 (assumed)" in side


def test_published_values_say_whose_they_are(braid: Braid) -> None:
    done = braid("compare", DP, DP, *SMALL)
    rows = [line.split()[:2] for line in done.out.splitlines() if "a3.prefill.share" in line]
    assert rows == [["A", "a3.prefill.share"], ["B", "a3.prefill.share"]]


def test_a_published_value_that_cannot_be_compared_says_why(braid: Braid) -> None:
    done = braid("compare", DP, "a3_prefill:sp_tp_sp", *SMALL)
    assert done.code == 0, done.err
    _, b = sides(done.out)
    assert "expected a3.prefill.sp: a3_prefill:microbatch cannot run so: micro-batch 2 of 2" in " ".join(b.split())
    assert ["B", "a3.prefill.sp"] in [line.split()[:2] for line in done.out.splitlines()]


def test_nothing_is_printed_before_all_is_there(braid: Braid, tmp_path: Path) -> None:
    (tmp_path / "stray.py").write_text(
        "from simulator.study.library import load_scenario\nfrom simulator.study.scenario import Expected\n"
        "def other():\n    parent = load_scenario('a3_prefill:dp')\n"
        "    return parent.variant(workload=parent.workload._replace(program=lambda npu, case: npu.stray()))\n"
        "def mine():\n    one = Expected(id='x', metric='latency_ms', value=1, role='fit', "
        f"against='{tmp_path}/stray.py:other')\n"
        "    return load_scenario('a3_prefill:dp').variant(expected=(one,))\n")
    done = braid("compare", DP, f"{tmp_path}/stray.py:mine", *SMALL)
    assert done.is_one_clear_message(1), done
    assert "stray.py:5: " in done.err


def test_a_setting_that_one_side_does_not_have_names_that_side(braid: Braid) -> None:
    done = braid("compare", DP, LOW, "--set", "batch.requests=32")
    assert done.is_one_clear_message(2), done
    assert done.err.startswith(f"Error: B, {LOW}: --set batch.requests: no such setting")


@pytest.mark.parametrize(("words", "code", "said"), [
    ((DP, DP, "--set", "B:machine=atlas_a2"), 2, f"B, {DP}: 16 ranks do not divide into groups of 32"),
    ((DP, DP, "--set", "A:machine.chip.hbm.capacity=8 GiB"), 1, f"A, {DP}: the fullest rank does not fit: "),
    ((DP, "a3_prefill:microbatch", *SMALL), 2, "B, a3_prefill:microbatch: micro-batch 2 of 2 has no prompts"),
    ((DP, "a3_prefill:dq"), 2, "B, a3_prefill:dq: 'a3_prefill:dq' is no scenario"),
])
def test_whatever_one_side_refuses_names_that_side(braid: Braid, words: tuple[str, ...], code: int, said: str) -> None:
    done = braid("compare", *words)
    assert done.is_one_clear_message(code), done
    assert done.err.startswith(f"Error: {said}")


def test_spaces_after_the_letter_of_a_side_do_not_count(braid: Braid) -> None:
    a, b = sides(braid("compare", DP, DP, *SMALL, "--set", "B: batch.requests = 64").out)
    assert "changed: batch.requests = 32" in a
    assert "changed: batch.requests = 64" in b


def test_a_side_without_a_setting_is_refused_in_words(braid: Braid) -> None:
    for key in ("B:", "B: "):
        done = braid("compare", DP, DP, "--set", f"{key}=3")
        assert done.is_one_clear_message(2), done
        assert "--set B:=3 names no setting, as --set B:batch.requests=32 does" in done.err


def test_one_side_is_changed_alone_by_its_letter(braid: Braid) -> None:
    a, b = sides(braid("compare", DP, DP, *SMALL, "--set", "B:knobs.attention=tnd", "--set", "B:batch.requests=64").out)
    assert "changed: knobs.attention" not in a
    assert "changed: batch.requests = 32" in a
    assert "changed: knobs.attention = tnd" in b
    assert "changed: batch.requests = 64" in b
    assert "changed in A and B: model.shapes.layers = 4" in a


def test_no_other_command_has_sides(braid: Braid) -> None:
    assert braid("run", DP, "--set", "B:batch.requests=64").is_one_clear_message(2)
    assert braid("compare", DP, DP, "--set", "C:batch.requests=64").is_one_clear_message(2)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of both, as `compare --out` leaves them."""
    from simulator.commands.main import main

    folder = tmp_path_factory.mktemp("kept")
    with pytest.raises(SystemExit):
        main(["compare", DP, "a3_prefill:microbatch", *SMALL[:2], "--out", str(folder / "out"), "--json"])
    return folder / "out"


TABLES = ("B - A", "where the difference comes from", "tasks that work or wait", "tasks without a counterpart")


def test_nothing_moves_from_a_run_to_itself(braid: Braid, kept: Path) -> None:
    for words in ((DP, DP, *SMALL), (kept / "a3_prefill-dp", kept / "a3_prefill-dp")):
        done = braid("compare", *words)
        assert done.code == 0, done.err
        assert "nothing moved: all " in done.out
        assert not [one for one in TABLES if one in done.out]
        assert done.out.count("one layer's streams") == 1
        found = braid("compare", *words, "--json").json["comparison"]
        assert not found["moved"]
        assert found["makespan_ps"]["difference"] == 0
        assert not [name for name, rows in found.items() if isinstance(rows, list) and rows]


def test_what_was_kept_is_compared_as_what_is_run(braid: Braid, kept: Path) -> None:
    both = kept / "a3_prefill-dp", kept / "a3_prefill-microbatch"
    words = (DP, "a3_prefill:microbatch", *SMALL[:2])
    assert braid("compare", *both, "--json").json["comparison"] == braid("compare", *words, "--json").json["comparison"]
    mixed = braid("compare", both[0], "a3_prefill:microbatch", *SMALL[:2], "--json").json
    assert mixed["A"]["changes"] == {"model.shapes.layers": "4"}
    assert mixed["comparison"]["moved"]


def test_the_difference_is_made_of_its_parts(braid: Braid, kept: Path) -> None:
    both = kept / "a3_prefill-dp", kept / "a3_prefill-microbatch"
    found = braid("compare", *both, "--json").json["comparison"]
    length = found["makespan_ps"]
    assert length["difference"] == length["B"] - length["A"] != 0
    assert sum(one["difference_ps"] for one in found["waterfall"]) == length["difference"]
    text = braid("compare", *both).out
    assert "layers 0 to 2, each" in text
    table = text.partition("where the difference comes from")[2].partition("equal in A and B")[0]
    assert [line.split()[0] for line in table.splitlines() if line][-1] == "makespan"


def test_one_longer_kernel_is_named(braid: Braid) -> None:
    done = braid("compare", DP, DP, *SMALL, "--set", "B:knobs.attention=tnd", "--json")
    found = done.json["comparison"]
    assert [one["name"] for one in found["changes"]] == ["attention.flash"]
    assert [(one["kind"], one["difference_ps"]) for one in found["waterfall"]] == [
        ("attention", found["makespan_ps"]["difference"])]
    assert not found["unpaired"]
    assert {one["name"] for one in found["time_by_block"]} == {"attention"}


@pytest.mark.parametrize("name", WRITERS)
def test_a_measured_trace_stands_beside_a_run(braid: Braid, kept: Path, tmp_path: Path, name: str) -> None:
    words = ("compare", kept / "a3_prefill-microbatch", WRITERS[name](tmp_path / name))
    found = braid(*words, "--json").json
    assert found["B"]["metrics"]["exposed_comm_ms"] == 0.01
    side = found["comparison"]["overlap"]["B"]
    assert (side["communication_ps"], side["hidden_ps"], side["exposed_ps"]) == (15e6, 5e6, 10e6)
    assert {one["kind"] for one in found["comparison"]["kinds"]["B"]} == {"gemm", "all_reduce", "attention", "copy"}
    assert found["comparison"]["order"][0]["streams"]["A"] == "compute"
    text = braid(*words).out
    for wanted in ("measured", "exposed, with waiting for peers", "order of kinds", "What cannot be compared"):
        assert wanted in text
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_a_trace_of_braid_says_what_its_run_says(braid: Braid, kept: Path) -> None:
    run = kept / "a3_prefill-microbatch"
    found = braid("compare", run, run / "trace.json.gz", "--json").json["comparison"]
    a, b = (found["overlap"][letter] for letter in "AB")
    for name in ("compute_ps", "communication_ps", "hidden_ps", "exposed_ps"):
        assert b[name] == pytest.approx(a[name], rel=1e-4)
    assert {one["alike"] for one in found["order"]} == {1.0}


def test_a_trace_beside_itself_moves_nothing(braid: Braid, tmp_path: Path) -> None:
    trace = kineto(tmp_path / "trace.json")
    done = braid("compare", trace, trace)
    assert "nothing moved: A and B are the same trace" in done.out
    assert "kernels by kind" not in done.out


@pytest.mark.parametrize(("words", "said"), [
    (("--set", "batch.requests=32"), "--set is of scenarios that are simulated: neither A nor B is one"),
    (("--ranks", "all"), "--ranks is of scenarios"), (("--seed", "1"), "--seed is of scenarios"),
    (("--out", "out"), "--out is of scenarios"),
])
def test_options_of_scenarios_are_refused_where_there_is_none(
    braid: Braid, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    trace = kineto(tmp_path / "trace.json")
    done = braid("compare", trace, trace, *words)
    assert done.is_one_clear_message(2), done
    assert said in done.err


def test_a_side_that_is_read_cannot_be_changed(braid: Braid, tmp_path: Path) -> None:
    done = braid("compare", DP, kineto(tmp_path / "trace.json"), "--set", "B:batch.requests=32")
    assert done.is_one_clear_message(2), done
    assert "--set B:batch.requests: B is no scenario that is simulated" in done.err


def test_a_folder_above_runs_says_where_they_are(braid: Braid, kept: Path) -> None:
    done = braid("compare", DP, kept)
    assert done.is_one_clear_message(2), done
    assert f"there are runs in {kept / 'a3_prefill-dp'}, {kept / 'a3_prefill-microbatch'}" in done.err


def test_what_cannot_be_read_is_refused_by_name(braid: Braid, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"traceEvents": [{"ph": "X"')
    (tmp_path / "empty").mkdir()
    for what, said in (("broken.json", "it is no whole JSON"), ("absent.json", "there is no file"),
                       ("empty", "has neither a run of Braid")):  # fmt: skip
        done = braid("compare", DP, tmp_path / what)
        assert done.is_one_clear_message(2), done
        assert what in done.err
        assert said in done.err
