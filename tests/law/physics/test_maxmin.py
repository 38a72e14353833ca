"""Laws of the max-min solver: feasible, fair, unique, independent of order."""

from __future__ import annotations

from fractions import Fraction
from math import fsum, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.physics.maxmin import LIMIT
from tests.law.physics.networks import demands
from tests.law.physics.plain import Demand, max_min, plain_max_min

CLOSE = 1e-9


def used(i: int, flows: list[Demand], rates: list[float]) -> float:
    return fsum(c * r for flow, r in zip(flows, rates, strict=True) for k, c in flow.loads if k == i)


def test_the_worked_example_of_the_module() -> None:
    flows = [Demand([(0, 1.0)]), Demand([(0, 1.0), (1, 1.0)]), Demand([(1, 1.0)], limit=1.0)]
    assert max_min([10.0, 4.0], flows) == ([7.0, 3.0, 1.0], [0, 1, LIMIT])


def test_weights_share_in_proportion() -> None:
    flows = [Demand([(0, 1.0)], weight=1.0), Demand([(0, 1.0)], weight=3.0)]
    assert max_min([8.0], flows)[0] == [2.0, 6.0]


def test_coefficients_are_bytes_moved_per_byte() -> None:
    """Equal rates of the flows' own bytes, whatever they move on the shared capacity."""
    assert max_min([8.0], [Demand([(0, 1.0)]), Demand([(0, 3.0)])])[0] == [2.0, 2.0]


def test_nothing_binds() -> None:
    assert max_min([inf], [Demand([(0, 1.0)]), Demand([], limit=2.0)]) == ([inf, 2.0], [LIMIT, LIMIT])
    assert max_min([], []) == ([], [])


def test_a_capacity_of_rate_zero_stops_its_flows() -> None:
    assert max_min([0.0, 1.0], [Demand([(0, 1.0), (1, 1.0)]), Demand([(1, 1.0)])]) == ([0.0, 1.0], [0, 1])


def test_the_same_capacity_twice_adds_up() -> None:
    assert max_min([6.0], [Demand([(0, 1.0), (0, 2.0)])])[0] == [2.0]


@pytest.mark.parametrize("rate", [0.7, 1.0, 0.0])
@pytest.mark.parametrize("weight", [0.3, 49.0])
def test_alone_a_flow_goes_exactly_as_fast_as_its_capacity_whatever_its_weight(rate: float, weight: float) -> None:
    assert max_min([rate], [Demand([(0, 1.0)], weight=weight)]) == ([rate], [0])


def test_the_lowest_index_is_reported_when_several_capacities_fill_together() -> None:
    flows = [Demand([(1, 1.0), (0, 1.0)]), Demand([(0, 1.0), (1, 1.0)])]
    assert max_min([4.0, 4.0], flows)[1] == [0, 0]
    assert max_min([4.0, 4.0], flows[:1])[1] == [0]


@settings(deadline=None, max_examples=300)
@given(demands())
def test_no_capacity_and_no_limit_is_exceeded(network: tuple[list[float], list[Demand]]) -> None:
    capacities, flows = network
    rates, _ = max_min(capacities, flows)
    for i, capacity in enumerate(capacities):
        assert used(i, flows, rates) <= capacity * (1 + CLOSE)
    assert all(r <= flow.limit for r, flow in zip(rates, flows, strict=True))


@settings(deadline=None, max_examples=300)
@given(demands())
def test_nobody_could_go_faster_without_slowing_a_slower_one(network: tuple[list[float], list[Demand]]) -> None:
    """Max-min optimality at the bound that the solver names."""
    capacities, flows = network
    rates, bounds = max_min(capacities, flows)
    for flow, rate, bound in zip(flows, rates, bounds, strict=True):
        if bound == LIMIT:
            assert rate == flow.limit
            continue
        assert bound in dict(flow.loads)
        assert used(bound, flows, rates) == pytest.approx(capacities[bound], rel=CLOSE)
        levels = [r / f.weight for f, r in zip(flows, rates, strict=True) if bound in dict(f.loads)]
        assert rate / flow.weight >= max(levels) * (1 - CLOSE)


@settings(deadline=None, max_examples=200)
@given(demands())
def test_it_equals_plain_filling(network: tuple[list[float], list[Demand]]) -> None:
    capacities, flows = network
    assert max_min(capacities, flows)[0] == pytest.approx(plain_max_min(capacities, flows), rel=CLOSE)


@settings(deadline=None, max_examples=200)
@given(demands(), st.randoms(use_true_random=False))
def test_order_changes_nothing(network: tuple[list[float], list[Demand]], random) -> None:  # type: ignore[no-untyped-def]
    """Permuted flows, loads and capacities give the same floats, not just close ones."""
    capacities, flows = network
    rates, _ = max_min(capacities, flows)
    order = random.sample(range(len(flows)), len(flows))
    names = random.sample(range(len(capacities)), len(capacities))  # old index -> new index
    moved = [0.0] * len(capacities)
    for old, new in enumerate(names):
        moved[new] = capacities[old]
    permuted = [
        flows[j]._replace(loads=random.sample([(names[i], c) for i, c in flows[j].loads], len(flows[j].loads)))
        for j in order
    ]
    again, _ = max_min(moved, permuted)
    assert again == [rates[j] for j in order]


@settings(deadline=None, max_examples=100)
@given(demands(), st.integers(2, 400))
def test_m_equal_flows_weigh_as_one_with_m_times_the_coefficient(
    network: tuple[list[float], list[Demand]], m: int
) -> None:
    """The first flow m times, or once with its coefficients times m: the same for everybody."""
    capacities, flows = network
    first, rest = flows[0], flows[1:]
    folded = first._replace(loads=[(i, c * m) for i, c in first.loads])
    apart, _ = max_min(capacities, [first] * m + rest)
    together, _ = max_min(capacities, [folded, *rest])
    assert apart[:m] == [apart[0]] * m
    # what is left of a capacity is a difference, in which rounding weighs more the less is left
    assert [apart[0], *apart[m:]] == pytest.approx(together, rel=1e-10)


@pytest.mark.parametrize("m", [2, 3, 32, 288, 384])
@pytest.mark.parametrize("coefficient", [0.1, 1.0, 1 / 3, 7.3])
def test_folding_is_exact_to_the_bit_where_all_are_alike(m: int, coefficient: float) -> None:
    apart, _ = max_min([1e9], [Demand([(0, coefficient)])] * m)
    together, _ = max_min([1e9], [Demand([(0, coefficient * m)])])
    assert apart == together * m


@settings(deadline=None, max_examples=100)
@given(demands(), st.integers(-20, 20))
def test_scaling_all_rates_scales_the_result(network: tuple[list[float], list[Demand]], power: int) -> None:
    """By a power of two the floats scale exactly."""
    capacities, flows = network
    k = 2.0**power
    rates, bounds = max_min(capacities, flows)
    scaled, same = max_min([c * k for c in capacities], [f._replace(limit=f.limit * k) for f in flows])
    assert scaled == [r * k for r in rates]
    assert same == bounds


@pytest.mark.parametrize("n", [3, 7, 50])
def test_the_parking_lot_in_exact_fractions(n: int) -> None:
    """One flow over n links of growing rate, one more on each: link 0 gives halves, the others the rest."""
    capacities = [float(i + 1) for i in range(n)]
    flows = [Demand([(i, 1.0) for i in range(n)])] + [Demand([(i, 1.0)]) for i in range(n)]
    expected = [Fraction(1, 2)] + [Fraction(i + 1) - Fraction(1, 2) for i in range(n)]
    assert max_min(capacities, flows)[0] == [float(x) for x in expected]
