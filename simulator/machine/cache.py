"""What lies in an L2: weights that an earlier kernel or a prefetch left there.

Named blocks are kept in least-recently-used order. Activations pass through (`passes`) and push out the oldest blocks
that no longer fit beside them; a stream that is read once with a no-allocate hint (a KV cache) is not counted.
"""

from __future__ import annotations

from collections import OrderedDict


class Cache:
    """L2 of `capacity_bytes`; blocks are whole or absent."""

    def __init__(self, capacity_bytes: float) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0.0
        self._blocks: OrderedDict[str, float] = OrderedDict()

    def holds(self, name: str) -> bool:
        """Whether the block lies in L2; a hit makes it the youngest."""
        if name in self._blocks:
            self._blocks.move_to_end(name)
            return True
        return False

    def keep(self, name: str, size_bytes: float) -> None:
        """Put a block in (or make it the youngest); a block larger than L2 is not kept."""
        if name in self._blocks:
            self._blocks.move_to_end(name)
            return
        if size_bytes > self.capacity_bytes:
            return
        self._evict(self.capacity_bytes - size_bytes)
        self._blocks[name] = size_bytes
        self.held_bytes += size_bytes

    def passes(self, size_bytes: float) -> None:
        """Activations of this size went through: the oldest blocks that do not fit beside them are gone."""
        if self._blocks:
            self._evict(max(self.capacity_bytes - size_bytes, 0.0))

    def _evict(self, room_bytes: float) -> None:
        while self._blocks and self.held_bytes > room_bytes:
            _, size_bytes = self._blocks.popitem(last=False)
            self.held_bytes -= size_bytes
        if not self._blocks:
            self.held_bytes = 0.0
