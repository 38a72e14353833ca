"""Network cards at run time: writes leave a card one after the other, and their bytes are flows on the run's network.

The bytes of a write load all that they cross, as one flow on either side:

    leaving     HBM of the sender (a read) -> PCIe -> card -> the fabric's link of the sender
    arriving    the other links on the way -> card -> PCIe -> HBM of the receiver (a write), from `latency` later on

The send engine of a card serves one write at a time, in the order of posting, and is free when its bytes have left. A
port that several senders reach at once is shared by them. The network's buffers lie between the two sides: writes that
share a port arrive later, and hold back no card. What a card has on its way to other ranks stands in them, too, and
delays a write by the time in which it drains (a standing queue: bytes over rate). A write has arrived when both sides
have moved its bytes, the last of which takes its latency too.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.collective.transfer import CapacityKey
from simulator.fabric.graph import Fabric
from simulator.fabric.level import die
from simulator.live.thread import Journal, JournalRow, Label
from simulator.physics.clock import call_later
from simulator.physics.flows import Capacity, Flow, Network
from simulator.spec.nic import NicSpec
from simulator.units import to_ps

Loads = Sequence[tuple[Capacity, float]]


@dataclass(slots=True, eq=False)
class Write:
    """One write of `size_bytes` from a card of `source` to the same card of `target`.

    immediate: the counter that it increments there ("": none). posted: the row that posted it. queued_ps: of its
    latency, behind writes to other ranks. latency_ps: of each of its bytes, in all. sent_ps: when the last one left.
    first_ps: when they began to arrive; bound_by: what limited them then. sides: how many have not moved them all.
    messages: of the card that it stands for.
    """

    label: Label
    source: int
    target: int
    size_bytes: int
    immediate: str = ""
    done: Callable[[JournalRow], object] | None = None
    posted: JournalRow | None = None
    queued_ps: int = 0
    latency_ps: int = 0
    sent_ps: int = 0
    first_ps: int = 0
    bound_by: str = ""
    sides: int = 2
    lost: bool = False
    messages: int = 1

    @property
    def way(self) -> int:
        """From its sender to its receiver, in ranks: at a receiver another one for each sender."""
        return self.target - self.source

    def __str__(self) -> str:
        what = f"{self.size_bytes} B" if self.size_bytes else "immediate only"
        return f"write '{self.label.name}' from rank {self.source} to rank {self.target} ({what})"


@dataclass(slots=True)
class Pace:
    """When the cards of one die, which share it, may start their next write."""

    next_ps: int = 0


class Nic:
    """Card `number` of rank `rank`. received, completed: told of a write with the row in which it arrived.

    capacities: by key, of the network that its bytes are flows of. peers: the cards it can reach, by rank. Where one
    rank stands for all, its card is that of every peer: what it sends to one is what the rank as far on its other side
    sends to it.
    """

    received: Callable[[Write, JournalRow], object]
    completed: Callable[[Write, JournalRow], object]

    def __init__(self, network: Network, spec: NicSpec, fabric: Fabric, capacities: Mapping[CapacityKey, Capacity],
                 rank: int, number: int, journal: Journal, pace: Pace) -> None:
        self.env: Any = network.env
        self.network, self.spec, self.fabric, self.capacities = network, spec, fabric, capacities
        self.rank, self.number, self.journal = rank, number, journal
        self.peers: dict[int, Nic] = {}
        self.dead = False
        self.outstanding: dict[Write, None] = {}  # posted, and not acknowledged yet
        self._ways: dict[int, tuple[Loads, Loads]] = {}
        self._queue: deque[Write] = deque()
        self._sending: Write | None = None
        self._due = False
        self._outstanding_bytes: Counter[int] = Counter()  # by target
        self._outstanding_total = 0
        self._pace, self._received_ps = pace, 0
        self._arrives_ps: dict[int, int] = {}
        self._arriving: dict[int, deque[Write]] = {}  # by how far they came, in the order in which they began to arrive
        self._gap_ps = to_ps(1.0 / spec.message_rate.si)
        self._latency_ps, self._acknowledge_ps = to_ps(spec.latency.si), to_ps(spec.acknowledge.si)
        self._crossing = spec.rail_crossing.si
        self._ordered = spec.delivery == "ordered"
        self._rows_out, self._rows_in = f"nic {number} out", f"nic {number} in"

    def post(self, write: Write) -> None:
        """A write has been posted and its doorbell rung."""
        to_others = self._outstanding_total - self._outstanding_bytes[write.target]
        write.queued_ps = to_ps(min(to_others, self.spec.standing_queue.si) / self.spec.goodput.si)
        self.outstanding[write] = None
        self._outstanding_bytes[write.target] += write.size_bytes
        self._outstanding_total += write.size_bytes
        self._queue.append(write)
        self._serve()

    def die(self) -> None:
        """From now on nothing leaves or arrives; what is on its way is lost."""
        self.dead = True
        for write in self.outstanding:
            write.lost = True

    def slow(self, speed: float) -> None:
        """From now on the card moves this share of its goodput, in both directions."""
        for way in ("nic out", "nic in"):
            self.network.set_rate(self.capacities[way, self.rank, self.number], self.spec.goodput.si * speed)

    # leaving --------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        if self._sending is not None or self._due or not self._queue or self.dead:
            return
        wait_ps = self._pace.next_ps - self.env.now
        if wait_ps > 0:
            self._due = True
            call_later(self.env, wait_ps, self._due_now)
        else:
            self._send()

    def _due_now(self, _: object) -> None:
        self._due = False
        self._serve()

    def _send(self) -> None:
        """Put the first write of the queue on the wire."""
        write, now_ps = self._queue.popleft(), self.env.now
        self._sending = write
        self._pace.next_ps = now_ps + self._gap_ps * write.messages
        write.latency_ps = self._latency_ps + write.queued_ps
        if self._ordered:  # the first byte never passes an earlier write to the same peer
            arrives_ps = max(now_ps + write.latency_ps, self._arrives_ps.get(write.target, 0))
            self._arrives_ps[write.target] = arrives_ps
            write.latency_ps = arrives_ps - now_ps
        leaving, _ = self.way(write.target)
        self.network.start(Flow(write.size_bytes, leaving, tag=(write, now_ps)), self._sent)
        target = self.peers[write.target]
        call_later(self.env, write.latency_ps, lambda _: target.arrive(write, self))

    def _sent(self, flow: Flow) -> None:
        """All bytes of a write have left."""
        write, start_ps = flow.tag
        write.sent_ps = now_ps = self.env.now
        row = self.journal.write(self.rank, self._rows_out, "send", write.label, start_ps, now_ps, _bound_by(flow),
                                 write.size_bytes, write.posted)
        if not write.lost:
            write.posted = row
            self.journal.fly(write.label, self.rank, now_ps, now_ps + write.latency_ps)
        target = self.peers[write.target]
        call_later(self.env, write.latency_ps, lambda _: target.moved(write, self))
        self._sending = None
        self._serve()

    def way(self, target: int) -> tuple[Loads, Loads]:
        """What bytes for the same card of a rank load as they leave, and as they arrive (that card first).

        Between nodes they cross the links of the fabric, inside a node nothing but the cards.
        """
        if target not in self._ways:
            route = self.fabric.route(self.rank, target)
            links = [("link", *edge) for edge in route.edges] if route.level != self.fabric.levels[0] else []
            there = self.peers[target].rank
            down = links[1:] if there == target else [(link, at, die(there)) for link, at, _ in links[1:]]
            self._ways[target] = self._side("out", self.rank, links[:1]), self._side("in", there, down)
        return self._ways[target]

    def _side(self, way: str, rank: int, links: Sequence[CapacityKey]) -> Loads:
        keys = (f"nic {way}", rank, self.number), (f"pcie {way}", rank), ("hbm", rank), *links
        return [(self.capacities[key], 1.0) for key in keys]

    def acknowledged(self, write: Write, row: JournalRow) -> None:
        """The peer has everything: a completion for the sender."""
        if self.dead:
            return
        del self.outstanding[write]
        self._outstanding_bytes[write.target] -= write.size_bytes
        self._outstanding_total -= write.size_bytes
        self.completed(write, row)

    # arriving -------------------------------------------------------------------------------------------------------

    def arrive(self, write: Write, sender: Nic) -> None:
        """The first byte of a write is here; where order is kept, it waits for those before it of the same sender."""
        arriving = self._arriving.setdefault(write.way, deque())
        arriving.append(write)
        if not self._ordered or len(arriving) == 1:
            self._take(write, sender)

    def _take(self, write: Write, sender: Nic) -> None:
        write.first_ps = self.env.now
        _, loads = sender.way(write.target)
        if self._crossing < 1 and len(self._arriving) > 1 and self._crosses(write):  # several senders meet here
            loads = [(loads[0][0], 1.0 / self._crossing), *loads[1:]]
        self.network.start(Flow(write.size_bytes, loads, tag=write), lambda flow: self._taken(flow, sender))

    def _crosses(self, write: Write) -> bool:
        """Whether its sender is on another rail: ranks with the same place in their nodes share one."""
        return write.way % self.fabric.by_level[self.fabric.levels[0]].dies != 0

    def _taken(self, flow: Flow, sender: Nic) -> None:
        """This side has moved all bytes of a write."""
        write: Write = flow.tag
        arriving = self._arriving[write.way]
        arriving.remove(write)
        if not arriving:
            del self._arriving[write.way]
        elif self._ordered:
            self._take(arriving[0], sender)
        write.bound_by = _bound_by(flow)
        self.moved(write, sender)

    def moved(self, write: Write, sender: Nic) -> None:
        """One of the two sides is done with a write; if it was the last one, the write has been received.

        Its row begins when the port was done with the one before.
        """
        write.sides -= 1
        if write.sides:
            return
        if write.lost or self.dead:
            write.lost = True
            return
        now_ps = self.env.now
        parts = {"nic.latency": self._latency_ps, write.bound_by: now_ps - write.sent_ps - write.latency_ps,
                 "nic.standing_queue": write.latency_ps - self._latency_ps}
        start_ps, self._received_ps = max(write.first_ps, self._received_ps), now_ps
        row = self.journal.write(self.rank, self._rows_in, "receive", write.label, start_ps, now_ps,
                                 max(parts, key=parts.__getitem__), 0.0, write.posted)
        self.received(write, row)
        call_later(self.env, self._acknowledge_ps, lambda _: sender.acknowledged(write, row))


def cards(network: Network, spec: NicSpec, fabric: Fabric, capacities: Mapping[CapacityKey, Capacity],
          leader: Sequence[int], journal: Journal) -> dict[int, list[Nic]]:
    """The cards of the ranks that are simulated, each with its peers. leader: by rank, who is simulated for it."""
    made: dict[int, list[Nic]] = {}
    for rank in sorted(set(leader)):
        pace = Pace()
        made[rank] = [Nic(network, spec, fabric, capacities, rank, number, journal, pace)
                      for number in range(spec.per_die.count)]
    for nics in made.values():
        for number, nic in enumerate(nics):
            nic.peers = {rank: made[one][number] for rank, one in enumerate(leader)}
    return made


def _bound_by(flow: Flow) -> str:
    """What limited a flow longest, as in a timeline's `bound_by`."""
    bound = flow.bound_by()
    return bound.name.partition(":")[0] if isinstance(bound, Capacity) else "nic.message_rate"
