"""Names of a trace that are as long as a file: what they say is found at once, as of a short one."""

from __future__ import annotations

import pytest

from simulator.observe.measured.kineto import _stream
from simulator.observe.measured.msprof import _name

LONG = 20_000  # with expressions that tried every way to read a name, minutes


@pytest.mark.parametrize(("given", "name"), [
    ("hcom_allReduce__606_0_1", "hcom_allReduce"), ("hcom_1", "hcom"), ("hcom_a1", "hcom_a1"), ("MatMul_1", "MatMul_1"),
    ("hcom_" + "_1" * LONG + "x", "hcom_" + "_1" * LONG + "x"), ("hcom_a" + "_1" * LONG, "hcom_a"),
    ("hcom_" + "_" * LONG + "x", "hcom_" + "_" * LONG + "x"),
], ids=range(7))
def test_numbers_behind_the_name_of_a_collective_are_left_out(given: str, name: str) -> None:
    assert _name(given) == name


@pytest.mark.parametrize(("given", "name"), [
    ("stream 7", "7"), ("stream 7 (compute, copies)", "7"), ("stream a (b) (c)", "a"), ("stream a (b", "a (b"),
    ("thread 7", ""), ("stream  (b)", " (b)"), ("stream x" + " (" * LONG, "x" + " (" * LONG),
], ids=range(7))
def test_a_stream_goes_by_what_stands_before_its_engines(given: str, name: str) -> None:
    assert _stream(given) == name
