"""Where experts live when some are popular: replicas of the hottest, packed so that dies carry the same load.

As DeepSeek's expert-parallel load balancer (EPLB): every slot beyond the number of experts goes to the expert with the
highest load per copy; copies are packed, heaviest first, on the die with the least load that has a slot left. Rows of
an expert are shared evenly by its copies.

Worked example: loads 6, 2, 2, 2 on 3 dies of 2 slots: two replicas, both of expert 0 (6 -> 3 -> 2 per copy); every die
then carries 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heapreplace


@dataclass(frozen=True)
class Placement:
    """slots: the experts of every die, one per slot."""

    slots: tuple[tuple[int, ...], ...]

    @cached_property
    def copies(self) -> Counter[int]:
        """How many slots hold each expert."""
        return Counter(expert for die in self.slots for expert in die)

    def rows(self, arriving: Sequence[int]) -> list[tuple[int, ...]]:
        """Rows for every slot of every die, when so many arrive for each expert; earlier copies take what is left."""
        seen: Counter[int] = Counter()
        table = []
        for die in self.slots:
            own = []
            for expert in die:
                share, rest = divmod(int(arriving[expert]), self.copies[expert])
                own.append(share + (seen[expert] < rest))
                seen[expert] += 1
            table.append(tuple(own))
        return table

    def loads(self, loads: Sequence[float]) -> list[float]:
        """Load of every die, for loads by expert."""
        return [sum(loads[expert] / self.copies[expert] for expert in die) for die in self.slots]


def spread(experts: int, dies: int) -> Placement:
    """Experts in order over dies, whatever their load, and around again in slots that are left; ValueError: no dies."""
    per_die = _slots_per_die(experts, dies)
    return Placement(tuple(tuple((die * per_die + slot) % experts for slot in range(per_die)) for die in range(dies)))


def rebalance(loads: Sequence[float], dies: int, spare: int = 0) -> Placement:
    """Replicate the hottest and pack by load. spare: slots of every die beyond those that hold each expert once."""
    per_die = _slots_per_die(len(loads), dies) + spare
    copies = replicate(loads, per_die * dies)
    chosen = [expert for expert, count in enumerate(copies) for _ in range(count)]
    packed = pack([loads[expert] / copies[expert] for expert in chosen], dies, per_die)
    return Placement(tuple(tuple(chosen[slot] for slot in die) for die in packed))


def replicate(loads: Sequence[float], slots: int) -> list[int]:
    """Copies of every expert: one each, and one more for the highest load per copy as long as there are slots."""
    copies = [1] * len(loads)
    for _ in range(slots - len(loads)):
        hottest = max(range(len(loads)), key=lambda expert: loads[expert] / copies[expert])
        copies[hottest] += 1
    return copies


def pack(weights: Sequence[float], bins: int, per_bin: int) -> list[list[int]]:
    """Items in bins of so many each: heaviest first, each to the lightest bin that has room."""
    packed: list[list[int]] = [[] for _ in range(bins)]
    lightest = [(0.0, number) for number in range(bins if per_bin else 0)]  # of those with room: a heap
    for item in sorted(range(len(weights)), key=lambda one: -weights[one]):
        total, number = lightest[0]
        packed[number].append(item)
        if len(packed[number]) < per_bin:
            heapreplace(lightest, (total + weights[item], number))
        else:
            heappop(lightest)
    return packed


def _slots_per_die(experts: int, dies: int) -> int:
    if dies < 1:
        raise ValueError("experts need at least one die")
    return -(-experts // dies)
