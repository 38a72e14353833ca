"""One-sided exchanges at run time: puts leave, bytes land, collects open (see `one_sided`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import inf

import simpy

from simulator.machine.npu import Npu
from simulator.physics.clock import call_later
from simulator.physics.flows import Capacity, Flow, Network
from simulator.program.collectives import Lowering
from simulator.program.one_sided import PUT, costs_of, latency_s, own_transfers, startup_s
from simulator.program.task import Collective
from simulator.program.transfer import Key, Transfer
from simulator.units import to_ps

Both = tuple[Transfer | None, Transfer | None]


@dataclass(slots=True, eq=False)
class Mailbox:
    """One exchange: whose puts are expected, whose have left, who still drains, who is there to collect."""

    expected: frozenset[int]
    latency_ps: int
    landed: set[int] = field(default_factory=set)
    draining: set[int] = field(default_factory=set)
    waiting: dict[int, tuple[Npu, int]] = field(default_factory=dict)

    def absent(self) -> list[int]:
        """Ranks whose bytes have not left yet."""
        return sorted(self.expected - self.landed)

    def ready(self, rank: int) -> bool:
        """Whether a rank is there to collect and everything for it has come."""
        return rank in self.waiting and rank not in self.draining and len(self.landed) == len(self.expected)


class Mailboxes:
    """All one-sided exchanges of a run. capacity: finds or makes the capacity of a key."""

    def __init__(
        self, env: simpy.Environment, network: Network, capacity: Callable[[Key], Capacity], lowering: Lowering
    ) -> None:
        self.env, self.network, self.capacity, self.lowering = env, network, capacity, lowering
        self._boxes: dict[object, Mailbox] = {}
        self._costs = cache(lambda via: costs_of(lowering.engines[via]))
        self._startup_ps = cache(lambda via, members: to_ps(startup_s(lowering.engines[via], members)))
        self._rate = cache(self._rate_on)

    def own(self, collective: Collective, members: tuple[int, ...], rank: int) -> Both:
        """What leaves a rank and what arrives at it in a put, where ranks are not folded."""
        return own_transfers(self.lowering.fabric, self._costs(collective.via), collective, members, rank)

    def _rate_on(self, via: str, need: tuple[tuple[str, int], ...], per_peer: float) -> float:
        """Bytes/s of an engine on the cores that it got."""
        engine = self.lowering.engines[via]
        cores = sum(count.count for count in engine.cores.values())
        share = sum(count for _, count in need) / cores if cores else 1.0
        return engine.rate_bytes_per_s("all_to_all", per_peer) * share

    def box(self, key: object, expected: tuple[int, ...], members: tuple[int, ...]) -> Mailbox:
        """The mailbox of one exchange, made when it is first asked for."""
        if key not in self._boxes:
            self._boxes[key] = Mailbox(frozenset(expected), to_ps(latency_s(self.lowering.fabric, members)))
        return self._boxes[key]

    def arrive(self, box: Mailbox, npu: Npu, index: int, collective: Collective, members: int, own: Both) -> None:
        """A rank's put or collect is ready and holds its cores. own: what leaves it and what arrives at it."""
        if collective.kind == PUT:
            self._put(box, npu, index, collective, members, own)
            return
        box.waiting[npu.rank] = (npu, index)
        self._open(box, npu.rank)

    def _put(self, box: Mailbox, npu: Npu, index: int, collective: Collective, members: int, own: Both) -> None:
        """A rank's own bytes leave; what is meant for it starts to drain."""
        step, via = npu.tape.steps[index], collective.via
        rate = self._rate(via, step.need, collective.sent_bytes / max(members - 1, 1))
        startup_ps, start_ps = self._startup_ps(via, members) if members > 1 else 0, int(self.env.now)
        sent, arriving = own
        wire_ps = 0

        def left(flow: Flow | None) -> None:
            npu.finish(index, start_ps, startup_ps + wire_ps, _bound(flow, startup_ps), step.need, 1)
            self._landed(box, npu.rank)

        if arriving is not None:
            box.draining.add(npu.rank)
            self.network.start(self._flow(arriving, inf), lambda _: self._drained(box, npu.rank), startup_ps)
        if sent is None:
            call_later(self.env, startup_ps, lambda _: left(None))
            return
        flow = self._flow(sent, rate)
        wire_ps = to_ps(sent.size_bytes / flow.solo_rate)
        self.network.start(flow, left, startup_ps)

    def _landed(self, box: Mailbox, rank: int) -> None:
        box.landed.add(rank)
        if len(box.landed) == len(box.expected):
            for waiting in list(box.waiting):
                self._open(box, waiting)

    def _drained(self, box: Mailbox, rank: int) -> None:
        box.draining.discard(rank)
        self._open(box, rank)

    def _open(self, box: Mailbox, rank: int) -> None:
        """Once everything for a rank that collects is there, it goes on when the last message has crossed."""
        if not box.ready(rank):
            return
        npu, index = box.waiting.pop(rank)
        start_ps, need = int(self.env.now), npu.tape.steps[index].need
        call_later(
            self.env,
            box.latency_ps,
            lambda _: npu.finish(index, start_ps, box.latency_ps, "latency", need, 1),
        )

    def _flow(self, transfer: Transfer, limit: float) -> Flow:
        size = transfer.size_bytes
        loads = [(self.capacity(key), load / size) for key, load in transfer.loads]
        return Flow(size, loads, limit, transfer.weight)


def _bound(flow: Flow | None, startup_ps: int) -> str:
    """What limited a put longest."""
    if flow is None or startup_ps > max(flow.bound_ps.values(), default=0):
        return "latency"
    by = flow.bound_by()
    return by.name.partition(":")[0] if isinstance(by, Capacity) else "engine"
