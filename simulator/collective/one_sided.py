"""One-sided exchanges: every rank writes into its peers' memory when it is ready, and later collects what was written.

A `put` starts when its rank is ready and ends when its own bytes have left; it waits for no rank. A `collect` ends when
the puts of all members have landed and this rank's own arriving bytes have drained through its port and memory: a rank
with more to do before its put makes the others wait there, and nowhere else. Puts and collects of a group meet by their
place in the program: the third collect collects the third put.

Bytes spread evenly over the other members. A put loads the sender's memory and its own ports; what arrives loads the
receiver's. The switches between must be non-blocking, so they never bind; where they are not, such an exchange is
refused. The engine moves at its rate times the share of its cores that the stream's partition leaves it.

An engine that handles rows one by one (`RowsSpec`) deals them to its cores; the busiest one of n takes, for R rows of
w = bytes / core_rate each,

    ceil(R / n) max(w, (send + w + latencies x mean latency to a member) / in_flight)

which bounds the put beside the rate of the wire, and what has come takes it ceil(R / n) receive.

Worked example: 4 ranks put 3 MB each at 1 GB/s, start-up 4 us, 1 us across. Rank 3 starts 10 ms late: the puts take
3.004 ms, and all four collect at 13.005 ms. As 1000 rows of 3 kB by 8 cores, 5 us to send one, 1 GB/s per core, one
latency (0.75 us on average, own rows have none) and one in flight: 125 x 8.75 us = 1.1 ms, so the wire still decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache, partial, wraps
from itertools import permutations
from math import ceil, inf
from typing import Concatenate, ParamSpec, TypeVar

from simulator.collective.messages import CollectiveCall
from simulator.collective.transfer import CapacityKey, Phase, Transfer, memory_per_byte
from simulator.errors import InputError
from simulator.fabric.graph import Fabric, Route
from simulator.fabric.level import DIE, Edge, parts
from simulator.fabric.switch import Switch
from simulator.program.task import Collective
from simulator.spec.machine import CollectiveSpec

PUT, COLLECT = "put", "collect"
ONE_SIDED = (PUT, COLLECT)
OUT, IN = 0, 1  # the two sides of a put at a die
CapacityPeers = tuple[tuple[CapacityKey, int], ...]  # capacities, and the peers behind each of them
Port = tuple[Edge, Edge, int]  # edge out, edge in, peers behind it
_NARROW = "{} is narrower than the ports below it: one-sided exchanges across it are not modelled; use an All2All"
P = ParamSpec("P")
R = TypeVar("R")
Asked = Callable[Concatenate["Fabric", P], R]


def _once(most: int) -> Callable[[Asked[P, R]], Asked[P, R]]:
    """A fabric answers once what it was asked lately, `most` times; its answers go with it."""

    def once(function: Asked[P, R]) -> Asked[P, R]:
        @wraps(function)
        def of(fabric: Fabric, *args: P.args, **named: P.kwargs) -> R:
            answers = fabric.answers.get(function)
            if answers is None:
                answers = fabric.answers[function] = lru_cache(maxsize=most)(partial(function, fabric))
            return answers(*args, **named)  # type: ignore[arg-type]

        return of

    return once


def collect(call: CollectiveCall) -> tuple[Phase, ...]:
    """The latency of the last message."""
    return (Phase(latency_s(call.messages.fabric, call.members), ()),)


def put(call: CollectiveCall) -> tuple[Phase, ...]:
    """What leaves every member, then what arrives at it."""
    fabric, engine, collective, members = call.messages.fabric, call.engine, call.collective, call.members
    costs, peers = costs_of(engine), len(members) - 1
    leaving, arriving = (
        tuple(filter(None, (own_transfer(keys_of(fabric, members, rank)[side], costs, peers, rank, size)
                            for rank in members)))
        for side, size in ((OUT, collective.sent_bytes), (IN, collective.received_bytes)))
    return Phase(engine.startup_s(len(members)), leaving), Phase(0.0, arriving)


def costs_of(engine: CollectiveSpec) -> tuple[float, float]:
    """Bytes through memory at each end per byte moved, and the weight of the flow."""
    return memory_per_byte(engine), engine.share


def own_transfer(keys: CapacityPeers, costs: tuple[float, float], peers: int, rank: int, size: int) -> Transfer | None:
    """What leaves a member or arrives at it, on nothing but its own memory and ports: `keys`, from `keys_of`."""
    if not size or not keys:
        return None
    memory, weight = costs
    moved = round(size * memory)
    loads = [(key, moved if key[0] != "link" else size * count // peers) for key, count in keys]
    return Transfer.of(size, [one for one in loads if one[1]], (rank,), weight)


@_once(4096)
def keys_of(fabric: Fabric, members: tuple[int, ...], rank: int) -> tuple[CapacityPeers, CapacityPeers]:
    """The capacities of a rank that its outgoing and its arriving bytes cross, with the peers behind every port."""
    memory: list[tuple[CapacityKey, int]] = [(("hbm", rank), 0), (("l2", rank), 0)]
    ports = ports_of(fabric, members, rank)
    if not ports:
        return (), ()
    out = [(("link", *port[0]), port[2]) for port in ports]
    into = [(("link", *port[1]), port[2]) for port in ports]
    return tuple(memory + out), tuple(memory + into)


@_once(4096)
def ports_of(fabric: Fabric, members: tuple[int, ...], rank: int) -> tuple[Port, ...]:
    """The edges at a die through which it reaches the others, and how many of them each one leads to, inside out.

    InputError: links further in are narrower than the ports, or bytes pass through other dies.
    """
    if not (fabric.arithmetic and fabric.as_described):
        return _by_pair(fabric, members)[0][rank]
    ports: list[Port] = []
    here, inside = f"die {rank}", {rank}
    ported: Switch | None = None  # the level whose ports the die has
    for level in fabric.by_level.values():
        around = _together(fabric, members, level.name)[rank // level.dies]
        new = sorted(around - inside)
        inside |= around
        if not isinstance(level, Switch):
            ports += [((here, f"die {peer}"), (f"die {peer}", here), 1) for peer in new]
            continue
        ported = ported if level.below and ported else level
        if new:
            if level.spec.link_rate.si < level.inside * ported.spec.link_rate.si * (1 - 1e-9) and level is not ported:
                raise InputError(_NARROW.format(f"level '{level.name}'"))
            switch = ported.above(rank)
            ports.append(((here, switch), (switch, here), len(new)))
    return tuple(ports)


@_once(64)
def _by_pair(fabric: Fabric, members: tuple[int, ...]) -> tuple[dict[int, tuple[Port, ...]], float]:
    """The ports of every member and the longest latency, from the routes of all pairs."""
    routes = {pair: fabric.route(*pair) for pair in permutations(members, 2)}
    ports: dict[int, Counter[tuple[int, Edge, Edge]]] = {rank: Counter() for rank in members}
    behind: Counter[Edge] = Counter()
    for (source, target), route in routes.items():
        order = fabric.by_level[route.level].order
        ports[source][order, route.edges[0], routes[target, source].edges[-1]] += 1
        behind[route.edges[0]] += 1
    _check_between(fabric, routes, behind)
    longest_s = max((route.latency_s for route in routes.values()), default=0.0)
    inside_out = {rank: sorted(found.items(), key=lambda item: item[0][0]) for rank, found in ports.items()}
    return {rank: tuple((*key[1:], count) for key, count in found) for rank, found in inside_out.items()}, longest_s


def _check_between(fabric: Fabric, routes: Mapping[tuple[int, int], Route], behind: Counter[Edge]) -> None:
    """InputError if a link between ports can hold bytes back. behind: how many peers every port out leads to."""
    most: dict[Edge, float] = defaultdict(float)
    for (source, target), route in routes.items():
        share = fabric.link_rate(*route.edges[0]) / behind[route.edges[0]]
        for edge in route.edges[1:-1]:
            most[edge] += share
        if any(parts(edge[0])[0] == DIE for edge in route.edges[1:]):
            raise InputError(f"bytes from die {source} to die {target} pass through other dies: one-sided exchanges "
                             "there are not modelled; use an All2All")
    for edge, rate in most.items():
        if fabric.link_rate(*edge) < rate * (1 - 1e-9):
            raise InputError(_NARROW.format(f"the link {edge[0]} to {edge[1]}"))


@_once(64)
def _together(fabric: Fabric, members: tuple[int, ...], level: str) -> dict[int, set[int]]:
    """The members in each instance of a level."""
    found: dict[int, set[int]] = {}
    for member in members:
        found.setdefault(fabric.instance(member, level), set()).add(member)
    return found


@_once(4096)
def latency_s(fabric: Fabric, members: tuple[int, ...]) -> float:
    """How long the last byte travels: the longest latency of the levels at which members meet."""
    if not (fabric.arithmetic and fabric.as_described):
        return _by_pair(fabric, members)[1]
    longest_s, apart = 0.0, len(members)
    for level in fabric.spec.fabric:
        together = len(_together(fabric, members, level.name))
        if together < apart:
            longest_s = max(longest_s, level.latency.si)
        apart = together
    return longest_s


@_once(4096)
def mean_latency_s(fabric: Fabric, members: tuple[int, ...]) -> float:
    """From a member to a member, on average over all, itself included, which is at no distance."""
    pairs, total_s = len(members), 0.0
    if not (fabric.arithmetic and fabric.as_described):
        return sum(fabric.route(*pair).latency_s for pair in permutations(members, 2)) / pairs**2
    for level in fabric.spec.fabric:
        inside = sum(len(together) ** 2 for together in _together(fabric, members, level.name).values())
        total_s += (inside - pairs) * level.latency.si
        pairs = inside
    return total_s / len(members) ** 2


def rows_limit_bytes_per_s(engine: CollectiveSpec, collective: Collective, cores: int, mean_s: float) -> float:
    """What so many cores of an engine write of a put whose rows they handle one by one; inf: not bound by rows."""
    rows, count = engine.rows, collective.rows
    if rows is None or not count:
        return inf
    wire_s = collective.sent_bytes / count / rows.core_rate.si
    whole_s = rows.send.si + wire_s + rows.latencies.si * mean_s
    return collective.sent_bytes / (ceil(count / cores) * max(wire_s, whole_s / rows.in_flight.count))


def received_s(engine: CollectiveSpec, collective: Collective, cores: int) -> float:
    """What so many cores of an engine take for the rows that a collect has got."""
    if engine.rows is None or not collective.rows:
        return 0.0
    return ceil(collective.rows / cores) * engine.rows.receive.si
