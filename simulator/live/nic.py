"""Network cards at run time: writes leave a card one after the other, and their bytes are flows on the run's network.

The bytes of a write load all that they cross, as one flow on either side:

    leaving     HBM of the sender (a read) -> PCIe -> card -> the fabric's link of the sender
    arriving    the other links on the way -> card -> PCIe -> HBM of the receiver (a write), from `latency` later on

The send engine of a card serves one write at a time, in the order of posting, and is free when its bytes have left. A
port that several senders reach at once is shared by them. The network's buffers lie between the two sides: writes that
share a port arrive later, and hold back no card. What a card has on its way to other ranks stands in them, too, and
delays a write by the time in which it drains (a standing queue: bytes over rate). A write has arrived when both sides
have moved its bytes, the last of which takes its latency too.

What a card has on its way when it dies, or when its receiver does, is lost: the bytes go on to load what they cross
and do not count. The card tries a lost write again as a whole every `retransmit`, until both ends live; after `give_up`
it completes with an error. What lost no more than its acknowledgement is not sent again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.collective.transfer import CapacityKey
from simulator.fabric.graph import Fabric
from simulator.fabric.level import die
from simulator.live.retries import Retries
from simulator.live.thread import Journal, JournalRow, Label
from simulator.live.write import Write, bound_by
from simulator.physics.clock import call_later
from simulator.physics.flows import Capacity, Flow, Network
from simulator.spec.nic import NicSpec
from simulator.units import to_ps

Loads = Sequence[tuple[Capacity, float]]


@dataclass(slots=True)
class Pace:
    """When the cards of one die, which share it, may start their next write."""

    next_ps: int = 0


class Nic:
    """Card `number` of rank `rank`. received, completed: told of a write with the row in which it arrived; failed: of
    one that completes with an error; returned: of a card, this one or a peer, that was dead and lives.

    dead: since when it was, if ever, is `died_ps`; it was back at `back_ps`. given_up: writes that ended with an error.
    sent_again_bytes: of writes that were sent before.
    capacities: by key, of the network that its bytes are flows of. peers: the cards it can reach, by rank. Where one
    rank stands for all, its card is that of every peer: what it sends to one is what the rank as far on its other side
    sends to it.
    """

    received: Callable[[Write, JournalRow], object]
    completed: Callable[[Write, JournalRow], object]
    failed: Callable[[Write], object] = staticmethod(lambda write: None)
    returned: Callable[[Nic], object] = staticmethod(lambda nic: None)

    def __init__(self, network: Network, spec: NicSpec, fabric: Fabric, capacities: Mapping[CapacityKey, Capacity],
                 rank: int, number: int, journal: Journal, pace: Pace) -> None:
        self.env: Any = network.env
        self.network, self.spec, self.fabric, self.capacities = network, spec, fabric, capacities
        self.rank, self.number, self.journal = rank, number, journal
        self.peers: dict[int, Nic] = {}
        self.dead, self.died_ps, self.back_ps = False, -1, -1
        self.given_up, self.sent_again_bytes = list[Write](), 0
        self._share, self._shares = 1.0, dict[object, float]()  # that are left, by what strikes it
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
        self._retries = Retries(self.env, spec, self._reaches, self._try_again, self._fail)
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
        if self.dead:
            self._retries.hold(write)
        self._serve()

    def struck(self, by: object, share: float) -> None:
        """From now on something leaves this share of the goodput in both directions: 0 is a dead card, 1 the end of it.

        Of several things at once the one that leaves least counts.
        """
        self._shares[by] = share
        share = min(self._shares.values())
        if share and share != self._share:
            self._share = share
            for way in ("nic out", "nic in"):
                self.network.set_rate(self.capacities[way, self.rank, self.number], self.spec.goodput.si * share)
        if not share and not self.dead:
            self._die()
        elif share and self.dead:
            self._return()

    def lose(self, write: Write) -> None:
        """A write of this card did not arrive."""
        if not write.lost:
            self._retries.lose(write)

    # dying and coming back ------------------------------------------------------------------------------------------

    def _die(self) -> None:
        """Nothing leaves or arrives; what is on its way is lost, what waits to be sent waits."""
        self.dead, self.died_ps = True, self.env.now
        queued = set(self._queue)
        for write in self.outstanding:
            if write in queued:
                self._retries.hold(write)
            elif not write.lost:
                self._retries.lose(write)
        for arriving in self._arriving.values():
            for write in arriving:
                self.peers[write.source].lose(write)

    def _return(self) -> None:
        self.dead, self.back_ps = False, self.env.now
        self._retries.release()
        label = Label("cut")
        self.journal.write(self.rank, f"nic {self.number} cut", "cut", label, self.died_ps, self.back_ps, "fault")
        self._serve()
        for nic in dict.fromkeys((self, *self.peers.values())):
            nic.returned(self)

    def _reaches(self, write: Write) -> bool:
        return not (self.dead or self.peers[write.target].dead)

    def _try_again(self, write: Write) -> None:
        """Both ends live: send a lost write once more, or wait for its acknowledgement where it had arrived."""
        arrived = write.first.arrived
        if arrived is None:
            self._forget(write)
            self.post(write.again())
        else:
            write.lost = False
            call_later(self.env, self._acknowledge_ps, lambda _: self.acknowledged(write, arrived))

    def _fail(self, write: Write) -> None:
        if write in self._queue:
            self._queue.remove(write)
        self._forget(write)
        self.given_up.append(write)
        self.failed(write)

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
        if write.before is not None and write.before.sent_ps:
            self.sent_again_bytes += write.size_bytes
        write.sent_ps = write.first.sent_ps = now_ps = self.env.now
        row = self.journal.write(self.rank, self._rows_out, "send", write.label, start_ps, now_ps, bound_by(flow),
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
        if write.lost:
            return
        self._forget(write)
        self.completed(write, row)

    def _forget(self, write: Write) -> None:
        """It is outstanding no more."""
        del self.outstanding[write]
        self._outstanding_bytes[write.target] -= write.size_bytes
        self._outstanding_total -= write.size_bytes

    # arriving -------------------------------------------------------------------------------------------------------

    def arrive(self, write: Write, sender: Nic) -> None:
        """The first byte of a write is here; where order is kept, it waits for those before it of the same sender."""
        if self.dead:
            sender.lose(write)
            return
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
        write.bound_by = bound_by(flow)
        self.moved(write, sender)

    def moved(self, write: Write, sender: Nic) -> None:
        """One of the two sides is done with a write; if it was the last one, the write has been received.

        Its row begins when the port was done with the one before.
        """
        write.sides -= 1
        if write.sides:
            return
        if write.lost:
            return
        if self.dead or self.died_ps >= write.first_ps:
            sender.lose(write)
            return
        now_ps = self.env.now
        parts = {"nic.latency": self._latency_ps, write.bound_by: now_ps - write.sent_ps - write.latency_ps,
                 "nic.standing_queue": write.latency_ps - self._latency_ps}
        start_ps, self._received_ps = max(write.first_ps, self._received_ps), now_ps
        row = self.journal.write(self.rank, self._rows_in, "receive", write.label, start_ps, now_ps,
                                 max(parts, key=parts.__getitem__), 0.0, write.posted)
        if write.first.arrived is None:  # its card sends it again where no acknowledgement came: it counts once
            write.first.arrived = row
            self.received(write, row)
        call_later(self.env, self._acknowledge_ps, lambda _: sender.acknowledged(write, row))
