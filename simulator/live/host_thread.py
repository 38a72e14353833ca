"""One busy-polling thread of a host: it does one thing at a time, and each thing takes its time on the thread."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from simulator.live.journal import Journal, JournalRow, Label
from simulator.units import to_ps

HostProcess = Generator[simpy.Event, Any, Any]
"""What a live process does: it yields events and may return something."""


class HostThread:
    """A thread of rank `rank`; it sees what it polls for `poll_s` after it is there."""

    def __init__(self, env: Any, rank: int, name: str, poll_s: float, journal: Journal) -> None:
        self.env, self.rank, self.name, self.journal = env, rank, name, journal
        self.poll_ps = to_ps(poll_s)
        self.waiting_for = ""  # in words, while it polls
        self.away_until_ps = 0
        self.lost = False

    def work(self, what: str, seconds: float, label: Label, bound_by: str,
             because: JournalRow | None = None) -> HostProcess:
        """Spend time on the thread, doing `what` ("post", "poll", ...) for a transfer; returns the row."""
        yield from self._here()
        start_ps = self.env.now
        if seconds:
            yield self.env.timeout(to_ps(seconds))
        return self.journal.write(self.rank, self.name, what, label, start_ps, self.env.now, bound_by, 0.0, because)

    def until(self, event: simpy.Event, what: str) -> HostProcess:
        """Poll until the event has happened; returns its value."""
        self.waiting_for = what
        if event.callbacks is not None:
            yield event
        if self.poll_ps:
            yield self.env.timeout(self.poll_ps)
        yield from self._here()
        self.waiting_for = ""
        return event.value

    def deschedule(self, seconds: float) -> None:
        """The operating system takes the thread away from now on: what it has begun ends, nothing else starts."""
        self.away_until_ps = self.env.now + to_ps(seconds)
        stream, label = f"{self.name} away", Label("descheduled")
        self.journal.write(self.rank, stream, "descheduled", label, self.env.now, self.away_until_ps, "fault")

    def _here(self) -> HostProcess:
        if self.lost:
            self.waiting_for = "nothing: its host is lost"
            yield self.env.event()
        if self.away_until_ps > self.env.now:
            yield self.env.timeout(self.away_until_ps - self.env.now)
