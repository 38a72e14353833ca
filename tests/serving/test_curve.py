"""A dear function is asked at few places, and what lies between them is right."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.serving.curve import Curve


class Asked:
    """max(flat, slope x), and how often it was asked."""

    def __init__(self, flat: float, slope: float) -> None:
        self.flat, self.slope, self.asked = flat, slope, list[int]()

    def __call__(self, x: int) -> float:
        self.asked.append(x)
        return max(self.flat, self.slope * x)


def test_the_worked_example() -> None:
    asked = Asked(80, 1)
    assert Curve(asked, [64, 128], 0.01).at(70) == 80
    assert asked.asked == [64, 96, 128, 80, 72]


def test_a_line_is_asked_at_three_places() -> None:
    asked = Asked(0, 2)
    curve = Curve(asked, [0, 1000], 0.01)
    assert [curve.at(x) for x in range(0, 1001, 10)] == pytest.approx(list(range(0, 2001, 20)))
    assert len(asked.asked) == 3


@pytest.mark.parametrize("bend", [100, 1000, 3000])
def test_a_bend_is_found_within_the_tolerance(bend: int) -> None:
    curve = Curve(Asked(bend, 1), [1, 64, 256, 1024, 4096], 0.01)
    for x in range(1, 4097, 7):
        assert curve.at(x) == pytest.approx(max(bend, x), rel=0.02)


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    xs = np.arange(5, 5000, 13).astype(float)
    one, other = (Curve(Asked(900, 1), [1, 64, 256, 1024, 4096], 0.01) for _ in range(2))
    assert one.over(xs) == pytest.approx([other.at(x) for x in xs], rel=0.02)
    assert one.over(xs) == pytest.approx([one.at(x) for x in xs], rel=1e-12)


def test_beyond_the_grid_the_last_line_goes_on() -> None:
    assert Curve(Asked(0, 2), [10, 20], 0.01).at(40) == pytest.approx(80)
    assert Curve(Asked(0, 2), [10, 20], 0.01).over(np.array([15.0, 40.0])) == pytest.approx([30, 80])


@pytest.mark.parametrize("grid", [[1], [2, 1], [1, 1]])
def test_a_grid_that_is_none_is_refused(grid: list[int]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Curve(Asked(1, 1), grid, 0.01)
