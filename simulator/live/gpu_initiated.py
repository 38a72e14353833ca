"""Writes that GPUs post themselves: a doorbell over PCIe for each request, counters in the memory of who receives.

No host thread takes part, so nothing polls: a doorbell crosses PCIe as a flag does, and a kernel that spins on a
counter sees what arrives as it arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from simulator.live.host import Host
from simulator.live.thread import HostProcess, JournalRow, Label
from simulator.live.write import Write


class Posted(NamedTuple):
    """A write to a rank, which raises a counter there; of so many messages of the card, posted in a row."""

    rank: int
    size_bytes: int
    counter: str
    messages: int = 1


class Arrival(NamedTuple):
    """The GPU sees `flag` as soon as so many bytes have raised this counter of its own."""

    counter: str
    size_bytes: int
    flag: str


class Posts(Protocol):
    """What a GPU posts at one of its flags, and what is to arrive at it for the same exchange."""

    @property
    def label(self) -> Label: ...
    @property
    def writes(self) -> Iterable[Posted]: ...
    @property
    def arrivals(self) -> Sequence[Arrival]: ...
    def at(self, rank: int) -> Posts:
        """The same as a rank posts it, where several have one program."""


def gpu_initiated(host: Host) -> HostProcess:
    """The cards and counters of one rank: the writes of each request (`Posts`) as its doorbell rings."""
    counters = Counters(host)
    for asked in host.asked:
        for arrival in asked.at(host.rank).arrivals:
            counters.want(arrival)
    for _ in host.asked:
        row, asked = yield host.next_request()
        cards = host.engine.nics
        for turn, (rank, size, counter, messages) in enumerate(asked.at(host.rank).writes):
            cards[turn % len(cards)].post(
                Write(asked.label, host.rank, rank, size, counter, posted=row, messages=messages))


class Counters:
    """Counters in a GPU's own memory, which arriving writes raise by their bytes and its kernels spin on."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._arrived: Counter[str] = Counter()
        self._wanted: dict[str, Arrival] = {}
        for nic in host.engine.nics:
            nic.received, nic.completed = self._received, lambda *_: None

    def want(self, arrival: Arrival) -> None:
        """From now on; what arrived before counts."""
        self._wanted[arrival.counter] = arrival
        if self._arrived[arrival.counter] == arrival.size_bytes:
            self._host.seen_by_gpu(arrival.flag, JournalRow(-1, -1))

    def _received(self, write: Write, row: JournalRow) -> None:
        self._arrived[write.immediate] += write.size_bytes
        wanted = self._wanted.get(write.immediate)
        if wanted is not None and self._arrived[write.immediate] == wanted.size_bytes:
            self._host.seen_by_gpu(wanted.flag, row)
