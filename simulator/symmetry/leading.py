"""The exchanges that simulated ranks take part in themselves, by those who stand for their members.

Where leaders meet for many groups at once, each leader is in one of them: it is that group whose links say how long the
exchange would take this leader alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from simulator.program.task import Collective
from simulator.program.world import World
from simulator.symmetry.roles import Roles

Instances = dict[tuple, dict[tuple[int, ...], None]]


class Leading:
    """Instances of groups, and of messages, that hold a leader."""

    def __init__(self, world: World, roles: Roles) -> None:
        self._world, self._roles = world, roles
        self._groups: dict[str, Instances] = {}
        self._messages: Instances | None = None

    def instances(self, collective: Collective, members: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Those whose members have the same leaders as these; of a message (as it is sent) the two ends in order."""
        if collective.kind == "send":
            ends = self._roles.leader[members[0]], self._roles.leader[members[1]]
            return list(self._pairs()[collective, *ends])
        if collective.group not in self._groups:
            self._groups[collective.group] = self._of_group(collective.group)
        return list(self._groups[collective.group][leaders_of(self._roles, members)])

    def _of_group(self, name: str) -> Instances:
        found: Instances = defaultdict(dict)
        leading = set(self._roles.leaders)
        for members in self._world.groups[name]:
            if not leading.isdisjoint(members):
                found[leaders_of(self._roles, members)][members] = None
        return found

    def _pairs(self) -> Instances:
        if self._messages is None:
            self._messages = defaultdict(dict)
            for rank in self._roles.leaders:
                for _, work in self._world.programs[rank].collectives():
                    if work.kind in ("send", "recv"):
                        peer = self._world.instance(work.group, rank)[work.peer]
                        pair = (rank, peer) if work.kind == "send" else (peer, rank)
                        ends = self._roles.leader[pair[0]], self._roles.leader[pair[1]]
                        self._messages[work.as_send(), *ends][pair] = None
        return self._messages


def leaders_of(roles: Roles, members: Sequence[int]) -> tuple[int, ...]:
    """Who stands for these, in order."""
    return tuple(sorted([roles.leader[member] for member in members]))
