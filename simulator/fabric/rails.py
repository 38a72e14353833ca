"""Rails: card i of every node has its port on switch i, as in rail-optimised networks of NICs.

Between cards of different places, bytes first go inside the sender's node to the card of the receiver's place, and then
over that card's rail (as NCCL's PXN does). The card on the way passes them on; its memory is not loaded.

    die 1 -> rail 1 -> die 9                      two nodes of 8, the same place
    die 1 -> node 0 -> die 4 -> rail 4 -> die 12    another place
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.fabric.level import Edge, Level, joining
from simulator.fabric.switch import Switch
from simulator.spec.levels import LevelSpec


class Rails(Switch):
    """See `RailsLevel`."""

    def __init__(self, spec: LevelSpec, inner: Sequence[Level], ranks: int) -> None:
        super().__init__(spec, inner, ranks)
        self.planes = self.inside
        self.shortest = 0

    def way(self, source: int, target: int) -> tuple[Edge, ...]:
        """Over the receiver's rail; over the sender's where its own node, filled in part, lacks the card for that."""
        place, receiver = source % self.inside, target % self.inside
        if place == receiver:
            return super().way(source, target)
        relay = source - place + receiver
        if relay < self.ranks:
            return joining(self.inner, source, relay).way(source, relay) + super().way(relay, target)
        relay = target - receiver + place
        return super().way(source, relay) + joining(self.inner, relay, target).way(relay, target)
