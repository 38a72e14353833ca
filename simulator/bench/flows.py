"""Speed of the flow network: flows that share nothing, and flows that all share with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.bench.benchmark import Measurement, best_of, cpu_s_of

if TYPE_CHECKING:
    from simulator.physics.flows import Flow

INDEPENDENT_FLOWS = 20_000
HOSTS = 144
RATE_BYTES_PER_S = 1e11
FLOW_BYTES = 1e6


def independent(count: int = INDEPENDENT_FLOWS) -> Measurement:
    """20,000 flows, each alone on a capacity of its own; value: CPU microseconds a flow, started to finished."""
    from simulator.physics.flows import Capacity, Flow

    return best_of(lambda: _measured([Flow(FLOW_BYTES + number, [(Capacity(f"port {number}", RATE_BYTES_PER_S), 1.0)])
                                      for number in range(count)]))


def coupled(hosts: int = HOSTS) -> Measurement:
    """All-to-all of all hosts on a star, every size different: one component; value: CPU microseconds a flow."""
    return _measured(all_to_all(hosts))


def all_to_all(hosts: int) -> list[Flow]:
    """From each host, over its port, to each other, over that host's port; tagged (from, to)."""
    from simulator.physics.flows import Capacity, Flow

    out = [Capacity(f"out {host}", RATE_BYTES_PER_S) for host in range(hosts)]
    into = [Capacity(f"in {host}", RATE_BYTES_PER_S) for host in range(hosts)]
    pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    return [Flow(FLOW_BYTES + 97.0 * (number * 7919 % len(pairs)), [(out[a], 1.0), (into[b], 1.0)], tag=(a, b))
            for number, (a, b) in enumerate(pairs)]


def _measured(flows: list[Flow]) -> Measurement:
    """CPU microseconds a flow, from the first start, by an event of the run as in any run, to the last end."""
    from simulator.physics.clock import Clock, call_later
    from simulator.physics.flows import Network

    env = Clock()
    network = Network(env)
    finished: list[Flow] = []

    def start(_: object) -> None:
        for flow in flows:
            network.start(flow, finished.append)

    call_later(env, 0, start)
    cpu_s = cpu_s_of(env.run)
    assert len(finished) == len(flows)
    return Measurement(cpu_s / len(flows) * 1e6, cpu_s, {"flows": len(flows), "solves": network.stats.solves})
