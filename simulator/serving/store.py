"""Blocks of KV cache in memory below HBM: a table of hashes with LRU, of which some are being read and some written.

What is being written cannot be read before it is there, and neither it nor what is being read goes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Store:
    """room: hashes that it can hold. exclusive: what is read leaves, and its room is that of what comes instead; else
    it stays. Counted: read, written and evicted, hashes since the beginning."""

    def __init__(self, room: int, exclusive: bool = False) -> None:
        self.room, self.exclusive = room, exclusive
        self.read = self.written = self.evicted = 0
        self._ready: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self._reading: dict[int, int] = {}  # how many times
        self._writing: set[int] = set()

    def __len__(self) -> int:
        """Hashes that take room."""
        return len(self._ready) + len(self._writing) + (0 if self.exclusive else len(self._reading))

    def __contains__(self, one: int) -> bool:
        return one in self._ready or one in self._reading

    def leading(self, chain: Sequence[int]) -> int:
        """Hashes of a chain that can be read, before the first one that cannot."""
        for number, one in enumerate(chain):
            if one not in self:
                return number
        return len(chain)

    def hold(self, chain: Sequence[int]) -> None:
        """They are being read. ValueError where one is not there."""
        if self.leading(chain) < len(chain):
            raise ValueError(f"of {len(chain)} hashes {self.leading(chain)} are there")
        for one in chain:
            self._ready.pop(one, None)
            self._reading[one] = self._reading.get(one, 0) + 1
        self.read += len(chain)

    def let_go(self, chain: Sequence[int]) -> None:
        """They have been read: used now, the last one first, or gone where they leave."""
        for one in reversed(chain):
            self._reading[one] -= 1
            if not self._reading[one]:
                del self._reading[one]
                if not self.exclusive:
                    self._ready[one] = None

    def put(self, chain: Sequence[int]) -> list[int]:
        """Those of a chain that are not there, as far as there is room, are being written from now on: which. Those
        that are there are used now, the last one first, and the least recently used others go where room is needed."""
        here = {one for one in chain if one in self._ready}
        for one in reversed(chain):
            if one in here:
                self._ready.move_to_end(one)
        new = [one for one in chain if one not in self and one not in self._writing]
        spare = min(max(len(self) + len(new) - self.room, 0), len(self._ready) - len(here))
        for _ in range(spare):
            self._ready.popitem(last=False)
        self.evicted += spare
        new = new[: max(self.room - len(self), 0)]
        self._writing.update(new)
        return new

    def forget(self) -> None:
        """What is neither being read nor written is gone."""
        self._ready.clear()

    def came(self, hashes: Iterable[int]) -> None:
        """They are written; the first one goes first."""
        for one in hashes:
            self._writing.remove(one)
            self._ready[one] = None
            self.written += 1
