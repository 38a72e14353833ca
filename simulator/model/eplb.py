"""Where experts live when some are popular: replicas of the hottest, packed so that dies carry the same load.

As DeepSeek's expert-parallel load balancer (EPLB, deepseek-ai/EPLB): every slot beyond the number of experts goes to
the expert with the highest load per copy; copies are packed, heaviest first, on the die with the least load that has a
slot left. Rows of an expert are shared evenly by its copies. Where tokens keep to groups of experts, and nodes divide
the groups, whole groups are packed on nodes first, and each node does the same with its own experts (hierarchical);
else all dies share all experts (global).

Worked example: loads 6, 2, 2, 2 on 3 dies of 2 slots: two replicas, both of expert 0 (6 -> 3 -> 2 per copy); every die
then carries 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heapreplace


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


def spread(experts: int, dies: int, spare: int = 0) -> Placement:
    """Experts in order over dies, whatever their load, and around again in slots that are left; spare: as of
    `rebalance`. ValueError: no dies."""
    per_die = _slots_per_die(experts, dies) + spare
    return Placement(tuple(tuple((die * per_die + slot) % experts for slot in range(per_die)) for die in range(dies)))


def rebalance(loads: Sequence[float], dies: int, spare: int = 0, nodes: int = 1, groups: int = 1) -> Placement:
    """Replicate the hottest and pack by load. spare: slots of every die beyond those that hold each expert once.
    nodes: of neighbouring dies, as many each; groups: of neighbouring experts, as many each, that a token keeps to."""
    per_die, experts = _slots_per_die(len(loads), dies) + spare, range(len(loads))
    if nodes == 1 or groups % nodes or dies % nodes or len(loads) % groups:
        return Placement(tuple(_balanced(loads, experts, dies, per_die)))
    size = len(loads) // groups
    members = [experts[group * size : (group + 1) * size] for group in range(groups)]
    packed = pack([sum(loads[expert] for expert in group) for group in members], nodes, groups // nodes)
    return Placement(tuple(die for node in packed for die in
                           _balanced(loads, [one for group in node for one in members[group]], dies // nodes, per_die)))


def _balanced(loads: Sequence[float], experts: Sequence[int], dies: int, per_die: int) -> Iterator[tuple[int, ...]]:
    """The slots of every die, where these experts are on these dies."""
    own = [loads[expert] for expert in experts]
    copies = replicate(own, per_die * dies)
    chosen = [place for place, count in enumerate(copies) for _ in range(count)]
    for die in pack([own[place] / copies[place] for place in chosen], dies, per_die):
        yield tuple(experts[chosen[slot]] for slot in die)


def replicate(loads: Sequence[float], slots: int) -> list[int]:
    """Copies of every expert: one each, and one more for the highest load per copy as long as there are slots."""
    copies = [1] * len(loads)
    hottest = [(-load, expert) for expert, load in enumerate(loads)]
    heapify(hottest)
    for _ in range(slots - len(loads)):
        expert = hottest[0][1]
        copies[expert] += 1
        heapreplace(hottest, (-loads[expert] / copies[expert], expert))
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
