"""Threads of a host at run time, and what live processes did, row by row: threads, cards, what each was waiting for.

A row's number is given when it is written, and `because` names the row that it followed from, of whatever rank: the
chain back from a flag is the way that a message took.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import simpy

from simulator.units import to_ps

HostProcess = Generator[simpy.Event, Any, Any]
"""What a live process does: it yields events and may return something."""

CARD_KINDS = ("send", "receive", "cut")


class JournalRow(NamedTuple):
    """A row of any rank: its rank, and the number of its task there."""

    rank: int
    task: int


@dataclass(frozen=True, slots=True)
class Label:
    """What a row is called: name, layer and micro-batch, as in a rank's program."""

    name: str
    layer: int = -1
    micro_batch: int = -1


class Journal:
    """The journal of one run. timeline: takes its rows. flights: (name, rank, start, end) in ps, of what was sent."""

    def __init__(self, timeline: Any) -> None:
        self._timeline = timeline
        self.flights: list[tuple[str, int, int, int]] = []

    def write(self, rank: int, stream: str, kind: str, label: Label, start_ps: int, end_ps: int, bound_by: str,
              size_bytes: float = 0.0, because: JournalRow | None = None) -> JournalRow:
        """One row, as it has ended."""
        engine = "nic" if kind in CARD_KINDS else "host thread"
        task = self._timeline.add_task(rank, label.name, stream, kind, engine, label.layer, label.micro_batch,
                                       size_bytes)
        self._timeline.record(rank, task, start_ps, start_ps, start_ps, end_ps, end_ps - start_ps, bound_by, 1)
        if because is not None:
            self._timeline.follow(rank, task, *because)
        return JournalRow(rank, task)

    def follow(self, row: JournalRow, because: JournalRow) -> None:
        """A task of a program followed from a row of a host."""
        self._timeline.follow(*row, *because)

    def fly(self, label: Label, rank: int, start_ps: int, end_ps: int) -> None:
        """Something was on the wire."""
        self.flights.append((label.name, rank, start_ps, end_ps))


class HostThread:
    """A busy-polling thread of rank `rank`: it does one thing at a time, and each thing takes its time on the thread.

    It sees what it polls for `poll_s` after it is there. What it does without having waited followed from what it did
    before, and not from what it then polled for, which was there.
    """

    def __init__(self, env: Any, rank: int, name: str, poll_s: float, journal: Journal) -> None:
        self.env, self.rank, self.name, self.journal = env, rank, name, journal
        self.poll_ps = to_ps(poll_s)
        self.waiting_for = ""  # in words, while it polls
        self.away_until_ps = 0
        self.lost = False
        self._idle = True  # since it did the last thing
        self._last: JournalRow | None = None

    def work(self, what: str, seconds: float, label: Label, bound_by: str,
             because: JournalRow | None = None) -> HostProcess:
        """Spend time on the thread, doing `what` ("post", "poll", ...) for a transfer; returns the row."""
        yield from self._here()
        start_ps = self.env.now
        if seconds:
            yield self.env.timeout(to_ps(seconds))
        if because is not None and not self._idle:
            because = self._last
        self._idle, self._last = False, self.journal.write(self.rank, self.name, what, label, start_ps, self.env.now,
                                                           bound_by, 0.0, because)  # fmt: skip
        return self._last

    def until(self, event: simpy.Event, what: str) -> HostProcess:
        """Poll until the event has happened; returns its value."""
        self.waiting_for = what
        if event.callbacks is not None:
            self._idle = True
            yield event
        if self.poll_ps:
            yield self.env.timeout(self.poll_ps)
        yield from self._here()
        self.waiting_for = ""
        return event.value

    def deschedule(self, seconds: float) -> None:
        """The operating system takes the thread away from now on: what it has begun ends, nothing else starts."""
        start_ps, self.away_until_ps = self.env.now, max(self.away_until_ps, self.env.now + to_ps(seconds))
        stream, label = f"{self.name} away", Label("descheduled")
        self.journal.write(self.rank, stream, "descheduled", label, start_ps, self.away_until_ps, "fault")

    def _here(self) -> HostProcess:
        if self.lost:
            self.waiting_for = "nothing: its host is lost"
            yield self.env.event()
        while self.away_until_ps > self.env.now:
            yield self.env.timeout(self.away_until_ps - self.env.now)
