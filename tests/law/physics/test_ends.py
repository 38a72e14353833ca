"""Laws of many ends: each at its own time, in order, whether few or thousands are in flight."""

from __future__ import annotations

from random import Random

import pytest

from simulator.physics.clock import Clock, call_later
from simulator.physics.flows import Capacity, Flow, Network
from simulator.units import to_ps
from tests.law.physics.plain import Job, simulate


@pytest.mark.parametrize("count", [3, 63, 66, 400, 3000])
def test_flows_that_share_nothing_end_after_their_time_alone(count: int) -> None:
    random = Random(count)
    jobs = [Job(random.uniform(1e3, 1e6), {k: 1.0}, start_ps=random.choice([0, 0, random.randrange(10**9)]))
            for k in range(count)]
    out = simulate([1e9] * count, jobs)
    assert out.end_ps == [job.start_ps + to_ps(job.size / 1e9) for job in jobs]
    assert out.network.stats.solves == 0


def test_done_is_called_in_the_order_of_time_then_of_start() -> None:
    random, env = Random(5), Clock()
    network = Network(env)
    sizes = [float(random.randrange(1, 50)) for _ in range(500)]
    seen: list[tuple[int, int]] = []
    for k, size in enumerate(sizes):
        network.start(Flow(size, [(Capacity(str(k), 1e12), 1.0)], tag=k), lambda f: seen.append((int(env.now), f.tag)))
    env.run()
    assert seen == sorted((int(size), k) for k, size in enumerate(sizes))


def test_flows_started_while_others_end_take_their_place_among_them() -> None:
    """Each end of a hundred starts another flow, earlier or later than those in flight."""
    random, env = Random(6), Clock()
    network = Network(env)
    expected: list[int] = []
    ended: list[int] = []

    def start(flow: Flow | None = None) -> None:
        if flow is not None:
            ended.append(int(env.now))
        if len(expected) < 2000:
            size = float(random.randrange(1, 10**6))
            expected.append(int(env.now) + int(size))
            network.start(Flow(size, [(Capacity("own", 1e12), 1.0)]), start)

    for _ in range(100):
        start()
    env.run()
    assert ended == sorted(expected)


def test_the_clock_does_not_run_past_what_others_wait_for() -> None:
    """Between two ends that follow each other an event of somebody else still comes in its time."""
    env = Clock()
    network = Network(env)
    seen: list[tuple[str, int]] = []
    for size in (10.0, 20.0, 30.0, 40.0):
        network.start(Flow(size, [(Capacity("own", 1e12), 1.0)]), lambda _: seen.append(("end", int(env.now))))
    call_later(env, 25, lambda _: seen.append(("other", int(env.now))))
    call_later(env, 30, lambda _: seen.append(("other", int(env.now))))
    env.run(until=35)
    assert (env.now, seen[-1]) == (35, ("other", 30)) or (env.now, seen[-1]) == (35, ("end", 30))
    env.run()
    assert sorted(at for _, at in seen) == [10, 20, 25, 30, 30, 40]
    assert [at for _, at in seen] == sorted(at for _, at in seen)
