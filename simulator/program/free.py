"""What if a block of a program were free: the same launches, streams, waits and meetings, and nothing to do in them.

A free kernel takes no time, no bytes and no cores, and leaves no weights in L2; a free prefetch leaves its weights
there at once. Members of a free collective still meet: it ends when the last of them has come. The host still launches
all of them, and what live hosts do is theirs: flags are as they were, but no cores are held at them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from simulator.die.kernels import FREE, Work
from simulator.paths import did_you_mean
from simulator.program.task import Collective, Flag, HostWait, Prefetch, Program, ProgramError, Task
from simulator.program.world import World

Launched = Work | Collective | Prefetch | Flag


def blocks_of(world: World) -> list[str]:
    """The blocks that its programs consist of, in the order in which they are launched first."""
    recordings = {id(program.items): program for program in world.programs}.values()
    return list(dict.fromkeys(item.block for one in recordings for item in one.items if isinstance(item, Task)))


def without_cost(world: World, blocks: Collection[str]) -> World:
    """The world with every task of some blocks made free; ProgramError, with those there are: it has no such block."""
    if not blocks:
        return world
    there = blocks_of(world)
    for block in blocks:
        if block not in there:
            hint = did_you_mean(block, there)
            raise ProgramError(f"free: no block '{block}' in this program{hint}; there are {', '.join(there)}")
    freeing = _Freeing(blocks)
    return World([freeing.program(program) for program in world.programs], world.groups)


class _Freeing:
    """Programs with some blocks made free; what was one object before is one afterwards."""

    def __init__(self, blocks: Collection[str]) -> None:
        self._blocks = blocks
        self._programs: dict[int, Program] = {}  # by identity, as the others
        self._recordings: dict[int, Program] = {}
        self._works: dict[int, tuple[Launched, Launched]] = {}

    def program(self, program: Program) -> Program:
        """A recording, or a variant of one."""
        if id(program) not in self._programs:
            if id(program.items) not in self._recordings:
                items = [self._item(item) for item in program.items]
                self._recordings[id(program.items)] = replace(program, items=items, own={}, _exchanges=None)
            known = self._recordings[id(program.items)]
            if program.own:
                free = {item.index for item in known.items if isinstance(item, Task) and item.block in self._blocks}
                known = known.with_own({index: self._work(work) if index in free else work  # type: ignore[misc]
                                        for index, work in program.own.items()})
            self._programs[id(program)] = known
        return self._programs[id(program)]

    def _item(self, item: Task | HostWait) -> Task | HostWait:
        if isinstance(item, HostWait) or item.block not in self._blocks:
            return item
        return replace(item, work=self._work(item.work))

    def _work(self, work: Launched) -> Launched:
        """The free one that stands for it."""
        if id(work) not in self._works:
            self._works[id(work)] = work, _free(work)
        return self._works[id(work)][1]


def _free(work: Launched) -> Launched:
    if isinstance(work, Work):
        return Work(FREE, work.kind, calls=work.calls)
    if isinstance(work, Prefetch):
        return replace(work, size_bytes=0.0, kept_bytes=work.kept_bytes or work.size_bytes)
    if isinstance(work, Flag):
        return replace(work, cores=())
    return replace(work, via=FREE, bytes_per_pair=0, sizes=(), algorithm="direct", sent_bytes=0, received_bytes=0,
                   rows=0, cores=())
