"""Assumed numbers at their two ends."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.study.influence import Influence, influences, markdown, print_influences


def test_both_ends_of_a_number_move_a_value_both_ways_and_by_less_than_the_number_moves() -> None:
    """A put of rows: 0.25 us of 2.4 us a row are its receiver's, assumed, known to 30%."""
    found = [one for one in influences("ascend_exchange:normal_ep8") if one.parameter.endswith("rows.receive")]
    assert found, "what a row takes its receiver is assumed and bounds a part of the path"
    for one in found:
        assert one.spread == 0.30
        assert one.low * one.high < 0
        assert 0.0 < one.size < one.spread


def test_the_most_influential_comes_first_and_each_number_once_in_the_file() -> None:
    found = influences("ascend_exchange:normal_ep*")
    sizes = [one.size for one in found]
    assert sizes == sorted(sizes, reverse=True)
    lines = [line for line in markdown(found).splitlines() if "rows.receive" in line]
    assert len(lines) == len({one.parameter for one in found if one.parameter.endswith("rows.receive")})


LONGEST = Influence("collectives.custom_all_reduce_sglang.ladder.default.0.bytes_per_peer", "gb200_nvl72", "64 KiB",
                    0.3, "cm384_decode:ten_layers_one_micro_batch", 0.123, "compute_stretch_beside_communication",
                    -0.1, 0.2)  # fmt: skip


def test_the_table_fits_a_terminal_of_120_columns_and_its_names_are_whole(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_influences([LONGEST])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 120
    for text in (LONGEST.parameter, "gb200_nvl72: 64 KiB, 30% off", f"{LONGEST.scenario}: {LONGEST.metric}", "+20.0%"):
        assert text in printed
    row = next(line for line in markdown([LONGEST]).splitlines() if LONGEST.parameter in line)
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        f"gb200_nvl72: {LONGEST.parameter}", "64 KiB, 30% off", f"{LONGEST.scenario}: {LONGEST.metric}",
        "12.3%", "-10.0%", "+20.0%"]  # fmt: skip


def test_a_pattern_that_chooses_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no scenario matches 'nothing'"):
        influences("nothing")
