"""DeepEP's low-latency kernels: GPUs post a write for every row themselves (IBGDA), and no host thread takes part.

The GPU side is that of `rows`: warps ring the card's doorbell row by row, receivers spin on counters in their own
memory. Published by DeepSeek, deepseek-ai/DeepEP.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.live.gpu_initiated import Arrival, Posted
from simulator.live.thread import Label
from simulator.parallel.exchange.rows import Asked, RowKernels


class RowPosts(Asked):
    """The rows of one leg as writes (`live.gpu_initiated.Posts`)."""

    @property
    def label(self) -> Label:
        """What they are called."""
        return self.crossing.label(f"{self.block}.tokens")

    @property
    def arrivals(self) -> list[Arrival]:
        """All rows that come over the cards."""
        leg = self.crossing.leg(self.block)
        return [Arrival(self.crossing.on(leg.label.name), leg.arriving * leg.row_bytes, leg.answer)]

    @property
    def writes(self) -> Iterator[Posted]:
        """A write for each row, in the order of the tokens."""
        x, leg = self.crossing, self.crossing.leg(self.block)
        counter = x.on(leg.label.name)
        return (Posted(x.rank(peer), leg.row_bytes, counter) for peer in x.in_turn(leg))


class LowLatency(RowKernels):
    """Rows by the GPU itself."""

    asked = RowPosts
    apart = True
