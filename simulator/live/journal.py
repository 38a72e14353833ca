"""What live processes did, row by row: threads, network cards, and what each row was waiting for.

A row's number is given when it is written, and `because` names the row that it followed from, of whatever rank: the
chain back from a flag is the way that a message took.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


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


class Journal(Protocol):
    """Where live processes write what they did (they do not know who reads it)."""

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
    ) -> JournalRow: ...

    def follow(self, row: JournalRow, because: JournalRow) -> None: ...

    def fly(self, label: Label, rank: int, start_ps: int, end_ps: int) -> None: ...
