"""Plain reference implementations for the laws: short, slow, and written differently from what they check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from simulator.physics.clock import Clock, call_later
from simulator.physics.flows import Capacity, Flow, Network
from simulator.physics.maxmin import fill

PS = 1e-12


class Demand(NamedTuple):
    """What one flow asks for.

    loads: (capacity index, coefficient) pairs; coefficient = bytes moved on that capacity per byte of the flow's own.
    limit: the rate in bytes/s that it never exceeds. weight: its share relative to that of other flows.
    """

    loads: Sequence[tuple[int, float]]
    limit: float = inf
    weight: float = 1.0


def max_min(capacities_bytes_per_s: Sequence[float], flows: Sequence[Demand]) -> tuple[list[float], list[int]]:
    """What Braid's own `fill` says of flows that are given one by one.

    Returns (rates in bytes/s, bounds), one of each per flow; a bound is the index of the capacity that stopped the
    flow (the lowest, where several stop it at once) or LIMIT. A flow that nothing stops gets rate inf.
    """
    members: list[list[tuple[int, float]]] = [[] for _ in capacities_bytes_per_s]
    for j, flow in enumerate(flows):
        merged: dict[int, float] = {}
        for i, coefficient in flow.loads:
            merged[i] = merged.get(i, 0.0) + coefficient
        for i, coefficient in merged.items():
            if coefficient > 0.0 and capacities_bytes_per_s[i] < inf:
                members[i].append((j, coefficient))
    return fill(capacities_bytes_per_s, members, [flow.limit for flow in flows], [flow.weight for flow in flows])


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
