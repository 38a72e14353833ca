"""Laws of crowds: whoever is moved by levels moves as if all rates were solved afresh at every event."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from simpy import Environment

from simulator.physics import LIMIT, Capacity, Flow, Network, call_later, crowds, flows, levels
from simulator.physics.levels import Crowded, Levels
from tests.law.physics.networks import traffic
from tests.law.physics.plain import Job, Outcome, plain_ends_s, simulate
from tests.law.physics.test_flows import Traffic, crowd

S = 10**12
EAGER = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Everything that is solved becomes a crowd at once. Gives how many flows each crowd had."""
    sizes: list[int] = []
    consider = crowds.Crowds.consider

    def counted(self: crowds.Crowds, *arguments: object) -> None:
        before = len(self.here)
        consider(self, *arguments)  # type: ignore[arg-type]
        sizes.extend(len(one) for one in self.here[before:])

    monkeypatch.setattr(crowds.Crowds, "consider", counted)
    monkeypatch.setattr(flows, "MANY", 1)
    for name, value in (("_TOIL", 0), ("_FEW", 1), ("_CHANGES", 10**9), ("_FLOWS_PER_CAPACITY", 0)):
        monkeypatch.setattr(crowds, name, value)
    yield sizes
    assert sizes


def star(hosts: int, seed: int) -> Traffic:
    """Each host sends to each other over its up and their down port, every size different."""
    sizes = Random(seed).sample(range(10**6, 3 * 10**6), hosts * hosts)
    return [1e9] * 2 * hosts, [
        Job(sizes.pop(), {a: 1.0, hosts + b: 1.0}) for a in range(hosts) for b in range(hosts) if a != b
    ]


def alone(network: Traffic, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Without crowds."""
    monkeypatch.setattr(flows, "MANY", 10**9)
    return simulate(*network)


def test_the_worked_example_of_the_module() -> None:
    rows = Crowded(np.array([[0, 2], [0, 1], [1, 2]]), np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]]), np.full(3, inf),
                   np.array([30.0, 2.0, 4.0]), np.array([0, 1, 0]), np.zeros(3, np.int64), np.zeros((3, 3), np.int64))
    at = Levels(np.array([10.0, 4.0]), rows, 0)
    ends = []
    for _ in range(3):
        assert at.settle(0)
        ends.append(at.next_s())
        at.advance(ends[-1])
        at.end(at.due(1e-12))
    assert ends == pytest.approx([1.0, 0.5, 1.7])


@pytest.mark.parametrize("left", [-0.5, -2.0])
def test_a_capacity_that_lost_its_last_flow_is_not_full_whatever_rounding_says(left: float) -> None:
    rows = Crowded(np.array([[0], [1], [1]]), np.ones((3, 1)), np.full(3, inf), np.array([1.0, 8.0, 9.0]),
                   np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros((3, 2), np.int64))
    at = Levels(np.array([1.0, 4.0]), rows, 0)
    at.end(np.array([0]))
    at._x[0] = left  # as it may be beside capacities that are much faster
    assert at.settle(0)
    assert at._x == pytest.approx([1.0, 2.0, 1.0])


@EAGER
@given(traffic())
def test_any_crowd_equals_a_plain_global_solve_at_every_event(eager: list[int], network: Traffic) -> None:
    rates, jobs = network
    ends = [end * 1e-12 for end in simulate(rates, [*jobs, *TWO]).end_ps]
    heaviest = max([1.0, *(load * job.multiplicity for job in jobs for load in job.loads.values())])
    assert ends == pytest.approx(plain_ends_s(rates, [*jobs, *TWO]), rel=1e-9, abs=2e-11 * heaviest)


TWO = [Job(1e6, {0: 1.0}), Job(2e6, {0: 1.0})]  # somebody shares at least


@pytest.mark.parametrize("seed", range(24))
def test_crowds_of_all_kinds_equal_a_plain_global_solve_at_every_event(eager: list[int], seed: int) -> None:
    """Weights, limits, coefficients, starts among ends."""
    rates, jobs = crowd(seed, capacities=4 + seed, flows=60)
    ends = [end * 1e-12 for end in simulate(rates, jobs).end_ps]
    assert ends == pytest.approx(plain_ends_s(rates, jobs), rel=1e-9, abs=6e-11)
    assert max(eager) >= 12


@pytest.mark.parametrize("hosts", [8, 12])
def test_an_all_to_all_equals_a_plain_global_solve_at_every_event(eager: list[int], hosts: int) -> None:
    network = star(hosts, 1)
    ends = [end * 1e-12 for end in simulate(*network).end_ps]
    assert ends == pytest.approx(plain_ends_s(*network), rel=1e-9, abs=6e-11)


@pytest.mark.parametrize("memory", [1.2e9, 2.2e9, 3e9, 1e11])
def test_memory_with_room_to_spare_is_full_when_others_are_done(eager: list[int], memory: float) -> None:
    """Each host's memory is crossed by all that leaves and arrives, and by a few long flows of its own."""
    rates, jobs = star(8, 4)
    for job in jobs:
        source, target = job.loads
        job.loads |= {16 + source: 1.0, 16 + target - 8: 1.0}
    jobs += [Job(3e7, {16 + host: 1.0}, limit=4e8) for host in range(8)]
    ends = [end * 1e-12 for end in simulate([*rates, *[memory] * 8], jobs).end_ps]
    assert ends == pytest.approx(plain_ends_s([*rates, *[memory] * 8], jobs), rel=1e-9, abs=6e-11)


@pytest.mark.parametrize("hosts", [24, 32])
def test_a_large_all_to_all_becomes_a_crowd_and_ends_as_without(hosts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the picosecond or the next one."""
    out = simulate(*star(hosts, 2))
    without = alone(star(hosts, 2), monkeypatch)
    assert out.network.stats.solved < without.network.stats.solved / 2
    assert out.end_ps == pytest.approx(without.end_ps, abs=1, rel=0)
    assert not any(capacity.flows or capacity.crowd for capacity in out.capacities)


def test_what_limited_a_flow_and_how_long_is_known_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    network = star(24, 3)
    out, without = simulate(*network), alone(network, monkeypatch)
    alike = 0
    for flow, other, end_ps in zip(out.flows, without.flows, out.end_ps, strict=True):
        assert sum(flow.bound_ps.values()) == end_ps
        assert set(flow.bound_ps) <= {capacity for capacity, _ in flow.pulls}
        assert flow.bound_ps[flow.bound_by()] == max(flow.bound_ps.values())
        alike += flow.bound_by().name == other.bound_by().name  # type: ignore[union-attr]
    assert alike > 0.9 * len(out.flows)  # where two limit it at once, either may be named


def test_equal_flows_of_a_crowd_end_together(eager: list[int]) -> None:
    """Four rings of the same sizes, each size once in a ring: four ends at a time."""
    hosts = 8
    jobs = [Job(1e6 + 1e4 * step, {a: 1.0, hosts + (a + step) % hosts: 1.0})
            for a in range(hosts) for step in range(1, hosts)]
    ends = simulate([1e9] * 2 * hosts, jobs).end_ps
    assert len(set(ends)) == hosts - 1


def test_a_start_among_a_crowd_gives_the_network_its_flows_back(eager: list[int]) -> None:
    env = Environment()
    network = Network(env)
    shared = Capacity("shared", 1e9)
    ended: list[int] = []
    for size in (1e9, 2e9):
        network.start(Flow(size, [(shared, 1.0)]), lambda _: ended.append(int(env.now)))
    env.run(until=S)
    assert shared.crowd is not None
    assert shared.used_bytes_per_s() == pytest.approx(1e9)
    call_later(env, 0, lambda _: network.start(Flow(1e9, [(shared, 1.0)]), lambda _: ended.append(int(env.now))))
    env.run()
    assert ended == [5 * S // 2, 7 * S // 2, 4 * S]
    assert shared.crowd is None


def test_what_cannot_be_settled_is_solved_by_the_network(eager: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "ROUNDS", 1)
    rates, jobs = crowd(5, capacities=9, flows=60)
    ends = [end * 1e-12 for end in simulate(rates, jobs).end_ps]
    assert ends == pytest.approx(plain_ends_s(rates, jobs), rel=1e-9, abs=6e-11)


def test_limits_bind_and_release_in_a_crowd(eager: list[int]) -> None:
    """At its limit beside few, held back beside many."""
    out = simulate([1e9], [Job(4e8, {0: 1.0}, 4e8), *(Job(1e8 * k, {0: 1.0}) for k in range(1, 5))])
    assert out.end_ps == [round(end * 1e12) for end in plain_ends_s([1e9], [
        Job(4e8, {0: 1.0}, 4e8), *(Job(1e8 * k, {0: 1.0}) for k in range(1, 5))])]
    assert set(out.flows[0].bound_ps) == {out.capacities[0], LIMIT}
