"""Laws of flows on the clock: bytes conserved, capacities kept, equal to a solve of everything at every event."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.physics.clock import Clock, call_later
from simulator.physics.flows import Capacity, Flow, Network, StalledFlowError
from simulator.physics.maxmin import LIMIT
from tests.law.physics.networks import traffic
from tests.law.physics.plain import Job, Outcome, plain_ends_s, simulate

S = 10**12
Traffic = tuple[list[float], list[Job]]


def integrals(out: Outcome, jobs: list[Job]) -> list[float]:
    """Bytes moved per flow, from the rates that watchers saw."""
    moved = [0.0] * len(jobs)
    for (now, rates), (then, _) in zip(out.rates, [*out.rates[1:], (out.rates[-1][0], {})], strict=True):
        for k, r in rates.items():
            moved[k] += r * (then - now) * 1e-12
    return moved


def test_the_worked_example_of_the_module() -> None:
    assert simulate([10.0], [Job(30, {0: 1.0}), Job(10, {0: 1.0}, start_ps=S)]).end_ps == [4 * S, 3 * S]


def test_rates_are_solved_when_two_meet_and_when_one_leaves_and_not_for_a_flow_alone() -> None:
    out = simulate([10.0], [Job(30, {0: 1.0}), Job(10, {0: 1.0}, start_ps=S)])
    assert (out.network.stats.solves, out.network.stats.solved) == (2, 3)


@settings(deadline=None, max_examples=300)
@given(traffic())
def test_it_equals_a_plain_global_solve_at_every_event(network: Traffic) -> None:
    rates, jobs = network
    ends = [end * 1e-12 for end in simulate(rates, jobs).end_ps]
    # each change rounds up to 1 ps, in which a flow alone moves as much as in so many ps beside a heavy one
    heaviest = max([1.0, *(load * job.multiplicity for job in jobs for load in job.loads.values())])
    assert ends == pytest.approx(plain_ends_s(rates, jobs), rel=1e-9, abs=2e-11 * heaviest)


@settings(deadline=None, max_examples=200)
@given(traffic())
def test_capacities_are_kept_and_bytes_conserved(network: Traffic) -> None:
    rates, jobs = network
    out = simulate(rates, jobs, watch=True)
    for _, moving in out.rates:
        for i, capacity in enumerate(rates):
            used = sum(r * jobs[k].multiplicity * jobs[k].loads.get(i, 0.0) for k, r in moving.items())
            assert used <= capacity * (1 + 1e-9)
        assert all(r <= jobs[k].limit for k, r in moving.items())
    for k, moved in enumerate(integrals(out, jobs)):
        fastest = max(moving.get(k, 0.0) for _, moving in out.rates)
        assert moved == pytest.approx(jobs[k].size, rel=1e-9, abs=fastest * 2e-12)  # the last picosecond is rounded up
    assert not out.network.active
    assert not any(capacity.flows for capacity in out.capacities)


@settings(deadline=None, max_examples=150)
@given(traffic(), st.randoms(use_true_random=False))
def test_order_of_starts_changes_nothing(network: Traffic, random) -> None:  # type: ignore[no-untyped-def]
    rates, jobs = network
    ends = simulate(rates, jobs).end_ps
    order = random.sample(range(len(jobs)), len(jobs))
    again = simulate(rates, [jobs[k] for k in order]).end_ps
    assert again == [ends[k] for k in order]


@settings(deadline=None, max_examples=150)
@given(traffic(), st.integers(2, 12))
def test_folded_equals_unfolded(network: Traffic, m: int) -> None:
    """m copies of the first flow, or one with m times the multiplicity: to the picosecond, or to the last bits of a
    float where the run lasts so long (minutes) that these are more than that."""
    rates, jobs = network
    first, rest = jobs[0], jobs[1:]
    apart = simulate(rates, [first] * m + rest).end_ps
    folded = Job(**{**vars(first), "multiplicity": first.multiplicity * m})
    together = simulate(rates, [folded, *rest]).end_ps
    assert apart[:m] == [apart[0]] * m
    assert [apart[0], *apart[m:]] == pytest.approx(together, abs=1, rel=4e-15)


@settings(deadline=None, max_examples=100)
@given(traffic(), st.integers(2, 6))
def test_replicas_that_share_nothing_are_alike_to_the_bit(network: Traffic, ranks: int) -> None:
    """What one rank does beside others that do the same is what it does alone."""
    rates, jobs = network
    alone = simulate(rates, jobs).end_ps
    n = len(rates)
    many = [
        Job(**{**vars(job), "loads": {i + n * rank: c for i, c in job.loads.items()}})
        for rank in range(ranks)
        for job in jobs
    ]
    assert simulate(rates * ranks, many).end_ps == alone * ranks


def crowd(seed: int, capacities: int, flows: int) -> Traffic:
    """Many flows over few capacities, with arrivals among departures; half of the networks have round numbers."""
    random = Random(seed)
    even = seed % 2 == 0

    def number(low: float, high: float) -> float:
        return random.choice([low, high]) if even else random.uniform(low, high)

    jobs = [
        Job(
            number(1e6, 3e6),
            {i: number(1.0, 2.0) for i in random.sample(range(capacities), random.choice([1, 2, 3, capacities // 2]))},
            limit=random.choice([inf, inf, number(1e8, 1e9)]),
            weight=random.choice([1.0, 1.0, 2.0]),
            multiplicity=random.choice([1, 1, 1, 4]),
            start_ps=random.choice([0, 10**9, random.randrange(10**10)]),
        )
        for _ in range(flows)
    ]
    return [number(1e9, 4e9) for _ in range(capacities)], jobs


@pytest.mark.parametrize("seed", range(24))
def test_crowds_equal_a_plain_global_solve_at_every_event(seed: int) -> None:
    rates, jobs = crowd(seed, capacities=4 + seed, flows=60)
    ends = [end * 1e-12 for end in simulate(rates, jobs).end_ps]
    assert ends == pytest.approx(plain_ends_s(rates, jobs), rel=1e-9, abs=6e-11)


@pytest.mark.parametrize("seed", range(12))
def test_crowds_folded_equal_crowds_unfolded_to_the_picosecond(seed: int) -> None:
    rates, jobs = crowd(seed, capacities=4 + seed, flows=30)
    m = (3, 8, 32)[seed % 3]
    apart = simulate(rates, [jobs[0]] * m + jobs[1:]).end_ps
    folded = Job(**{**vars(jobs[0]), "multiplicity": jobs[0].multiplicity * m})
    assert [apart[0], *apart[m:]] == simulate(rates, [folded, *jobs[1:]]).end_ps


def test_all_to_all_of_different_sizes_equals_a_plain_global_solve_at_every_event() -> None:
    """Each host sends to each other over its up and their down port, every size different."""
    random, hosts = Random(1), 8
    jobs = [
        Job(random.uniform(5e5, 15e5), {source: 1.0, hosts + target: 1.0})
        for source in range(hosts)
        for target in range(hosts)
        if source != target
    ]
    ends = [end * 1e-12 for end in simulate([1e9] * 2 * hosts, jobs).end_ps]
    assert ends == pytest.approx(plain_ends_s([1e9] * 2 * hosts, jobs), rel=1e-9, abs=6e-11)


def collective(ranks: int, hbm: float) -> tuple[list[float], list[Job]]:
    """Local flows on (L2, HBM) of each rank, in two waves, under one flow that crosses all ranks in lock-step."""
    rates = [4e12, hbm, 2e11] * ranks
    jobs = [Job(1e9, {k: c for r in range(ranks) for k, c in ((3 * r, 2.0), (3 * r + 1, 2.0), (3 * r + 2, 1.0))})]
    for r in range(ranks):
        jobs += [Job(2e9, {3 * r: 1.0, 3 * r + 1: 0.7}, 2.5e12, start_ps=t * S // 1000) for t in (0, 1, 2)]
    return rates, jobs


@pytest.mark.parametrize("hbm", [1.6e12, 3e11, inf])
def test_ranks_in_lock_step_are_one_rank(hbm: float) -> None:
    """32 ranks that do the same are, to the picosecond, one rank."""
    one = simulate(*collective(1, hbm)).end_ps
    assert simulate(*collective(32, hbm)).end_ps == one[:1] + one[1:] * 32


def test_a_neighbour_in_another_component_is_not_touched() -> None:
    """Arrivals elsewhere neither solve nor move a flow."""
    jobs = [Job(1e9, {0: 1.0})] * 2 + [Job(1e6, {1: 1.0}, start_ps=k * 2 * 10**9) for k in range(50)]
    out = simulate([1e9, 1e9], jobs)
    assert out.network.stats.started == 52
    assert out.network.stats.solved == 2


def test_while_there_is_room_for_all_nobody_is_solved() -> None:
    out = simulate([10.0], [Job(40, {0: 1.0}, 4.0), Job(25, {0: 1.0}, 5.0, start_ps=S), Job(1, {0: 1.0}, 0.5)])
    assert out.end_ps == [10 * S, 6 * S, 2 * S]
    assert (out.network.stats.solves, out.network.stats.solved) == (0, 0)


def test_what_watchers_see_of_a_crowd_adds_up_to_its_bytes() -> None:
    """More than a batch has need of; their ends come one by one."""
    jobs = [Job(1e9 + 1e7 * k, {0: 1.0, 1 + k % 2: 2.0}) for k in range(64)]
    out = simulate([8e9, 1e10, 1e10], jobs, watch=True)
    assert integrals(out, jobs) == pytest.approx([job.size for job in jobs], rel=1e-9)
    assert len(set(out.end_ps)) == 64


def test_a_flow_held_back_elsewhere_is_not_solved_again() -> None:
    """A collective bound by its port leaves HBM idle: kernels that come and go beside it do not concern it."""
    jobs = [Job(1e9, {0: 1.0, 1: 2.0})] + [Job(1e6, {1: 1.0}, start_ps=k * 2 * 10**9) for k in range(50)]
    out = simulate([1e9, 1e12], jobs)
    assert out.network.stats.solved <= 51
    assert out.end_ps[0] == S


def test_who_has_as_much_as_before_from_others_like_those_before_is_not_asked() -> None:
    """X and Y are on C, Y and W on D, which holds Y back. W ends and another one like it begins: Y has the same rate,
    so X stays as it is."""
    env = Clock()
    network, c, d = Network(env), Capacity("C", 10.0), Capacity("D", 8.0)
    x, y = Flow(600, [(c, 1.0)]), Flow(400, [(c, 1.0), (d, 1.0)])
    network.start(x, None)
    network.start(y, None)
    network.start(Flow(4, [(d, 1.0)]), lambda _: network.start(Flow(400, [(d, 1.0)]), None))
    env.run(until=2 * S)
    assert (x.rate_bytes_per_s, y.rate_bytes_per_s, network.stats.solved) == (6.0, 4.0, 3 + 2)
    assert (x.since_ps, y.since_ps) == (0, 0)


def test_a_rate_that_is_solved_again_moves_no_end_by_rounding() -> None:
    """The first one ends at 1.3 s; the last one is still held back beside the second, at 7/22 bytes/s, give or take a
    last digit."""
    env = Clock()
    network, one, two = Network(env), Capacity("one", 7.0), Capacity("two", 7.0)
    last = Flow(37, [(one, 1.0), (two, 1.0)])
    network.start(Flow(3, [(one, 3.0)], weight=7.0), None)
    call_later(env, S, lambda _: network.start_all([Flow(40, [(two, 3.0)], weight=7.0), last], 0))
    env.run(until=2 * S)
    assert last.rate_bytes_per_s == pytest.approx(7 / 22)
    assert (network.stats.solves, last.since_ps) == (2, S)


def test_a_limit_that_comes_in_its_latency_counts_from_its_first_byte() -> None:
    """Alone, so that its end is known before it begins: 1 s, then 10 bytes at 2 bytes/s instead of 5."""
    env, ended = Clock(), []
    network, flow = Network(env), Flow(10, [(Capacity("wide", 100.0), 1.0)], 5.0)
    network.start(flow, lambda _: ended.append(env.now), S)
    call_later(env, S // 2, lambda _: network.set_limit(flow, 2.0))
    env.run()
    assert ended == [6 * S]


def test_many_ends_of_one_instant_are_one_batch() -> None:
    env = Clock()
    network = Network(env)
    shared, seen = Capacity("shared", 64e9), []
    for _ in range(64):
        network.start(Flow(1e9, [(shared, 1.0)]), lambda flow: seen.append((env.now, len(network.active))))
    env.run()
    assert seen == [(S, 0)] * 64
    assert network.stats.solves == 1


def test_latency_loads_nothing_and_counts_as_in_flight() -> None:
    out = simulate([1e9], [Job(1e9, {0: 1.0}), Job(1e9, {0: 1.0}, latency_ps=S)], watch=True)
    assert out.end_ps == [S, 2 * S]
    assert out.rates[0] == (0, {0: 1e9, 1: 0.0})


def test_a_flow_without_bytes_ends_after_its_latency_and_never_inside_start() -> None:
    env = Clock()
    network = Network(env)
    seen: list[tuple[object, int]] = []
    for latency in (0, 5):
        flow = Flow(0, [(Capacity("dead", 0.0), 1.0)], tag=latency)
        network.start(flow, lambda flow: seen.append((flow.tag, env.now)), latency)
    assert not seen
    env.run()
    assert seen == [(0, 0), (5, 5)]


def test_nothing_limits_a_flow_without_bytes_for_any_time() -> None:
    env = Clock()
    network, flow = Network(env), Flow(0, [(Capacity("idle", 1.0), 1.0)])
    network.start(flow, None, 5)
    env.run()
    assert flow.longest_bound(1000)[1] == 0
    assert flow.pulls == ()


def test_another_flow_like_this_one_loads_the_same_also_what_never_binds() -> None:
    loads = [(Capacity("endless", inf), 1.0), (Capacity("idle", 1.0), 0.0), (Capacity("port", 4.0), 2.0)]
    one = Flow(8, loads, 3.0, weight=2.0, multiplicity=2)
    again = one.again(16)
    assert (again.loads, again.pulls, again.weight, again.multiplicity) == (loads, one.pulls, 2.0, 2)
    assert (one.solo_s(), again.solo_s()) == (8.0, 16.0)


def test_what_others_leave_may_be_less_than_a_byte_per_second() -> None:
    """Half a byte/s beside one at its limit."""
    assert simulate([1.0], [Job(4, {0: 1.0}, 0.5), Job(1, {0: 1.0}, start_ps=S)]).end_ps == [8 * S, 3 * S]


def test_infinite_capacities_never_bind() -> None:
    out = simulate([inf, 1e9], [Job(5e9, {0: 1.0}), Job(1e9, {0: 3.0, 1: 1.0})])
    assert out.end_ps == [0, S]
    assert out.flows[0].solo_s() == 0.0


def test_solo_time_is_the_time_alone() -> None:
    hbm, l2 = Capacity("HBM", 1e9), Capacity("L2", 4e9)
    assert Flow(2e9, [(l2, 1.0), (hbm, 0.5)]).solo_s() == 1.0
    assert Flow(2e9, [(l2, 1.0), (hbm, 0.5)], 5e8).solo_s() == 4.0
    assert Flow(2e9, [(l2, 1.0)], multiplicity=8).solo_s() == 4.0
    assert Flow(0, [(l2, 1.0)]).solo_s() == 0.0
    assert Flow(1e9, [(l2, 1.0), (l2, 3.0)]).solo_s() == 1.0


def test_bound_by_is_what_limited_it_longest() -> None:
    """Alone at its limit for 1 s, in company on the capacity for 2 s, at its limit again for 0.5 s."""
    out = simulate([1e9], [Job(2.2e9, {0: 1.0}, 8e8), Job(1e9, {0: 1.0}, start_ps=S)])
    flow, shared = out.flows[0], out.capacities[0]
    assert flow.bound_by() is shared
    assert flow.bound_ps[shared] == 2 * S
    assert sum(flow.bound_ps.values()) == out.end_ps[0]
    assert simulate([1e9], [Job(1e9, {0: 1.0}, 8e8)]).flows[0].bound_by() == LIMIT


def test_bound_by_in_flight() -> None:
    env = Clock()
    network = Network(env)
    shared = Capacity("shared", 1e9)
    flow = Flow(10e9, [(shared, 1.0)], 1e9 / 2)
    network.start(flow, lambda _: None)
    env.run(until=S)
    assert flow.bound_by(S) == LIMIT
    network.start(Flow(10e9, [(shared, 1.0)]), lambda _: None)
    network.start(Flow(10e9, [(shared, 1.0)]), lambda _: None)
    env.run(until=4 * S)
    assert flow.bound_by(4 * S) is shared


@pytest.mark.parametrize("arguments", [
    {"size_bytes": 1.0, "loads": []},
    {"size_bytes": -1.0, "loads": [], "limit_bytes_per_s": 1.0},
    {"size_bytes": inf, "loads": [], "limit_bytes_per_s": 1.0},
    {"size_bytes": 1.0, "loads": [(Capacity("x", 1.0), -1.0)]},
    {"size_bytes": 1.0, "loads": [(Capacity("x", 1.0), float("nan"))]},
    {"size_bytes": 1.0, "loads": [(Capacity("x", 1.0), 1.0)], "weight": 0.0},
    {"size_bytes": 1.0, "loads": [(Capacity("x", 1.0), 1.0)], "multiplicity": 0},
])  # fmt: skip
def test_flows_that_make_no_sense(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Flow"):
        Flow(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("flow", "named"), [
    (Flow(1.0, [(Capacity("dead link", 0.0), 1.0)], tag="all-to-all"), "all-to-all.*dead link.*0 bytes/s"),
    (Flow(1.0, [(Capacity("HBM", 1.0), 1.0)], 0.0, tag="gemm"), "gemm.*its limit is 0"),
])  # fmt: skip
def test_a_flow_that_can_never_progress_is_named(flow: Flow, named: str) -> None:
    with pytest.raises(StalledFlowError, match=named):
        Network(Clock()).start(flow, lambda _: None)
    assert flow.solo_s() == inf


def test_a_flow_starts_once() -> None:
    network, flow = Network(Clock()), Flow(1.0, [], 1.0)
    network.start(flow, lambda _: None)
    with pytest.raises(ValueError, match="before"):
        network.start(flow, lambda _: None)


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="link"):
        Capacity("link", -1.0)


@pytest.mark.parametrize("hbm", [1.6e12, 3e11])
@pytest.mark.parametrize("seed", range(3))
def test_uneven_ranks_under_one_collective_equal_a_plain_global_solve(hbm: float, seed: int) -> None:
    """What happens on one rank reaches the others only through the collective, and then all the way."""
    random = Random(seed)
    rates, jobs = collective(6, hbm)
    uneven = [jobs[0]] + [Job(**{**vars(job), "start_ps": random.randrange(5 * 10**9)}) for job in jobs[1:]]
    ends = [end * 1e-12 for end in simulate(rates, uneven).end_ps]
    assert ends == pytest.approx(plain_ends_s(rates, uneven), rel=1e-9, abs=2e-11)
