"""How many bytes leave a rank over the links of each level of the fabric, in all and for each block of its program."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache, partial
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


def traffic(world: World, roles: Roles, lowering: Lowering, fabric: Fabric) -> dict[str, float]:
    """Level, and "level_block" -> bytes that an average rank sends over links of that level, where they leave a die."""

    of_exchange = cache(partial(_by_level, lowering, fabric))

    def sent_by(rank: int, collective: Collective) -> list[tuple[str, float]]:
        """Its part in an exchange, times the ranks that it stands for, by level."""
        instance = world.instance(collective.group, rank)
        _, members, exchange = as_exchange(collective.group, instance, rank, collective)
        share = 1 if collective.kind == "send" else len(members)
        return [(level, roles.multiplicity[rank] * size / share)
                for level, size in of_exchange(exchange, members).items()]  # fmt: skip

    total: dict[str, float] = defaultdict(float)
    recordings: dict[int, tuple[_Puts, _Others]] = {}
    for rank, count in roles.multiplicity.items():
        program = world.programs[rank]
        own: dict[int, Any] = program.own
        sent: dict[int, list[tuple[str, float]]] = {}  # by identity
        if id(program.items) not in recordings:
            recordings[id(program.items)] = _exchanges_of(program)
        puts, others = recordings[id(program.items)]
        for index, block, shared in others:
            collective = own.get(index, shared)
            if id(collective) not in sent:
                sent[id(collective)] = sent_by(rank, collective)
            for level, size in sent[id(collective)]:
                total[level] += size
                total[f"{level}_{block}"] += size
        for (group, block), tasks in puts.items():
            sent_bytes = sum(own.get(index, shared).sent_bytes for index, shared in tasks)
            instance = world.instance(group, rank)
            for out, _, peers in ports_of(fabric, instance, rank):
                level = fabric.link_level(*out)
                for name in (level, f"{level}_{block}"):
                    total[name] += count * sent_bytes / max(len(instance) - 1, 1) * peers
    return {level: size / world.ranks for level, size in total.items()}


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
