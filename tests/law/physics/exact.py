"""A reference in exact fractions: progressive filling of everything at every event, ends rounded up to picoseconds.

Random networks of ports and memories with round rates, on which many capacities fill at the same level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, inf
from random import Random

PS_PER_S = 10**12
FORGIVEN = Fraction(1, 128)  # of a picosecond: see units.to_ps


@dataclass(frozen=True)
class Exact:
    """One flow: what it loads (capacity -> coefficient), and when it starts, or after the end of which other one."""

    size: float
    loads: dict[int, float]
    limit: float | Fraction = inf
    weight: float = 1.0
    multiplicity: int = 1
    start_ps: int = 0
    after: int | None = None
    latency_ps: int = 0


@dataclass(frozen=True)
class Change:
    """A capacity has another rate from a time on."""

    at_ps: int
    capacity: int
    rate: float


exactly = lru_cache(maxsize=4096)(Fraction)


def exact_rates(rates: list[Fraction], flows: dict[int, Exact]) -> dict[int, Fraction]:
    """Max-min rates of members of flows that are in flight, by progressive filling."""
    given: dict[int, Fraction] = {}
    left = list(rates)
    limits = {k: exactly(f.limit) / exactly(f.weight) for k, f in flows.items() if f.limit < inf}
    pulls = {k: {i: exactly(c) * exactly(f.weight) * f.multiplicity for i, c in f.loads.items() if c}
             for k, f in flows.items()}  # fmt: skip
    rising = {i: {k: pull[i] for k, pull in pulls.items() if i in pull} for i in range(len(rates))}
    pulled = {i: sum(here.values()) for i, here in rising.items()}
    while len(given) < len(flows):
        stops = {i: max(left[i], Fraction(0)) / pulled[i] for i, here in rising.items() if here}
        level = min([*stops.values(), *limits.values()])
        full = {k for i, stop in stops.items() if stop == level for k in rising[i]}
        for k in full | {k for k, limit in limits.items() if limit == level}:
            given[k] = level * exactly(flows[k].weight)
            limits.pop(k, None)
            for i, pull in pulls[k].items():
                left[i] -= pull * level
                pulled[i] -= pull
                del rising[i][k]
    return given


def exact_ends_ps(
    rates: Sequence[float | Fraction], flows: list[Exact], changes: Sequence[Change] = (), rounded: bool = True
) -> list[int]:
    """When each flow ends, in ps, each end rounded up (or none, then as fractions); -1 for those that never do."""
    rate_now = [Fraction(rate) for rate in rates]
    starts: dict[int, int] = {k: flow.start_ps + flow.latency_ps for k, flow in enumerate(flows) if flow.after is None}
    left = {k: Fraction(flow.size) for k, flow in enumerate(flows)}
    ends: dict[int, int] = {}
    now = 0
    while True:
        for change in changes:
            if change.at_ps == now:
                rate_now[change.capacity] = Fraction(change.rate)
        moving = {k: flows[k] for k, at in starts.items() if at <= now and k not in ends and left[k] > 0}
        done = [k for k, at in starts.items() if at <= now and k not in ends and not flows[k].size]
        given = exact_rates(rate_now, moving)
        wait = {k: left[k] / given[k] * PS_PER_S for k in moving if given[k]}
        due = {k: now + (max(0, ceil(at - FORGIVEN)) if rounded else at) for k, at in wait.items()}
        later = [at for at in starts.values() if at > now] + [one.at_ps for one in changes if one.at_ps > now]
        step = now if done else min([*due.values(), *later], default=None)
        if step is None:
            return [ends.get(k, -1) for k in range(len(flows))]
        for k in moving:
            left[k] -= given[k] * (step - now) / PS_PER_S
        now = step  # type: ignore[assignment]
        ended = done + [k for k, at in due.items() if at == now and not done]
        for k in ended:
            ends[k] = now
            for other, flow in enumerate(flows):
                if flow.after == k:
                    starts[other] = now + flow.latency_ps


def random_network(seed: int) -> tuple[list[float], list[Exact]]:
    """Hosts with a port out, a port in and a memory each; messages between them and kernels on them."""
    random = Random(seed)
    hosts = random.randint(2, 6)
    rates = [random.choice([1e9, 1e9, 2e9]) for _ in range(2 * hosts)]
    rates += [random.choice([1.5e9, 4e9, 1e10, 3e9]) for _ in range(hosts)]
    flows: list[Exact] = []
    same = random.choice([2.0**20, 1e6])
    for source in range(hosts):
        for target in range(hosts):
            if source == target or random.random() < 0.3:
                continue
            size = random.choice([same, random.uniform(1e5, 3e6), float(random.randint(1, 5)) * 1e5])
            through = random.choice([1.0, 1.0, 2.0, 0.5])
            loads = {source: 1.0, hosts + target: 1.0, 2 * hosts + source: through, 2 * hosts + target: 1.0}
            flows.append(_drawn(random, size, loads, len(flows)))
    for host in range(hosts):
        for _ in range(random.randint(0, 2)):
            flows.append(_drawn(random, random.choice([same, 5e5, 0.0, 1.0, 1e10]), {2 * hosts + host: 1.0}, len(flows),
                                limit=random.choice([inf, 1e9, 7.5e8])))
    return rates, flows


def _drawn(random: Random, size: float, loads: dict[int, float], number: int, limit: float = inf) -> Exact:
    after = random.randrange(number) if number and random.random() < 0.15 else None
    return Exact(
        size, loads, limit,
        weight=random.choice([1.0, 1.0, 1.0, 2.0, 0.5]),
        multiplicity=random.choice([1, 1, 1, 1, 4]),
        start_ps=random.choice([0, 0, 0, 10**8, random.randrange(10**9)]),
        after=after,
        latency_ps=random.choice([0, 0, 10**7, random.randrange(10**9)]),
    )  # fmt: skip


def random_changes(seed: int, capacities: int, rates: list[float]) -> list[Change]:
    """Rates that fall, some to nothing, and come back."""
    random = Random(seed)
    changes = []
    for _ in range(random.randint(1, 4)):
        capacity, at_ps = random.randrange(capacities), random.randrange(1, 2 * 10**9)
        changes.append(Change(at_ps, capacity, rates[capacity] * random.choice([0.0, 0.5, 0.25, 2.0])))
        changes.append(Change(at_ps + random.randrange(1, 10**9), capacity, rates[capacity]))
    return sorted(changes, key=lambda one: one.at_ps)
