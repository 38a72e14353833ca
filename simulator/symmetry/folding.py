"""What exchanges become where ranks are folded: one transfer of each class, which loads what all of its class do.

Every capacity of a class K is loaded alike by the transfers of a class C. A transfer that loads K with b bytes in all
has |C| like it, so each of the |K| capacities gets b |C| / |K| bytes from C, in lock-step; one of them stands for K.

Worked example: 4 ranks, each pair a message of 1 MB. All 12 messages are one class, the 4 ports out another, so the
port that stands gets 1 MB x 12 / 4 = 3 MB while the message that stands moves 1 MB.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator import np
from simulator.collective.transfer import CapacityKey, Phase, Transfer
from simulator.symmetry.refinement import Array
from simulator.symmetry.ties import Exchange, WorldTies
from simulator.units import to_ps


class Folding:
    """What stands for what.

    leader[r]: who is simulated for rank r. capacities, transfers: the class of each; standing: the capacity that stands
    for each class. rates: of capacities, in bytes/s.
    """

    def __init__(self, ties: WorldTies, leader: Sequence[int], capacities: Array, standing: Array, rates: Array,
                 transfers: Array) -> None:
        self._ties, self._leader, self._rates = ties, leader, rates
        self._capacities, self._standing, self._transfers = capacities, standing, transfers
        self._capacities_alike = np.bincount(capacities)
        self._transfers_alike = np.bincount(transfers) if len(transfers) else transfers

    def phases(self, exchange: Exchange, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        """Those of an exchange for the leaders: all like it together, on the capacities that stand."""
        first, folded = self._ties.first[exchange], []
        for phase in phases:
            stand: dict[int, tuple[int, Transfer]] = {}
            for number, transfer in enumerate(phase.transfers, first):
                stand.setdefault(int(self._transfers[number]), (number, transfer))
            first += len(phase.transfers)
            transfers = tuple(self._folded(one, colour, *self._ties.capacities_of_transfer.of(at))
                              for colour, (at, one) in stand.items())
            folded.append(Phase(phase.latency_s, transfers))
        return tuple(folded)

    def stands_for(self, key: CapacityKey) -> CapacityKey | None:
        """The capacity that stands for this one's class; None if no rank ever uses it."""
        place = self._ties.place_of(key)
        if place is None:
            return None
        standing = self._standing[int(self._capacities[place])]
        return self._ties.numbering.key(int(self._ties.used[standing]))

    def own(self, exchange: Exchange, rank: int, transfer: Transfer, side: int) -> Transfer:
        """What leaves a rank or arrives at it in a one-sided exchange, on the capacities that stand."""
        numbers = [self._ties.numbering.of(key)[0] for key in transfer.keys]
        loads = np.array(transfer.moved_bytes)
        colour = int(self._transfers[self._ties.first[exchange] + 2 * exchange[1].index(rank) + side])
        return self._folded(transfer, colour, loads, np.searchsorted(self._ties.used, numbers))

    def busy_ps(self, exchange: Exchange, before: int, groups: Sequence[Sequence[int]]) -> list[int]:
        """As `lowering.Busy`, of an exchange."""
        first = self._ties.first[exchange] + before
        return [self._busiest_ps([first + number for number in numbers]) for numbers in groups]

    def _busiest_ps(self, transfers: Sequence[int]) -> int:
        ties = [self._ties.capacities_of_transfer.of(number) for number in transfers]
        if not ties:
            return 0
        loads, capacities = (np.concatenate(column) for column in zip(*ties, strict=True))
        there, place = np.unique(capacities, return_inverse=True)
        moved = np.bincount(place, weights=loads)
        return to_ps(float((moved / self._rates[there]).max(initial=0.0)))

    def _folded(self, transfer: Transfer, colour: int, loads: Array, capacities: Array) -> Transfer:
        """It for its class, which loads these capacities so much."""
        alike = int(self._transfers_alike[colour])
        classes, first, place = np.unique(self._capacities[capacities], return_index=True, return_inverse=True)
        moved = np.zeros(len(classes), dtype=np.int64)
        np.add.at(moved, place, loads)
        stands = []
        for at in np.argsort(first).tolist():
            one = int(classes[at])
            key = self._ties.numbering.key(int(self._ties.used[self._standing[one]]))
            stands.append((key, int(moved[at]) * alike // int(self._capacities_alike[one])))
        waiting = sorted({self._leader[rank] for rank in transfer.ranks})
        return Transfer.of(transfer.size_bytes, stands, tuple(waiting), transfer.weight)
