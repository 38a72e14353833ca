"""What live processes did, row by row: threads, network cards, and what each row was waiting for.

A row's number is given when it is written, and `because` names the row that it followed from, of whatever rank: the
chain back from a flag is the way that a message took.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

CARD_KINDS = ("send", "receive")


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
        self._timeline.record(rank, task, start_ps, start_ps, start_ps, end_ps, end_ps - start_ps, bound_by)
        if because is not None:
            self._timeline.follow(rank, task, *because)
        return JournalRow(rank, task)

    def follow(self, row: JournalRow, because: JournalRow) -> None:
        """A task of a program followed from a row of a host."""
        self._timeline.follow(*row, *because)

    def fly(self, label: Label, rank: int, start_ps: int, end_ps: int) -> None:
        """Something was on the wire."""
        self.flights.append((label.name, rank, start_ps, end_ps))
