"""Where engines stand, and what bytes between them and the memories of hosts cross: shared by all flows of a service.

Engines stand on the fabric one after the other, in the order of their kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import NamedTuple

from simulator.errors import InputError
from simulator.fabric.graph import Fabric, Route
from simulator.physics.clock import Clock
from simulator.physics.flow import Capacity, Flow
from simulator.physics.flows import Network
from simulator.serving.build import Kind
from simulator.spec.machine import HostMemorySpec, MachineSpec

Loads = tuple[tuple[Capacity, float], ...]
"""Capacities that a flow crosses, and bytes there for each of its own."""


class Cargo(NamedTuple):
    """A flow that is to start: its bytes, what it crosses, bytes/s at most, what is called at its end, its latency."""

    size_bytes: float
    loads: Sequence[tuple[Capacity, float]]
    limit_bytes_per_s: float
    done: Callable[[Flow], object]
    latency_ps: int


class Links:
    """placed: (kind, number of engines of it) in the order of the engines. hosts: that a pool is on; 0: those on which
    engines stand. used: what any flow has crossed."""

    def __init__(self, placed: Sequence[tuple[Kind, int]], clock: Clock, hosts: int = 0) -> None:
        self.clock, self.network = clock, Network(clock)
        self._firsts: list[tuple[Kind, int]] = []
        self.ranks = 0
        for kind, count in placed:
            for _ in range(count):
                self._firsts.append((kind, self.ranks))
                self.ranks += kind.ranks
        self._hosts = hosts
        self._held: list[Cargo] = []
        self.used: set[Capacity] = set()
        self._machines = [kind.settings.step.machine_spec() for kind, _ in placed]
        self.capacity = cache(Capacity)
        self.to_hosts = cache(self._to_hosts)

    def kind(self, engine: int) -> Kind:
        """Of an engine."""
        return self._firsts[engine][0]

    def ranks_of(self, engine: int, group: int) -> range:
        """Of a group of an engine."""
        kind, first = self._firsts[engine]
        each = kind.ranks // kind.groups
        return range(first + group * each, first + (group + 1) * each)

    @cached_property
    def fabric(self) -> Fabric:
        """That joins all engines. InputError where machines differ, or one has not as many dies."""
        names = list(dict.fromkeys(one.name for one in self._machines))
        if len(names) > 1:
            raise InputError(f"engines stand on {' and '.join(names)}: no fabric joins them")
        machine = self._machines[0]
        return Fabric(machine, max(self.ranks, self._hosts * memory_of(machine).dies.count if self._hosts else 0))

    def _to_hosts(self, engine: int, group: int, everywhere: bool, inward: bool) -> tuple[Loads, float]:
        """What a byte to every rank of a group (inward), or from it, crosses between it and the memory of its own host,
        or, everywhere, those of all hosts of a pool in equal parts; and the latency. InputError where a machine's file
        says nothing of the memory of its hosts."""
        memory = memory_of(self.kind(engine).settings.step.machine_spec())
        dies = memory.dies.count
        found: dict[Capacity, float] = {}
        latency_s = 0.0
        for rank in self.ranks_of(engine, group):
            shares = {self.capacity(f"host link of rank {rank}, {'in' if inward else 'out'}", memory.link.si): 1.0}
            own = rank // dies
            for host, alike, share in self._pool(dies) if everywhere else [(own, 1, 1.0)]:
                shares[self.capacity(f"memory of host {host}", memory.rate.si)] = share
                if host == own:
                    continue
                way, last = (self._way(rank, one * dies + rank % dies, inward) for one in (host, host + alike - 1))
                latency_s = max(latency_s, way.latency_s)
                for edge in way.edges:
                    here = self.link(edge)
                    shares[here] = shares.get(here, 0.0) + share * (alike if edge in last.edges else 1)
            for capacity, share in shares.items():
                found[capacity] = found.get(capacity, 0.0) + share
        return tuple(found.items()), latency_s

    def _pool(self, dies: int) -> list[tuple[int, int, float]]:
        """Hosts of a pool, how many there are alike, and the part of every block on each. Hosts on which no engine
        stands are loaded alike: one is looked at for all."""
        stand = -(-self.ranks // dies)
        hosts = self._hosts or stand
        found = [(host, 1, 1.0 / hosts) for host in range(min(hosts, stand))]
        return [*found, (stand, hosts - stand, 1.0 / hosts)] if hosts > stand else found

    def _way(self, rank: int, other: int, inward: bool) -> Route:
        other = min(other, self.fabric.ranks - 1)
        return self.fabric.route(other, rank) if inward else self.fabric.route(rank, other)

    def link(self, edge: tuple[str, str]) -> Capacity:
        """Of the fabric."""
        return self.capacity(" to ".join(edge), self.fabric.link_rate(*edge))

    def start(self, cargo: Cargo) -> None:
        """A flow starts, or where a link on its way is cut once it moves again."""
        if any(not one.rate_bytes_per_s for one, _ in cargo.loads):
            self._held.append(cargo)
            return
        self.used.update(one for one, _ in cargo.loads)
        flow = Flow(cargo.size_bytes, cargo.loads, cargo.limit_bytes_per_s)
        self.network.start(flow, cargo.done, cargo.latency_ps)

    def change(self, edge: tuple[str, str], share: float) -> None:
        """From now on a link moves at most this share of its rate; what is under way goes on with it."""
        link = self.link(edge)
        self.network.set_rate(link, share * self.fabric.link_rate(*edge))
        held, self._held = self._held, []
        for cargo in held:
            self.start(cargo)


def memory_of(machine: MachineSpec) -> HostMemorySpec:
    """InputError where its file says nothing of it."""
    if machine.host.memory is None:
        raise InputError(f"{machine.name}: its file has no table [host.memory] (dies that share a host, link of a die, "
                         "rate of the memory): no cache can lie there; give it one, or leave kv_offloading_gib and "
                         "pool.size_gib 0")
    return machine.host.memory
