"""Laws of batches: flows that the compiled solver moves go as if all rates were solved afresh at every event."""

from __future__ import annotations

from random import Random

import pytest

from simulator.physics import batches, ranked
from simulator.physics.clock import Clock, call_later
from simulator.physics.flows import Capacity, Countdown, Flow, Network
from simulator.physics.maxmin import LIMIT
from tests.law.physics.plain import Job, Outcome, plain_ends_s, simulate
from tests.law.physics.test_flows import Traffic, crowd

S = 10**12


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is solved becomes a batch at once, and stays one."""
    if ranked.library() is None:
        pytest.skip("no compiled solver here")
    monkeypatch.setattr(batches, "MANY", 1)
    monkeypatch.setattr(batches, "FEW", 1)


def star(hosts: int, seed: int) -> Traffic:
    """Each host sends to each other over its up and their down port, every size different."""
    sizes = Random(seed).sample(range(10**6, 3 * 10**6), hosts * hosts)
    return [1e9] * 2 * hosts, [
        Job(sizes.pop(), {a: 1.0, hosts + b: 1.0}) for a in range(hosts) for b in range(hosts) if a != b
    ]


def without(network: Traffic, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Solved by Python."""
    with monkeypatch.context() as patch:
        patch.setattr(batches, "MANY", 10**9)
        return simulate(*network)


@pytest.mark.parametrize("seed", range(24))
def test_batches_of_all_kinds_equal_a_plain_global_solve_at_every_event(seed: int) -> None:
    """Weights, limits, coefficients, starts among ends."""
    rates, jobs = crowd(seed, capacities=4 + seed, flows=60)
    ends = [end * 1e-12 for end in simulate(rates, jobs).end_ps]
    assert ends == pytest.approx(plain_ends_s(rates, jobs), rel=1e-9, abs=6e-11)


@pytest.mark.parametrize("memory", [1.2e9, 2.2e9, 3e9, 1e11])
def test_memory_with_room_to_spare_is_full_when_others_are_done(memory: float) -> None:
    """Each host's memory is crossed by all that leaves and arrives, and by a few long flows of its own."""
    rates, jobs = star(8, 4)
    for job in jobs:
        source, target = job.loads
        job.loads |= {16 + source: 1.0, 16 + target - 8: 1.0}
    jobs += [Job(3e7, {16 + host: 1.0}, limit=4e8) for host in range(8)]
    ends = [end * 1e-12 for end in simulate([*rates, *[memory] * 8], jobs).end_ps]
    assert ends == pytest.approx(plain_ends_s([*rates, *[memory] * 8], jobs), rel=1e-9, abs=6e-11)


def test_both_solvers_end_an_all_to_all_alike_to_a_picosecond(monkeypatch: pytest.MonkeyPatch) -> None:
    out, plain = simulate(*star(16, 2)), without(star(16, 2), monkeypatch)
    assert out.end_ps == pytest.approx(plain.end_ps, abs=1, rel=0)
    assert not any(capacity.flows for capacity in out.capacities)
    assert not out.network.active


def test_what_limited_a_flow_and_how_long_is_known_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    network = star(16, 3)
    out, plain = simulate(*network), without(network, monkeypatch)
    alike = 0
    for flow, other, end_ps in zip(out.flows, plain.flows, out.end_ps, strict=True):
        assert sum(flow.bound_ps.values()) == end_ps
        assert set(flow.bound_ps) <= {capacity for capacity, _ in flow.pulls}
        assert flow.bound_ps[flow.bound_by()] == max(flow.bound_ps.values())
        alike += flow.bound_by().name == other.bound_by().name  # type: ignore[union-attr]
    assert alike > 0.9 * len(out.flows)  # where two limit it at once, either may be named


def test_equal_flows_of_a_batch_end_together() -> None:
    """Four rings of the same sizes, each size once in a ring: four ends at a time."""
    hosts = 8
    jobs = [Job(1e6 + 1e4 * step, {a: 1.0, hosts + (a + step) % hosts: 1.0})
            for a in range(hosts) for step in range(1, hosts)]
    ends = simulate([1e9] * 2 * hosts, jobs).end_ps
    assert len(set(ends)) == hosts - 1


def test_others_join_a_batch_and_what_moves_there_can_be_asked() -> None:
    env = Clock()
    network = Network(env)
    shared = Capacity("shared", 1e9)
    ended: list[int] = []
    for size in (1e9, 2e9):
        network.start(Flow(size, [(shared, 1.0)]), lambda _: ended.append(env.now_ps))
    env.run(until=S)
    assert shared.batch is not None
    assert shared.used_bytes_per_s() == pytest.approx(1e9)
    call_later(env, 0, lambda _: network.start(Flow(1e9, [(shared, 1.0)]), lambda _: ended.append(env.now_ps)))
    env.run()
    assert ended == [5 * S // 2, 7 * S // 2, 4 * S]


def test_what_moves_in_a_batch_counts_every_byte_whatever_the_weights() -> None:
    """1, 2 and 5 shares of 800 bytes/s; the last one moves two bytes elsewhere for each of its own."""
    env = Clock()
    network, shared, elsewhere = Network(env), Capacity("shared", 800.0), Capacity("elsewhere", 5000.0)
    network.start(Flow(1e4, [(shared, 1.0)], weight=1.0), None)
    network.start(Flow(1e4, [(shared, 1.0)], weight=2.0), None)
    network.start(Flow(1e4, [(shared, 1.0), (elsewhere, 2.0)], weight=5.0), None)
    env.run(until=S)
    assert shared.batch is not None
    assert shared.used_bytes_per_s() == pytest.approx(800.0)
    assert elsewhere.used_bytes_per_s() == pytest.approx(2 * 500.0)


@pytest.mark.parametrize("few", [1, 3])
def test_what_begins_in_a_batch_that_goes_back_to_the_network_goes_on(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of one of three lets another one begin at once, while two are left."""
    monkeypatch.setattr(batches, "FEW", few)
    env, ended = Clock(), []
    network, shared = Network(env), Capacity("shared", 1e9)

    def start(size: float, then: float = 0.0) -> None:
        def done(_: Flow) -> None:
            ended.append(env.now_ps)
            if then:
                start(then)

        network.start(Flow(size, [(shared, 1.0)]), done)

    start(1e9, then=3e9)
    start(2e9)
    start(4e9)
    env.run()
    assert ended == [3 * S, 6 * S, 10 * S, 10 * S]
    assert not network.active


def test_a_flow_that_reaches_two_countdowns_was_limited_as_long_as_it_took() -> None:
    env, seen = Clock(), []
    network, first, shared = Network(env), Capacity("first", 1e9), Capacity("shared", 1.5e9)
    flow = Flow(2e9, [(first, 1.0), (shared, 1.0)])
    flow.countdowns = Countdown(1, seen.append), Countdown(1, seen.append)
    network.start(flow, None)
    network.start(Flow(1e9, [(shared, 1.0)]), None)
    env.run()
    assert seen == [flow, flow]
    assert dict(flow.bound_ps) == {shared: 4 * S // 3 + 1, first: S}  # ends are rounded up


def test_what_takes_months_ends() -> None:
    """Up to 2**63 ps, 106 days."""
    jobs = [Job(1e9 * day * 86_400, {0: 1.0, 1: 1.0}) for day in (10.0, 20.0, 25.0)]
    assert [round(end / S / 86_400) for end in simulate([1e9, 1e9], jobs).end_ps] == [30, 50, 55]
    with pytest.raises(OverflowError, match="end after"):
        simulate([1e8, 1e8], jobs)


def test_a_flow_without_a_limit_gets_one_in_a_batch() -> None:
    """No shared capacity is touched by it: 1 s at half of 1e9 bytes/s, then one at 1e8, the other at the rest."""
    env, ended = Clock(), {}
    network, shared = Network(env), Capacity("shared", 1e9)
    flows = [Flow(1e9, [(shared, 1.0)], tag=tag) for tag in ("limited", "other")]
    for flow in flows:
        network.start(flow, lambda flow: ended.update({flow.tag: env.now_ps}))
    call_later(env, S, lambda _: network.set_limit(flows[0], 1e8))
    env.run()
    assert ended == {"limited": 6 * S, "other": 1_555_555_555_556}
    assert shared.rate_bytes_per_s == 1e9


def test_limits_bind_and_release_in_a_batch() -> None:
    """At its limit beside few, held back beside many."""
    jobs = [Job(4e8, {0: 1.0}, 4e8), *(Job(1e8 * k, {0: 1.0}) for k in range(1, 5))]
    out = simulate([1e9], jobs)
    assert out.end_ps == [round(end * 1e12) for end in plain_ends_s([1e9], jobs)]
    assert set(out.flows[0].bound_ps) == {out.capacities[0], LIMIT}


@pytest.mark.parametrize("few", [1, 4])
def test_what_a_batch_gives_back_was_limited_as_long_as_beside_no_batch(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the capacity beside many, at its limit beside few, some of that time after the batch was given up."""
    monkeypatch.setattr(batches, "FEW", few)
    network = [1e9], [Job(9e8, {0: 1.0}, 3e8), *(Job(1e8 * k, {0: 1.0}) for k in range(1, 6))]
    out, plain = simulate(*network), without(network, monkeypatch)
    for one, other in zip(out.flows, plain.flows, strict=True):
        times = [{"limit" if bound == LIMIT else "shared": spent for bound, spent in flow.bound_ps.items()}
                 for flow in (one, other)]  # fmt: skip
        assert times[0] == pytest.approx(times[1], abs=3)
    assert set(out.flows[0].bound_ps) == {out.capacities[0], LIMIT}


@pytest.mark.parametrize("few", [1, 6])
def test_a_countdown_is_reached_with_its_last_flow(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of its flows are in a batch, one is alone; a batch of few goes back to the network."""
    monkeypatch.setattr(batches, "FEW", few)
    env, seen = Clock(), []
    network, shared, own = Network(env), Capacity("shared", 1e9), Capacity("own", 1e9)
    fast = Countdown(4, lambda flow: seen.append((env.now_ps, "fast", flow.tag)))
    every = Countdown(9, lambda flow: seen.append((env.now_ps, "every", flow.tag)))
    for k in range(8):
        flow = Flow(1e8 * (k + 1), [(shared, 1.0)], tag=k)
        flow.countdowns = (fast, every) if k < 4 else (every,)
        network.start(flow, None)
    alone = Flow(1e10, [(own, 1.0)], tag="alone")
    alone.countdowns = (every,)
    network.start(alone, None)
    env.run()
    assert seen == [(26 * S // 10, "fast", 3), (10 * S, "every", "alone")]
    assert not network.active


def test_what_one_batch_brings_about_concerns_the_next_at_the_same_instant() -> None:
    """Two batches have an end at 2 s; the first one's starts a flow in the second, whose other flow then has half."""
    env, seen = Clock(), []
    network, one, two = Network(env), Capacity("one", 1e9), Capacity("two", 1e9)

    def say(flow: Flow) -> None:
        seen.append((env.now_ps // 10**9, flow.tag))

    def more(flow: Flow) -> None:
        say(flow)
        network.start(Flow(1e9, [(two, 1.0)], tag="more"), say)

    for capacity, done in ((one, more), (two, None)):
        for size in (1e9, 3e9):
            flow = Flow(size, [(capacity, 1.0)], tag=(capacity.name, size))
            network.start(flow, done if size == 1e9 else say)
    env.run()
    assert seen == [(2000, ("one", 1e9)), (4000, ("one", 3e9)), (4000, "more"), (5000, ("two", 3e9))]


def test_a_batch_gives_up_what_has_ended() -> None:
    """Thousands that come one after the other do not gather in it."""
    env = Clock()
    network, shared = Network(env), Capacity("shared", 1e9)
    left = [3000]

    def again(_: object) -> None:
        if left[0]:
            left[0] -= 1
            network.start(Flow(1e6, [(shared, 1.0)]), again)

    network.start(Flow(1e12, [(shared, 1.0)]), lambda _: None)
    for _ in range(2):
        again(None)
    env.run(until=2 * S)
    assert shared.batch is not None
    assert len(shared.batch._all) < 600
    env.run()
    assert env.now == round((1e12 + 3000 * 1e6) / 1e9 * 1e12)


def test_a_capacity_that_is_slowed_while_nothing_is_on_it_holds_what_comes_later() -> None:
    clock = Clock()
    network = Network(clock)
    crossed, common = Capacity("crossed", 100.0), Capacity("common", 64.0)
    ports = [Capacity("port 0", 15.0), Capacity("port 1", 15.0)]
    ended: dict[object, int] = {}

    def start(tag: object, size: float, loads: list[tuple[Capacity, float]], weight: float) -> None:
        network.start(Flow(size, loads, weight=weight, tag=tag), lambda flow: ended.update({flow.tag: clock.now_ps}))

    def over_both(what: str, size: float) -> None:
        for number, port in enumerate(ports):
            start((what, number), size, [(crossed, 1.0), (port, 1.0), (common, 1e-3)], 128.0)

    for number in range(64):
        start(number, 100.0, [(common, 1.0)], 1.0)
    over_both("first", 15.0)
    call_later(clock, 5 * 10**12, lambda _: network.set_rate(crossed, 20.0))
    call_later(clock, 6 * 10**12, lambda _: over_both("second", 150.0))
    clock.run()
    assert [ended["second", number] for number in (0, 1)] == [21 * 10**12] * 2


@pytest.mark.parametrize("many", [1, 10**9])
def test_what_ends_in_one_instant_is_told_in_the_order_of_its_start(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two batches and of none, with and without them."""
    monkeypatch.setattr(batches, "MANY", many)
    env, told = Clock(), []
    network, two = Network(env), [Capacity("x", 1e9), Capacity("y", 1e9)]
    last: list[int] = []
    countdowns = [Countdown(6, lambda flow: last.append(flow.serial)) for _ in range(2)]
    for number in range(9):
        alone = number % 3 == 2
        flow = Flow(3e9 if alone else 1e9, [(Capacity("z", 1e9) if alone else two[number % 3], 1.0)])
        flow.countdowns = [one for place, one in enumerate(countdowns) if number % 3 != place]
        network.start(flow, lambda flow: told.append(flow.serial))
    env.run()
    assert env.now_ps == 3 * S
    assert told == [*range(9)]
    assert last == [8, 8]
    assert not network.active
