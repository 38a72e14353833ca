"""A few thousand hostile cases for every reader: accepted, or refused with one of Braid's errors, never a traceback.

`python -m tests.trust.fuzz` runs a million of them. What a case that failed was is told by its number:
`python -m tests.trust.fuzz --target T --first N --cases 1`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from tests.trust import fuzz
from tests.trust.fuzz import TARGETS, Hang, Vague, case, where
from tests.trust.limits import limited
from tests.trust.variants import json_text, nested, raw, toml_text, tree

CASES = {"requests": 1300, "quantities": 2300, "faults": 300, "fault files": 200, "settings": 100,
         "service settings": 1200, "measured": 900, "config": 500, "space": 1200, "points": 500,
         "kept": 300, "trace to view": 700, "model": 100, "step words": 100,
         "machine": 40, "part": 40, "nsight": 120, "run folder": 60, "service folder": 20,
         "command lines": 20}  # fmt: skip
"""10,000 in all. Simulations, and the folder of a search, which takes seconds to make, are left to the long run."""
AT_ONCE = 10  # in one example of Hypothesis, which takes longer than a case
SEED = 1  # of which no case asks for a run that takes long


@pytest.mark.parametrize("target", CASES)
def test_every_case_is_accepted_or_refused(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "fuzzed"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)

    @settings(max_examples=CASES[target] // AT_ONCE, derandomize=True, deadline=None, database=None,
              suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 10**6))
    def runs(first: int) -> None:
        for number in range(first, first + AT_ONCE):
            case(target, SEED, number, folder)

    runs()


def test_there_are_ten_thousand_and_every_target_has_a_share() -> None:
    assert sum(CASES.values()) == 10_000
    assert set(fuzz.SHARES) == set(TARGETS) == {*CASES, "search folder", "simulations"}


@pytest.mark.parametrize("target", ["requests", "machine"])
def test_a_case_is_the_same_again(target: str, tmp_path: Path) -> None:
    def written() -> dict[str, bytes]:
        with suppress(Vague):
            case(target, 0, 5, tmp_path)
        return {one.name: one.read_bytes() for one in tmp_path.iterdir()}

    assert written() == written()


@pytest.mark.parametrize("raised", [KeyError("a"), RecursionError(), InputError(""), InputError("no file is named"),
                                    MemoryError(), OSError("of no file")])
def test_what_is_no_refusal_is_told(raised: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rng: Random, folder: Path) -> None:
        raise raised

    monkeypatch.setitem(TARGETS, "machine", broken)
    with pytest.raises((type(raised), Vague)):
        case("machine", 0, 0, tmp_path)


@pytest.mark.parametrize("raised", [InputError("{}: name: got 5"), click.UsageError("'{}' is no folder")])
def test_what_names_the_file_is_a_refusal(raised: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(rng: Random, folder: Path) -> None:
        raise type(raised)(str(raised).format(folder))

    monkeypatch.setitem(TARGETS, "machine", refusing)
    assert case("machine", 0, 0, tmp_path) is False


def test_a_case_without_end_is_ended() -> None:
    with pytest.raises(Hang), limited(0.05, Hang):
        while True:
            pass


def test_a_process_that_a_case_ends_is_started_again_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six cases one ends its process, one raises: four are left."""

    def deadly(rng: Random, folder: Path) -> None:
        if rng.getstate() == Random("machine:0:2").getstate():
            os._exit(1)
        if rng.getstate() == Random("machine:0:4").getstate():
            raise KeyError("it")

    monkeypatch.setitem(TARGETS, "machine", deadly)
    tally = fuzz.run("machine", 0, 0, 6, float("inf"))
    assert (tally.cases, tally.accepted, tally.refused, tally.crashed) == (6, 4, 0, 2)
    assert len(tally.crashes) == 2
    assert "| machine | 6 | 4 | 0 | 2 |" in fuzz.table([tally], 0, 1.0)


@pytest.mark.parametrize("make", [toml_text, json_text])
def test_whatever_is_drawn_can_be_written(make: Callable[[Any], str]) -> None:
    rng = Random(3)
    for _ in range(300):
        assert isinstance(make(tree(rng, {"a": {"b": [1, 2.5, "c", None, True]}, "d": nested(4, lists=True)})), str)
        assert isinstance(raw(rng, b"abc"), bytes)


def test_where_an_error_came_from_is_a_line_of_braid() -> None:
    from simulator.units import parse

    with pytest.raises(ValueError, match="quantity") as caught:
        parse("nothing")
    assert where(caught.value).startswith("ValueError at units.py:")
