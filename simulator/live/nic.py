"""A network card at run time: writes leave one after the other, cross the wire, and queue at the port that they reach.

Sending and receiving are separate servers, so that posting, the wire and a busy receiver overlap as they may. A write
begins to arrive `latency` after it began to leave; at a port that is busy it waits for those that came before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.live.journal import Journal, Key, Label
from simulator.physics.clock import call_later
from simulator.spec.nic import NicSpec
from simulator.units import to_ps


@dataclass(slots=True, eq=False)
class Write:
    """One write of `size_bytes` from a card of `source` to the same card of `target`.

    immediate: the counter that it increments there ("": none). posted: the row that posted it.
    """

    label: Label
    source: int
    target: int
    size_bytes: int
    immediate: str = ""
    done: Callable[[Key], object] | None = None
    posted: Key | None = None
    sent_ps: int = -1
    lost: bool = False

    def __str__(self) -> str:
        what = f"{self.size_bytes} B" if self.size_bytes else "immediate only"
        return f"write '{self.label.name}' from rank {self.source} to rank {self.target} ({what})"


class Nic:
    """Card `number` of rank `rank`. received, completed: told of a write with the row in which it arrived.

    peers: the cards it can reach, by rank. rail: cards of one rail share switches.
    """

    def __init__(
        self,
        env: Any,
        spec: NicSpec,
        rank: int,
        number: int,
        rail: int,
        journal: Journal,
        received: Callable[[Write, Key], object],
        completed: Callable[[Write, Key], object],
    ) -> None:
        self.env, self.spec, self.rank, self.number, self.rail = env, spec, rank, number, rail
        self.journal, self.received, self.completed = journal, received, completed
        self.peers: dict[int, Nic] = {}
        self.speed, self.dead = 1.0, False
        self.outstanding: dict[Write, None] = {}  # posted, and not acknowledged yet
        self._queue: deque[Write] = deque()
        self._sending: Write | None = None
        self._due = False
        self._bulk = 0
        self._next_ps = self._port_free_ps = 0
        self._port_source = -1
        self._arrives_ps: dict[int, int] = {}
        self._goodput, self._gap_ps = spec.goodput.si, to_ps(1.0 / spec.message_rate.si)
        self._latency_ps, self._loaded_ps = to_ps(spec.latency.si), to_ps(spec.loaded_latency.si)
        self._acknowledge_ps, self._packet = to_ps(spec.acknowledge.si), spec.packet.si
        self._ordered = spec.delivery == "ordered"
        self._crossing = spec.rail_crossing.si
        self._out, self._in = f"nic {number} out", f"nic {number} in"

    def post(self, write: Write) -> None:
        """A write has been posted and its doorbell rung."""
        self.outstanding[write] = None
        self._bulk += write.size_bytes > self._packet
        self._queue.append(write)
        self._serve()

    def die(self) -> None:
        """From now on nothing leaves or arrives; what is on its way is lost."""
        self.dead = True
        for write in self.outstanding:
            write.lost = True

    def _serve(self) -> None:
        if self._sending is not None or self._due or not self._queue or self.dead:
            return
        wait_ps = self._next_ps - self.env.now
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
        self._next_ps = now_ps + self._gap_ps
        length_ps = to_ps(write.size_bytes / (self._goodput * self.speed))
        write.sent_ps = now_ps + length_ps
        latency_ps = self._latency_ps
        if write.size_bytes > self._packet and self._bulk > 1:
            latency_ps += self._loaded_ps
        if self._ordered:  # the first byte never passes an earlier write to the same peer
            arrives_ps = max(now_ps + latency_ps, self._arrives_ps.get(write.target, 0))
            self._arrives_ps[write.target] = arrives_ps
            latency_ps = arrives_ps - now_ps
        call_later(self.env, length_ps, lambda _: self._sent(write, now_ps, latency_ps))
        target = self.peers[write.target]
        call_later(self.env, latency_ps, lambda _: target.arrive(write, self, latency_ps))

    def _sent(self, write: Write, start_ps: int, latency_ps: int) -> None:
        row = self.journal.write(self.rank, self._out, "send", write.label, start_ps, self.env.now, "nic.goodput",
                                 write.size_bytes, write.posted)
        if not write.lost:
            write.posted = row
            self.journal.fly(write.label, self.rank, self.env.now, self.env.now + latency_ps)
        self._sending = None
        self._serve()

    def arrive(self, write: Write, sender: Nic, latency_ps: int) -> None:
        """The first byte of a write is here: it is received once the port has served those before it.

        What comes more slowly than the port could take it is taken at its end, so that others pass meanwhile.
        """
        now_ps = self.env.now
        rate = self._goodput * self.speed
        slack_ps = write.sent_ps + latency_ps - to_ps(write.size_bytes / rate) - now_ps
        if slack_ps > 0:
            call_later(self.env, slack_ps, lambda _: self.arrive(write, sender, latency_ps))
            return
        start_ps = max(now_ps, self._port_free_ps)
        if start_ps > now_ps and self._port_source != write.source and sender.rail != self.rail:
            rate *= self._crossing  # writes of several senders meet here
        self._port_source = write.source
        self._port_free_ps = end_ps = start_ps + to_ps(write.size_bytes / rate)
        parts = {"nic.latency": self._latency_ps, "nic.goodput": start_ps - now_ps,
                 "nic.loaded_latency": latency_ps - self._latency_ps}
        bound = max(parts, key=parts.__getitem__)
        call_later(self.env, end_ps - now_ps, lambda _: self._received(write, sender, start_ps, bound))

    def _received(self, write: Write, sender: Nic, start_ps: int, bound: str) -> None:
        if write.lost or self.dead:
            write.lost = True
            return
        row = self.journal.write(self.rank, self._in, "receive", write.label, start_ps, self.env.now, bound, 0.0,
                                 write.posted)
        self.received(write, row)
        call_later(self.env, self._acknowledge_ps, lambda _: sender.acknowledged(write, row))

    def acknowledged(self, write: Write, row: Key) -> None:
        """The peer has everything: a completion for the sender."""
        if self.dead:
            return
        del self.outstanding[write]
        self._bulk -= write.size_bytes > self._packet
        self.completed(write, row)
