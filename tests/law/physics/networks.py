"""Random networks for the laws."""

from __future__ import annotations

from math import inf

from hypothesis import strategies as st

from tests.law.physics.plain import Demand, Job

rate = st.sampled_from([1e9, 2e9, 4e9]) | st.floats(1e6, 1e12)
coefficient = st.sampled_from([1.0, 2.0, 0.5]) | st.floats(1e-3, 1e3)
limit = st.just(inf) | st.sampled_from([5e8, 1e9]) | st.floats(1e5, 1e12)
weight = st.sampled_from([1.0, 1.0, 1.0, 2.0, 0.25])


@st.composite
def demands(draw: st.DrawFn) -> tuple[list[float], list[Demand]]:
    """Capacities and flows that each load at least one of them."""
    rates = draw(st.lists(rate, min_size=1, max_size=6))
    loads = st.dictionaries(st.integers(0, len(rates) - 1), coefficient, min_size=1, max_size=4)
    flow = st.builds(lambda pulls, top, w: Demand(tuple(pulls.items()), top, w), loads, limit, weight)
    return rates, draw(st.lists(flow, min_size=1, max_size=9))


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[float], list[Job]]:
    """Capacities and flows that come at random times."""
    rates = draw(st.lists(rate, min_size=1, max_size=6))
    loads = st.dictionaries(st.integers(0, len(rates) - 1), coefficient, min_size=1, max_size=4)
    job = st.builds(
        Job,
        size=st.sampled_from([1e6, 1e6, 3e6]) | st.floats(1e3, 1e9),
        loads=loads,
        limit=limit,
        weight=weight,
        multiplicity=st.sampled_from([1, 1, 1, 2, 32]),
        start_ps=st.sampled_from([0, 0, 10**9]) | st.integers(0, 10**11),
        latency_ps=st.sampled_from([0, 0, 10**6]),
    )
    return rates, draw(st.lists(job, min_size=1, max_size=9))
