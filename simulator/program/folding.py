"""What exchanges become where ranks are folded: one transfer of each class, which loads what all of its class do.

Every capacity of a class K is loaded alike by the transfers of a class C. A transfer that loads K with b bytes in all
has |C| like it, so each of the |K| capacities gets b |C| / |K| bytes from C, in lock-step; one of them stands for K.

Worked example: 4 ranks, each pair a message of 1 MB. All 12 messages are one class, the 4 ports out another, so the
port that stands gets 1 MB x 12 / 4 = 3 MB while the message that stands moves 1 MB.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from simulator.program.transfer import Phase, Transfer

Both = tuple[Transfer | None, Transfer | None]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.program.refinement import Array
    from simulator.program.ties import Exchange, WorldTies
    from simulator.program.transfer import Key


class Folding:
    """Classes of capacities and transfers. leader[r]: who is simulated for rank r. standing: a capacity per class."""

    def __init__(
        self, ties: WorldTies, leader: Sequence[int], capacities: Array, standing: Array, transfers: Array
    ) -> None:
        import numpy as np

        self._numbering, self._used, self._first = ties.numbering, ties.used, ties.first
        self._leader, self._capacities, self._standing, self._transfers = leader, capacities, standing, transfers
        self._capacities_alike = np.bincount(capacities)
        self._transfers_alike = np.bincount(transfers) if len(transfers) else transfers
        self._known: dict[Key, tuple[Key, int]] = {}

    def phases(self, exchange: Exchange, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        """Those of an exchange for the leaders: all like it together, on the capacities that stand."""
        number, folded = self._first[exchange], []
        for phase in phases:
            classes: dict[int, Transfer] = {}
            for transfer in phase.transfers:
                classes.setdefault(int(self._transfers[number]), transfer)
                number += 1
            folded.append(Phase(phase.latency_s, tuple(self._folded(one, c) for c, one in classes.items())))
        return tuple(folded)

    def own(self, exchange: Exchange, rank: int, both: tuple[Transfer | None, Transfer | None]) -> Both:
        """What leaves a rank and what arrives at it in a one-sided exchange, on the capacities that stand."""
        number = self._first[exchange] + 2 * exchange[1].index(rank)
        out, into = self._transfers[number : number + 2].tolist()
        return both[0] and self._folded(both[0], out), both[1] and self._folded(both[1], into)

    def _folded(self, transfer: Transfer, colour: int) -> Transfer:
        alike = int(self._transfers_alike[colour])
        moved: Counter[tuple[Key, int]] = Counter()
        for key, load in transfer.loads:
            moved[self._class(key)] += load
        loads = tuple((key, load * alike // members) for (key, members), load in moved.items())
        waiting = sorted({self._leader[rank] for rank in transfer.ranks})
        return Transfer(transfer.size_bytes, loads, tuple(waiting), transfer.weight)

    def _class(self, key: Key) -> tuple[Key, int]:
        """The capacity that stands for this one, and for how many."""
        known = self._known.get(key)
        if known is None:
            import numpy as np

            number, _ = self._numbering.of(key)
            colour = self._capacities[np.searchsorted(self._used, number)]
            stands = self._numbering.key(int(self._used[self._standing[colour]]))
            known = self._known[key] = stands, int(self._capacities_alike[colour])
        return known
