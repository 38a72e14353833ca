"""Speed of the flow network: flows that share nothing, and flows that all share, on a star or a tree."""

from __future__ import annotations

from dataclasses import replace

from simulator.bench.benchmark import Measurement, best_of, timed
from simulator.physics.clock import Clock, call_later
from simulator.physics.flows import Capacity, Countdown, Flow, Network

INDEPENDENT_FLOWS = 20_000
HOSTS = 144
TREE_HOSTS, TREE_BELOW = 32, 8  # in all, and under each switch
RATE_BYTES_PER_S = 1e11
FLOW_BYTES = 1e6


def independent(count: int = INDEPENDENT_FLOWS) -> Measurement:
    """20,000 flows, each alone on a capacity of its own; value: CPU microseconds a flow, started to finished."""
    return best_of(lambda: _measured([Flow(FLOW_BYTES + number, [(Capacity(f"port {number}", RATE_BYTES_PER_S), 1.0)])
                                      for number in range(count)]))


def coupled(hosts: int = HOSTS) -> Measurement:
    """All-to-all of all hosts on a star, every size different: one component; value: CPU microseconds a flow."""
    return _measured(all_to_all(hosts))


def star(hosts: int) -> Measurement:
    """The same; value: CPU seconds of all flows."""
    return _in_seconds(_measured(all_to_all(hosts)))


def tree() -> Measurement:
    """All-to-all of 32 hosts on a tree of two levels, each flow's own end told; value: CPU seconds of all flows."""
    return _in_seconds(_measured(skewed_tree()))


def tree_by_host() -> Measurement:
    """The same; all that a host sends, and all that it receives, is waited for together."""
    flows, reached = skewed_tree(), list[object]()
    sent, received = ([Countdown(TREE_HOSTS - 1, reached.append) for _ in range(TREE_HOSTS)] for _ in "ab")
    for flow in flows:
        flow.countdowns = (sent[flow.tag[0]], received[flow.tag[1]])
    measurement = _in_seconds(_measured(flows))
    assert len(reached) == 2 * TREE_HOSTS
    return measurement


def _ports(way: str, count: int, rate_bytes_per_s: float = RATE_BYTES_PER_S) -> list[Capacity]:
    return [Capacity(f"{way} {number}", rate_bytes_per_s) for number in range(count)]


def _pairs(hosts: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(hosts) for b in range(hosts) if a != b]


def all_to_all(hosts: int) -> list[Flow]:
    """From each host, over its port, to each other, over that host's port; tagged (from, to)."""
    out, into, pairs = _ports("out", hosts), _ports("in", hosts), _pairs(hosts)
    return [Flow(FLOW_BYTES + 97.0 * (number * 7919 % len(pairs)), [(out[a], 1.0), (into[b], 1.0)], tag=(a, b))
            for number, (a, b) in enumerate(pairs)]


def skewed_tree() -> list[Flow]:
    """From each of 32 hosts to each other; tagged (from, to).

    Eight hosts under a switch, over whose link up and link down go the flows that leave and enter it; a link is as fast
    as four ports. Host b receives in proportion to (b + 1) ** -0.5, and every size is different.
    """
    out, into, pairs = _ports("out", TREE_HOSTS), _ports("in", TREE_HOSTS), _pairs(TREE_HOSTS)
    switches, link_bytes_per_s = TREE_HOSTS // TREE_BELOW, RATE_BYTES_PER_S * TREE_BELOW / 2
    up, down = _ports("up", switches, link_bytes_per_s), _ports("down", switches, link_bytes_per_s)
    flows = []
    for number, (a, b) in enumerate(pairs):
        crossed = [out[a], into[b]]
        if a // TREE_BELOW != b // TREE_BELOW:
            crossed += [up[a // TREE_BELOW], down[b // TREE_BELOW]]
        size_bytes = FLOW_BYTES * (b + 1) ** -0.5 + 97.0 * (number * 7919 % len(pairs))
        flows.append(Flow(size_bytes, [(capacity, 1.0) for capacity in crossed], tag=(a, b)))
    return flows


def _in_seconds(measurement: Measurement) -> Measurement:
    return replace(measurement, value=measurement.cpu_s)


def _measured(flows: list[Flow]) -> Measurement:
    """CPU microseconds a flow, from the first start, by an event of the run as in any run, to the last end.

    Each flow's own end is told, but of those that count down.
    """
    env = Clock()
    network = Network(env)
    finished: list[Flow] = []

    def start(_: object) -> None:
        for flow in flows:
            network.start(flow, None if flow.countdowns else finished.append)

    call_later(env, 0, start)
    cpu_s, _ = timed(env.run)
    assert not network.active
    return Measurement(cpu_s / len(flows) * 1e6, cpu_s, {"flows": len(flows), "solves": network.stats.solves})
