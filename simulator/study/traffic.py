"""How many bytes leave a rank over the links of each level of the fabric, in all and for each block of its program."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache

from simulator.collective.lowering import Lowering
from simulator.collective.one_sided import ONE_SIDED, ports_of
from simulator.fabric.graph import DIE, Fabric, parts
from simulator.program.task import Collective
from simulator.program.world import World
from simulator.symmetry.roles import Roles
from simulator.symmetry.ties import as_exchange


def traffic(world: World, roles: Roles, lowering: Lowering, fabric: Fabric) -> dict[str, float]:
    """Level, and "level_block" -> bytes that an average rank sends over links of that level.

    They are counted where they leave a die. A block is the first word of a task's name.
    """

    @cache
    def of_exchange(collective: Collective, members: tuple[int, ...]) -> Counter[str]:
        """All of its bytes by level."""
        levels: Counter[str] = Counter()
        for phase in lowering.lower(collective, members):
            for transfer in phase.transfers:
                for key, load in transfer.loads:
                    if key[0] == "link" and parts(key[1])[0] == DIE:
                        levels[fabric.link_level(key[1], key[2])] += load
        return levels

    total: dict[str, float] = defaultdict(float)
    for rank, count in roles.multiplicity.items():
        put: Counter[tuple[str, str]] = Counter()  # bytes by group and block
        for task, collective in world.programs[rank].collectives():
            if collective.kind == "recv":
                continue  # its sender counts it
            if collective.kind in ONE_SIDED:
                put[collective.group, task.name.partition(".")[0]] += collective.sent_bytes
                continue
            instance = world.instance(collective.group, rank)
            _, members, exchange = as_exchange(collective.group, instance, rank, collective)
            share = 1 if collective.kind == "send" else len(members)
            for level, size in of_exchange(exchange, members).items():
                for name in (level, f"{level}_{task.name.partition('.')[0]}"):
                    total[name] += count * size / share
        for (group, block), size in put.items():
            instance = world.instance(group, rank)
            for out, _, peers in ports_of(fabric, instance, rank):
                level = fabric.link_level(*out)
                for name in (level, f"{level}_{block}"):
                    total[name] += count * size / max(len(instance) - 1, 1) * peers
    return {level: size / world.ranks for level, size in total.items()}
