"""A picture of points in characters: exact text, its ticks, and signs that the terminal has."""

from __future__ import annotations

import io

import pytest

from simulator.observe.scatter import Scatter, drawn, ticks
from simulator.observe.tables import console, show

PICTURE = Scatter(points=[(5.0, 1200.0), (20.0, 400.0), (38.0, 150.0), (0.0, 0.0)],
                  front=[(10.0, 1900.0), (40.0, 300.0)],
                  marked=[("1", 25.0, 1000.0), ("2", 40.0, 300.0)], x_axis="tok/s/user", y_axis="tok/s/GPU",
                  height=9)  # fmt: skip
UTF = """\
tok/s/GPU
2,000 ┤        o
      │
      │
      │    ·
1,000 ┤                    1
      │
      │                ·
      │                              · 2
    0 ┤·
      └┬───────────────┬───────────────┬
       0              20              40
                              tok/s/user
"""
ASCII = UTF.translate(str.maketrans("·│─┤┬└", ".|-+++"))


def printed(encoding: str, width: int) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    show(console(file, width), PICTURE)
    file.flush()
    return raw.getvalue().decode(encoding)


def test_points_the_front_and_letters() -> None:
    assert "\n".join(drawn(PICTURE, 40)) + "\n" == UTF


def test_a_terminal_without_such_signs_gets_others() -> None:
    assert printed("utf-8", 40) == UTF + "\n"
    assert printed("ascii", 40) == ASCII + "\n"


def test_the_first_letter_lies_on_top() -> None:
    both = Scatter([(1.0, 1.0)], [(1.0, 1.0)], [("1", 1.0, 1.0), ("2", 1.0, 1.0)], "x", "y", height=3)
    text = "\n".join(drawn(both, 30))
    assert text.count("1") > 2
    assert "2" not in text
    assert "·" not in text


def test_no_points_are_an_empty_plane() -> None:
    assert drawn(Scatter([], [], [], "x", "y", height=2), 20, ascii_only=True) == [
        "y", "1 +", "0 +", "  ++---------------+", "   0               1", "                   x"]  # fmt: skip


@pytest.mark.parametrize(("largest", "most", "wanted"), [
    (100.0, 5, [0, 20, 40, 60, 80, 100]), (101.0, 5, [0, 50, 100, 150]), (0.03, 2, [0, 0.02, 0.04]),
    (7.0, 1, [0, 10]), (0.0, 4, [0, 1]),
])  # fmt: skip
def test_ticks_are_round_and_reach_the_largest(largest: float, most: int, wanted: list[float]) -> None:
    assert ticks(largest, most) == pytest.approx(wanted)


@pytest.mark.parametrize("width", [20, 33, 80, 200])
def test_no_line_is_wider_than_it_may_be(width: int) -> None:
    many = Scatter([(x * 1.7, x * x * 13.1) for x in range(40)], [], [], "tok/s/user", "tok/s/GPU")
    assert max(map(len, drawn(many, width))) <= max(width, 24)
