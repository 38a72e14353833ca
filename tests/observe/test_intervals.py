"""Sets of times, against sets of whole numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator import np
from simulator.observe.columns import Intervals, union

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=8)


def _set(pairs: list[tuple[int, int]]) -> tuple[Intervals, set[int]]:
    start = np.array([one for one, _ in pairs], dtype=np.int64)
    length = np.array([one for _, one in pairs], dtype=np.int64)
    return union(start, start + length), {at for one, many in pairs for at in range(one, one + many)}


def _numbers(some: Intervals) -> set[int]:
    assert (some.end > some.start).all()
    assert (some.start[1:] > some.end[:-1]).all(), "intervals that touch are one"
    return {at for one, other in zip(some.start.tolist(), some.end.tolist(), strict=True) for at in range(one, other)}


@given(PAIRS, PAIRS)
def test_minus_and_covered_are_those_of_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    (a, numbers_of_a), (b, numbers_of_b) = _set(one), _set(other)
    assert _numbers(a) == numbers_of_a
    assert _numbers(a.minus(b)) == numbers_of_a - numbers_of_b
    assert int(b.covered(a.start, a.end).sum()) == len(numbers_of_a & numbers_of_b)
