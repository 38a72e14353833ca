"""One-sided exchanges at run time: puts leave, bytes land, collects open (see `one_sided`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import inf

from simulator.collective.lowering import Lowering, engine_of
from simulator.collective.one_sided import (
    IN,
    OUT,
    costs_of,
    keys_of,
    latency_s,
    mean_latency_s,
    own_transfer,
    received_s,
    rows_limit_bytes_per_s,
)
from simulator.collective.transfer import CapacityKey, Transfer
from simulator.die.kernels import FREE
from simulator.die.npu import Npu
from simulator.physics.clock import Clock, call_later
from simulator.physics.cores import Need
from simulator.physics.flows import Capacity, Flow, Network
from simulator.program.task import Collective
from simulator.units import to_ps

_WHOLE = 1 << 40  # bytes of the put that stands for those of all sizes: what they load, they load in proportion


@dataclass(slots=True, eq=False)
class Mailbox:
    """One exchange: whose puts are expected, whose have left, who still drains, who is there to collect.

    key: what it is known by. mean_s: the latency between two members on average. draining: ranks to which bytes still
    come, with their puts. last: rank and step of the put that came or drained last. waiting: ranks that collect, with
    their step, how long it takes once all is there, and how long it waits. collected: how many ranks have
    everything that is meant for them.
    """

    key: tuple
    expected: frozenset[int]
    latency_ps: int
    mean_s: float
    landed: set[int] = field(default_factory=set)
    draining: dict[int, int] = field(default_factory=dict)
    last: tuple[int, int] = (-1, -1)
    waiting: dict[int, tuple[Npu, int, int, int]] = field(default_factory=dict)
    collected: int = 0

    def absent(self) -> list[int]:
        """Ranks whose bytes have not left yet."""
        return sorted(self.expected - self.landed)

    def ready(self, rank: int) -> bool:
        """Whether a rank is there to collect and everything for it has come."""
        return rank in self.waiting and rank not in self.draining and len(self.landed) == len(self.expected)


class Mailboxes:
    """The one-sided exchanges of a run that are under way. capacities: of all keys; rate_of: what a machine's file says
    of them. given_up: as `Meetings.given_up`."""

    def __init__(self, env: Clock, network: Network, capacities: Mapping[CapacityKey, Capacity], lowering: Lowering,
                 rate_of: Callable[[CapacityKey], float],
                 given_up: Callable[[Npu, int, int, int], Exception]) -> None:
        self.env, self.network, self.capacities, self.lowering = env, network, capacities, lowering
        self._boxes: dict[tuple, Mailbox] = {}
        self._rate_of, self._given_up = rate_of, given_up
        self._whole: dict[tuple, tuple[Flow, float]] = {}  # flows of _WHOLE bytes, and their rate alone
        self._costs = cache(lambda via: costs_of(lowering.engines[via]))
        self._startup_ps = cache(lambda collective, members, rank: to_ps(
            lowering.engine(collective, (rank,)).startup_s(members)))

    def own(self, via: str, members: tuple[int, ...], rank: int, side: int) -> Transfer | None:
        """What leaves a rank or what arrives at it when _WHOLE bytes are put, where ranks are not folded."""
        keys = keys_of(self.lowering.fabric, members, rank)
        return own_transfer(keys[side], self._costs(via), len(members) - 1, rank, _WHOLE)

    def __len__(self) -> int:
        return len(self._boxes)

    def box(self, key: tuple, expected: frozenset[int], members: tuple[int, ...]) -> Mailbox:
        """The mailbox of one exchange, made when it is first asked for and kept until all have collected."""
        if key not in self._boxes:
            fabric = self.lowering.fabric
            latency_ps, mean_s = to_ps(latency_s(fabric, members)), mean_latency_s(fabric, members)
            self._boxes[key] = Mailbox(key, expected, latency_ps, mean_s)
        return self._boxes[key]

    def collect(self, box: Mailbox, npu: Npu, index: int, collective: Collective) -> None:
        """A rank is there to collect, and holds its cores."""
        engine, latency_ps = engine_of(collective, self.lowering.engines), box.latency_ps
        own_s = received_s(engine, collective, _held(npu.steps[index].need))
        own_ps = 0 if collective.via == FREE else latency_ps + to_ps(own_s)
        box.waiting[npu.rank] = npu, index, own_ps, engine.timeout_ps
        self._open(box, npu.rank)

    def put(self, box: Mailbox, npu: Npu, index: int, collective: Collective, members: int, alike: object,
            own: Callable[[int], Transfer | None]) -> None:
        """A rank's own bytes leave, and what is meant for it starts to drain, on the cores that it holds.

        own: the transfer of each side for _WHOLE bytes; the same for all puts of this rank that are `alike`.
        """
        need, start_ps, others, solo_s = npu.steps[index].need, npu.env.now_ps, members - 1, 0.0
        startup_ps, by = self._startup_ps(collective, members, npu.rank) if others else 0, "engine"

        def left(flow: Flow) -> None:
            solo_ps = startup_ps + to_ps(solo_s)
            npu.finish(index, start_ps, solo_ps, _bound_by(flow, startup_ps, by), need, 1)
            self._landed(box, npu.rank, index)

        if collective.received_bytes and others:
            box.draining[npu.rank] = index
            arriving, _ = self._flow(npu, (alike, collective.via, IN), own, inf, collective.received_bytes)
            self.network.start(arriving, lambda _: self._drained(box, npu.rank), startup_ps)
        if collective.sent_bytes and others:
            limit, by = self._limit(collective, need, others, box.mean_s)
            leaving, solo_s = self._flow(npu, (alike, collective.via, OUT), own, limit, collective.sent_bytes)
        else:
            leaving = Flow(0, (), 1.0)
        self.network.start(leaving, left, startup_ps)

    def _flow(self, npu: Npu, end: tuple, own: Callable[[int], Transfer | None], limit: float,
              size: int) -> tuple[Flow, float]:
        """One end of a put of so many bytes, and how many seconds it takes alone, whatever has changed."""
        known = self._whole.get((npu.rank, *end))
        if known is None:
            transfer = own(end[2])
            assert transfer is not None  # a rank that is not alone has ports
            loads = [(self.capacities[key], moved / _WHOLE) for key, moved in transfer.loads]
            alone = min(self._rate_of(key) / (moved / _WHOLE) for key, moved in transfer.loads)
            known = self._whole[npu.rank, *end] = Flow(_WHOLE, loads, weight=transfer.weight), alone
        whole, alone = known
        return whole.again(size, limit), size / min(alone, limit)

    def _limit(self, collective: Collective, need: Need, others: int, mean_s: float) -> tuple[float, str]:
        """Bytes/s of an engine on the cores that it got, and what they are those of: engine, or rows."""
        engine, held = self.lowering.engines[collective.via], _held(need)
        rate = engine.rate_bytes_per_s("all_to_all", collective.sent_bytes / others)
        if engine.rows is not None and collective.rows:
            return min((rate, "engine"), (rows_limit_bytes_per_s(engine, collective, held, mean_s), "rows"))
        cores = sum(count.count for count in engine.cores.values())
        return rate * (held / cores if cores else 1.0), "engine"

    def _landed(self, box: Mailbox, rank: int, index: int) -> None:
        box.landed.add(rank)
        box.last = rank, index
        if len(box.landed) == len(box.expected):
            for waiting in list(box.waiting):
                self._open(box, waiting)

    def _drained(self, box: Mailbox, rank: int) -> None:
        box.last = rank, box.draining.pop(rank)
        self._open(box, rank)

    def _open(self, box: Mailbox, rank: int) -> None:
        """Once everything for a rank that collects is there, it goes on when the last message has crossed."""
        if not box.ready(rank):
            return
        npu, index, latency_ps, timeout_ps = box.waiting.pop(rank)
        box.collected += 1
        if box.collected == len(box.expected):
            del self._boxes[box.key]
        start_ps, need, since_ps = self.env.now_ps, npu.tape.steps[index].need, npu.since_ps(index)
        if start_ps - since_ps > timeout_ps:
            raise self._given_up(npu, index, timeout_ps, box.last[0])
        if since_ps < start_ps:
            npu.late(rank, index, *box.last)
        call_later(self.env, latency_ps, lambda _: npu.finish(index, start_ps, latency_ps, "latency", need, 1))


def _held(need: Need) -> int:
    """Cores of all kinds."""
    return sum(count for _, count in need)


def _bound_by(flow: Flow, startup_ps: int, by: str) -> str:
    """What limited a put longest, in words: a capacity, its engine's rate or its rows (`by`), or its start-up."""
    bound, longest_ps = flow.longest_bound()
    if startup_ps > longest_ps:
        return "latency"
    return bound.name.partition(":")[0] if isinstance(bound, Capacity) else by
