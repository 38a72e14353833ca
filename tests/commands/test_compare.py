"""Two runs side by side: what was changed on which side is said, and either side can be changed alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

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
