"""Plain reference implementations for the laws: short, slow, and written differently from what they check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from simulator.physics import Capacity, Clock, Demand, Flow, Network, call_later, max_min

PS = 1e-12


@dataclass
class Job:
    """One flow of a test network: which capacities it loads (index -> coefficient), and when it starts."""

    size: float
    loads: dict[int, float]
    limit: float = inf
    weight: float = 1.0
    multiplicity: int = 1
    start_ps: int = 0
    latency_ps: int = 0


@dataclass
class Outcome:
    """What a run gave: end per job in ps, the flows, and (now_ps, {job: rate}) at every solve."""

    end_ps: list[int]
    flows: list[Flow]
    capacities: list[Capacity]
    network: Network
    rates: list[tuple[int, dict[int, float]]] = field(default_factory=list)


def simulate(rates: Sequence[float], jobs: Sequence[Job], watch: bool = False) -> Outcome:
    """Run jobs on a Network."""
    env = Clock()
    network = Network(env)
    capacities = [Capacity(str(i), rate) for i, rate in enumerate(rates)]
    flows = [
        Flow(job.size, [(capacities[i], c) for i, c in job.loads.items()], job.limit, job.weight, job.multiplicity, k)
        for k, job in enumerate(jobs)
    ]
    out = Outcome([-1] * len(jobs), flows, capacities, network)

    def done(flow: Flow) -> None:
        out.end_ps[flow.tag] = env.now  # type: ignore[index, call-overload]

    def begin(flow: Flow, job: Job) -> Callable[[object], None]:
        return lambda _: network.start(flow, done, job.latency_ps)

    if watch:
        network.watchers.append(
            lambda now, net: out.rates.append((now, {f.tag: f.rate_bytes_per_s for f in net.active}))  # type: ignore[misc]
        )
    for flow, job in zip(flows, jobs, strict=True):
        call_later(env, job.start_ps, begin(flow, job))
    env.run()
    assert env.now == max(out.end_ps, default=0), "nothing is left in the queue behind the last end"
    return out


def plain_max_min(rates: Sequence[float], demands: Sequence[Demand]) -> list[float]:
    """Progressive filling in its simplest form: step to the next stop of all flows that still rise."""
    given = [0.0] * len(demands)
    rising = {j for j, d in enumerate(demands)}
    while rising:
        steps = [(demands[j].limit / demands[j].weight, {j}) for j in rising]
        for i, rate in enumerate(rates):
            pull = sum(c * demands[j].weight for j in rising for k, c in demands[j].loads if k == i)
            still = set(range(len(demands))) - rising
            used = sum(c * given[j] for j in still for k, c in demands[j].loads if k == i)
            if pull > 0:
                on_it = {j for j in rising if any(k == i and c > 0 for k, c in demands[j].loads)}
                steps.append((max(0.0, rate - used) / pull, on_it))
        level = min(step for step, _ in steps)
        for step, stopped in steps:
            if step <= level * (1 + 1e-13):
                for j in stopped & rising:
                    given[j] = level * demands[j].weight
                    rising.discard(j)
        if level == inf:
            return [inf if j in rising else r for j, r in enumerate(given)]
    return given


def plain_ends_s(rates: Sequence[float], jobs: Sequence[Job]) -> list[float]:
    """Ends in seconds if all rates are solved afresh, for all flows, at every arrival and departure."""
    arrive = [(job.start_ps + job.latency_ps) * PS for job in jobs]
    left = [job.size for job in jobs]
    ends: list[float | None] = [None] * len(jobs)
    now = 0.0
    while any(end is None for end in ends):
        here = [k for k, end in enumerate(ends) if end is None and arrive[k] <= now * (1 + 1e-15)]
        for k in [k for k in here if left[k] <= 0]:
            ends[k] = now
            here.remove(k)
        demands = [
            Demand([(i, c * jobs[k].multiplicity) for i, c in jobs[k].loads.items()], jobs[k].limit, jobs[k].weight)
            for k in here
        ]
        given, _ = max_min(rates, demands)
        next_s = min([a for k, a in enumerate(arrive) if ends[k] is None and k not in here], default=inf)
        stop = {k: now + left[k] / r for k, r in zip(here, given, strict=True)}
        next_s = min(next_s, min(stop.values(), default=inf))
        if next_s == inf:
            break
        for k, r in zip(here, given, strict=True):
            left[k] = 0.0 if stop[k] <= next_s * (1 + 1e-14) else left[k] - r * (next_s - now)
        now = next_s
    return [end if end is not None else now for end in ends]
