"""Speed of the flow network: flows that share nothing, and flows that all share with each other."""

from __future__ import annotations

from simulator.bench.case import Measurement, cpu_s_of

INDEPENDENT_FLOWS = 20_000
HOSTS = 48
RATE_BYTES_PER_S = 1e11
FLOW_BYTES = 1e6


def independent(count: int = INDEPENDENT_FLOWS) -> Measurement:
    """20,000 flows, each alone on a capacity of its own; value: CPU microseconds a flow, started to finished."""
    import simpy

    from simulator.physics.clock import run
    from simulator.physics.flows import Capacity, Flow, Network

    env = simpy.Environment()
    network = Network(env)
    finished: list[Flow] = []
    flows = [Flow(FLOW_BYTES + number, [(Capacity(f"port {number}", RATE_BYTES_PER_S), 1.0)])
             for number in range(count)]

    def work() -> None:
        for flow in flows:
            network.start(flow, finished.append)
        run(env)

    cpu_s = cpu_s_of(work)
    assert len(finished) == len(flows)
    return Measurement(cpu_s / len(flows) * 1e6, cpu_s, {"flows": len(flows), "solves": network.stats.solves})


def coupled(hosts: int = HOSTS) -> Measurement:
    """All-to-all of 48 hosts on a star, every size different: one component; value: CPU microseconds a flow."""
    import simpy

    from simulator.physics.clock import run
    from simulator.physics.flows import Capacity, Flow, Network

    env = simpy.Environment()
    network = Network(env)
    finished: list[Flow] = []
    out = [Capacity(f"out {host}", RATE_BYTES_PER_S) for host in range(hosts)]
    into = [Capacity(f"in {host}", RATE_BYTES_PER_S) for host in range(hosts)]
    pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    flows = [Flow(FLOW_BYTES + 97.0 * (number * 7919 % len(pairs)), [(out[a], 1.0), (into[b], 1.0)])
             for number, (a, b) in enumerate(pairs)]

    def work() -> None:
        for flow in flows:
            network.start(flow, finished.append)
        run(env)

    cpu_s = cpu_s_of(work)
    assert len(finished) == len(flows)
    return Measurement(cpu_s / len(flows) * 1e6, cpu_s, {"flows": len(flows), "solves": network.stats.solves})
