"""Puts what live processes do into the timeline of a run: a row each, linked to the row that it followed from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.live.journal import JournalRow, Label
from simulator.observe.trace import Flight

if TYPE_CHECKING:
    from simulator.observe.timeline import Timeline, Unrecorded

CARD_KINDS = ("send", "receive")


class LiveJournal:
    """The journal of one run. flights: what was on the wire, for the trace."""

    def __init__(self, timeline: Timeline | Unrecorded) -> None:
        self.timeline = timeline
        self.flights: list[Flight] = []

    def write(
        self,
        rank: int,
        stream: str,
        kind: str,
        label: Label,
        start_ps: int,
        end_ps: int,
        bound_by: str,
        size_bytes: float = 0.0,
        because: JournalRow | None = None,
    ) -> JournalRow:
        """One row, as it has ended."""
        engine = "nic" if kind in CARD_KINDS else "host thread"
        task = self.timeline.add_task(rank, label.name, stream, kind, engine, label.layer, label.micro_batch,
                                      size_bytes)
        self.timeline.record(rank, task, start_ps, start_ps, start_ps, end_ps, end_ps - start_ps, bound_by)
        if because is not None:
            self.timeline.follow(rank, task, *because)
        return JournalRow(rank, task)

    def follow(self, row: JournalRow, because: JournalRow) -> None:
        """A task of a program followed from a row of a host."""
        self.timeline.follow(*row, *because)

    def fly(self, label: Label, rank: int, start_ps: int, end_ps: int) -> None:
        """Something was on the wire."""
        self.flights.append(Flight(label.name, rank, start_ps, end_ps))
