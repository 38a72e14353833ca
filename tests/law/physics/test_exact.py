"""Every end is that of exact fractions, to 2 ps, whichever solver answers: ties, chains, limits, rates that change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.physics import batches, ranked
from simulator.physics.clock import Clock, call_later
from simulator.physics.flows import Capacity, Flow, Network
from tests.law.physics.exact import Change, Exact, exact_ends_ps, random_changes, random_network
from tests.law.physics.networks import traffic
from tests.law.physics.plain import Job

TIES = Path(__file__).parents[2] / "data" / "ties.jsonl"
SOLVERS = ("plain", "compiled")


@pytest.fixture(params=SOLVERS)
def solver(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each of the two solvers; the compiled one gets whatever shares with another."""
    with solved_by(request.param):
        yield request.param


class solved_by:  # noqa: N801
    """Within it, networks are solved by this one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        if self._name == "compiled" and ranked.library() is None:
            pytest.skip("no compiled solver here")
        self._before = batches.MANY, batches.FEW
        batches.MANY, batches.FEW = (1, 1) if self._name == "compiled" else (10**9, 1)

    def __exit__(self, *_: object) -> None:
        batches.MANY, batches.FEW = self._before


def ends_ps(rates: list[float], jobs: list[Exact], changes: list[Change] | None = None) -> list[int]:
    """When the flows end on a network; -1 for those that never do."""
    clock = Clock()
    network = Network(clock)
    capacities = [Capacity(str(number), rate) for number, rate in enumerate(rates)]
    ended = [-1] * len(jobs)

    def start(number: int) -> None:
        job = jobs[number]
        loads = [(capacities[i], c) for i, c in job.loads.items()]
        network.start(Flow(job.size, loads, job.limit, job.weight, job.multiplicity, number), done, job.latency_ps)

    def done(flow: Flow) -> None:
        ended[flow.tag] = clock.now_ps
        for number, job in enumerate(jobs):
            if job.after == flow.tag:
                start(number)

    for change in changes or ():
        call_later(clock, change.at_ps, lambda _, one=change: network.set_rate(capacities[one.capacity], one.rate))  # type: ignore[misc]
    for number, job in enumerate(jobs):
        if job.after is None:
            call_later(clock, job.start_ps, lambda _, number=number: start(number))  # type: ignore[misc]
    clock.run()
    return ended


def agree(seed: int, changing: bool, names: Sequence[str] = SOLVERS) -> None:
    """What each of these solvers that there is here gives, against exact fractions."""
    rates, jobs = random_network(seed)
    changes = random_changes(seed, len(rates), rates) if changing else []
    exact = exact_ends_ps(rates, jobs, changes)
    for name in names:
        if name == "plain" or ranked.library() is not None:
            with solved_by(name):
                assert ends_ps(rates, jobs, changes) == pytest.approx(exact, abs=2, rel=0), name


@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("first", range(0, 50, 10))
def test_random_networks_end_as_in_exact_fractions(first: int, changing: bool) -> None:
    for seed in range(first, first + 10):
        agree(seed, changing)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_two_thousand_networks_end_as_in_exact_fractions(first: int) -> None:
    for seed in range(first, first + 100):
        agree(seed, changing=seed % 4 == 0)


def test_flows_that_begin_together_between_three_batches_are_one() -> None:
    agree(26400611, changing=False)


@settings(deadline=None, max_examples=60)
@given(st.integers(10**6, 10**9), st.booleans())
def test_any_network_ends_as_in_exact_fractions(seed: int, changing: bool) -> None:
    agree(seed, changing)


@settings(deadline=None, max_examples=100)
@given(traffic(), st.sampled_from([2, 1024, 3]))
def test_rates_times_k_divide_every_time_by_k(network: tuple[list[float], list[Job]], k: int) -> None:
    """Exactly so in fractions that nothing rounds, and a run at either rate ends as rounded fractions do, to 2 ps.

    Two runs are not compared with each other: an end that is rounded up by less than 1 ps holds others back so much
    longer, and the ratios of coefficients carry that far. Doubles tell instants of the first 70 s (2**46 ps) apart to
    the 1/128 ps that rounding up forgives; of a longer run they may round an end to the next picosecond, which others
    feel in these ratios too, so it is held to 1e-9. The compiled solver knows no end after 4e18 ps (46 days).
    """
    rates, jobs = network
    still = [Exact(job.size, job.loads, job.limit, job.weight, job.multiplicity) for job in jobs]
    fast = [replace(flow, limit=k * Fraction(flow.limit) if flow.limit < inf else inf) for flow in still]
    quick = exact_ends_ps([k * Fraction(rate) for rate in rates], fast, rounded=False)
    assert [end * k for end in quick] == exact_ends_ps(rates, still, rounded=False)
    for factor in (1, k):
        scaled = [replace(flow, limit=flow.limit * factor) for flow in still]
        exact = exact_ends_ps([rate * factor for rate in rates], scaled)
        assume(max(exact) < 4e18)
        for name in SOLVERS:
            if name == "plain" or ranked.library() is not None:
                with solved_by(name):
                    ends = ends_ps([rate * factor for rate in rates], scaled)
                assert ends == pytest.approx(exact, abs=2, rel=0 if max(exact) < 2**46 else 1e-9), name


CASES = [json.loads(line) for line in TIES.read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_two_capacities_that_fill_at_the_same_level(solver: str, case: dict) -> None:
    jobs = [Exact(flow["bytes"], {int(i): c for i, c in flow["loads"]}) for flow in case["flows"]]
    assert ends_ps(case["capacities_bytes_per_s"], jobs) == pytest.approx(case["finish_ps"], abs=2, rel=0)
