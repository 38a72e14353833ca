"""How many bytes leave a rank over the links of each level of the fabric, in all and for each block of its program."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache, lru_cache, partial
from typing import Any

from simulator import np
from simulator.collective.lowering import Lowering
from simulator.collective.one_sided import ONE_SIDED, ports_of
from simulator.collective.transfer import columns_of
from simulator.fabric.graph import Fabric
from simulator.fabric.level import DIE, parts
from simulator.program.task import Collective, Program
from simulator.program.world import World
from simulator.symmetry.roles import Roles
from simulator.symmetry.ties import as_exchange

_Puts = dict[tuple[str, str], list[tuple[int, Collective]]]
"""By group and block: tasks with their works."""
_Others = list[tuple[int, str, Collective]]
"""Task, block, work."""


class Traffic:
    """What ranks send, in a world on a fabric. lowering: of its exchanges."""

    def __init__(self, world: World, roles: Roles, lowering: Lowering, fabric: Fabric) -> None:
        self._world, self._roles, self._fabric = world, roles, fabric
        self._of_exchange = cache(partial(_by_level, lowering, fabric))

    def per_rank(self) -> dict[str, float]:
        """Level, and "level_block" -> bytes that an average rank sends over links of that level, where they leave a
        die."""
        world, total = self._world, defaultdict[str, float](float)
        recordings: dict[int, tuple[_Puts, _Others]] = {}
        for rank, count in self._roles.multiplicity.items():
            program = world.programs[rank]
            own: dict[int, Any] = program.own
            sent: dict[int, dict[str, float]] = {}  # by identity
            if id(program.items) not in recordings:
                recordings[id(program.items)] = _exchanges_of(program)
            puts, others = recordings[id(program.items)]
            for index, block, shared in others:
                collective = own.get(index, shared)
                if id(collective) not in sent:
                    sent[id(collective)] = self._exchanged(rank, collective)
                for level, size in sent[id(collective)].items():
                    total[level] += count * size
                    total[f"{level}_{block}"] += count * size
            for (group, block), tasks in puts.items():
                sent_bytes = sum(own.get(index, shared).sent_bytes for index, shared in tasks)
                for level, share in self._put(rank, group).items():
                    for name in (level, f"{level}_{block}"):
                        total[name] += count * sent_bytes * share
        return {level: size / world.ranks for level, size in total.items()}

    def of_rank(self, rank: int) -> dict[int, tuple[float, ...]]:
        """Task -> bytes that a rank sends over links of each level of the fabric, from the inside out, where they leave
        a die. Tasks that send nothing are left out."""
        found: dict[int, tuple[float, ...]] = {}
        for task, work in self._world.programs[rank].collectives():
            if work.kind in ONE_SIDED:
                sent = {level: work.sent_bytes * share for level, share in self._put(rank, work.group).items()}
            else:
                sent = {} if work.kind == "recv" else self._exchanged(rank, work)
            if any(sent.values()):
                found[task.index] = tuple(sent.get(level, 0.0) for level in self._fabric.levels)
        return found

    def _exchanged(self, rank: int, collective: Collective) -> dict[str, float]:
        """A rank's part in an exchange by level: an average member's."""
        instance = self._world.instance(collective.group, rank)
        _, members, exchange = as_exchange(collective.group, instance, rank, collective)
        share = 1 if collective.kind == "send" else len(members)
        return {level: size / share for level, size in self._of_exchange(exchange, members).items()}

    @lru_cache(maxsize=4096)  # noqa: B019 - as long as this lives
    def _put(self, rank: int, group: str) -> dict[str, float]:
        """The share of a one-sided exchange's bytes that leave a rank over each level."""
        instance, shares = self._world.instance(group, rank), defaultdict[str, float](float)
        for out, _, peers in ports_of(self._fabric, instance, rank):
            shares[self._fabric.link_level(*out)] += peers / max(len(instance) - 1, 1)
        return shares


def _by_level(lowering: Lowering, fabric: Fabric, collective: Collective, members: tuple[int, ...]) -> Counter[str]:
    """All bytes of an exchange."""
    phases = lowering.lower(collective, members)
    keys, place, moved, _ = columns_of([transfer for phase in phases for transfer in phase.transfers])
    levels: Counter[str] = Counter()
    for key, carried in zip(keys, np.bincount(place, moved, minlength=len(keys)).tolist(), strict=True):
        if key[0] == "link" and parts(key[1])[0] == DIE:
            levels[fabric.link_level(*key[1:])] += int(carried)
    return levels


def _exchanges_of(program: Program) -> tuple[_Puts, _Others]:
    """The exchanges of a recording, equal ones as one object. What is received its sender counts."""
    puts: _Puts = defaultdict(list)
    others: _Others = []
    known: dict[Collective, Collective] = {}
    for task, collective in program.collectives():
        block = task.name.partition(".")[0]
        if collective.kind in ONE_SIDED:
            puts[collective.group, block].append((task.index, collective))
        elif collective.kind != "recv":
            others.append((task.index, block, known.setdefault(collective, collective)))
    return puts, others
