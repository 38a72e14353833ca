"""A write as it is on its way: what a card sends, its peer receives, and an engine counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from simulator.live.thread import JournalRow, Label
from simulator.physics.flows import Capacity, Flow


@dataclass(slots=True, eq=False)
class Write:
    """One write of `size_bytes` from a card of `source` to the same card of `target`.

    immediate: the counter that it increments there ("": none). posted: the row that posted it. queued_ps: of its
    latency, behind writes to other ranks. latency_ps: of each of its bytes, in all. sent_ps: when the last one left.
    first_ps: when they began to arrive; bound_by: what limited them then. sides: how many have not moved them all.
    messages: of the card that it stands for. before: the write that it repeats. arrived: its row where it was received.
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
    before: Write | None = None
    arrived: JournalRow | None = None

    @property
    def first(self) -> Write:
        """The one that was asked for: itself, or the one that it repeats."""
        return self.before or self

    def again(self) -> Write:
        """The same write to be sent once more."""
        return replace(self, before=self.first, sides=2, lost=False)

    @property
    def way(self) -> int:
        """From its sender to its receiver, in ranks: at a receiver another one for each sender."""
        return self.target - self.source

    def __str__(self) -> str:
        what = f"{self.size_bytes} B" if self.size_bytes else "immediate only"
        return f"write '{self.label.name}' from rank {self.source} to rank {self.target} ({what})"


def bound_by(flow: Flow) -> str:
    """What limited a flow longest, as in a timeline's `bound_by`."""
    bound = flow.bound_by()
    return bound.name.partition(":")[0] if isinstance(bound, Capacity) else "nic.message_rate"
