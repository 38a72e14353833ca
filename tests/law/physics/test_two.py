"""Sharing two capacities step by step gives what the solver for any network gives."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.physics import LIMIT, Demand, max_min
from simulator.physics.two import FIRST, OWN, SECOND, share_two

pull = st.sampled_from([0.0, 0.25, 1.0, 1.5]) | st.floats(0.01, 4)
ask = st.tuples(pull, pull, st.sampled_from([1.0, 3.0, inf]) | st.floats(0.1, 50), st.sampled_from([1.0, 1.0, 2.5]))
Asks = tuple[tuple[float, float, float, float], ...]
asks = st.lists(ask.filter(lambda one: one[2] < inf or one[0] or one[1]), max_size=5).map(tuple)


def test_the_worked_example() -> None:
    shares = share_two(10.0, 4.0, ((1, 0, inf, 1), (1, 1, inf, 1), (0, 1, 1.0, 1)))
    assert shares == [(7.0, FIRST), (3.0, SECOND), (1.0, OWN)]


@settings(deadline=None, max_examples=400)
@given(st.floats(0.5, 40), st.floats(0.5, 40), asks)
def test_it_is_the_max_min_allocation(first: float, second: float, flows: Asks) -> None:
    demands = [Demand([(side, one[side]) for side in (FIRST, SECOND) if one[side]], one[2], one[3]) for one in flows]
    rates, bounds = max_min([first, second], demands)
    shares = share_two(first, second, flows)
    assert [rate for rate, _ in shares] == pytest.approx(rates, rel=1e-12)
    for (rate, stop), bound, expected in zip(shares, bounds, rates, strict=True):
        assert stop == (OWN if bound == LIMIT else bound) or rate == pytest.approx(expected, rel=1e-12)
