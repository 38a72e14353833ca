"""What lies in an L2: weights that an earlier kernel or a prefetch left there.

Named blocks are kept in least-recently-used order. Activations pass through (`passes`) and push out as many bytes of
the oldest blocks as do not fit beside them; a stream that is read once with a no-allocate hint (a KV cache) is not
counted.
"""

from __future__ import annotations


class Cache:
    """L2 of `capacity_bytes`; of a block, as much stays as has room."""

    def __init__(self, capacity_bytes: float) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0.0
        self._blocks: dict[str, float] = {}  # the oldest first

    def resident_bytes(self, name: str) -> float:
        """How much of the block lies in L2; using it makes it the youngest."""
        size_bytes = self._blocks.pop(name, None)
        if size_bytes is None:
            return 0.0
        self._blocks[name] = size_bytes
        return size_bytes

    def keep(self, name: str, size_bytes: float) -> None:
        """Have at least so much of the block, as the youngest; a block larger than L2 is not kept."""
        if size_bytes > self.capacity_bytes:
            return
        before = self._blocks.pop(name, 0.0)
        self.held_bytes -= before
        size_bytes = max(before, size_bytes)
        if self.held_bytes > self.capacity_bytes - size_bytes:
            self._evict(self.capacity_bytes - size_bytes)
        self._blocks[name] = size_bytes
        self.held_bytes += size_bytes

    def passes(self, size_bytes: float) -> None:
        """Activations of this size went through: the oldest bytes that do not fit beside them are gone."""
        if self.held_bytes > self.capacity_bytes - size_bytes:
            self._evict(max(self.capacity_bytes - size_bytes, 0.0))

    def _evict(self, room_bytes: float) -> None:
        """Drop the oldest bytes until no more than this are held."""
        while self._blocks and self.held_bytes > room_bytes:
            oldest, size_bytes = next(iter(self._blocks.items()))
            too_many = self.held_bytes - room_bytes
            if too_many < size_bytes:
                self._blocks[oldest] = size_bytes - too_many
                self.held_bytes = room_bytes
                return
            del self._blocks[oldest]
            self.held_bytes -= size_bytes
        if not self._blocks:
            self.held_bytes = 0.0
