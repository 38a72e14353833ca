"""Items that go through stages in order, each stage a process of its own, as many at a time as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import simpy

from simulator.live.thread import HostProcess

Stage = Callable[[Any, Any], HostProcess]
"""A process with an item and the row of the stage before (None: it is the first one); returns its own row."""


class Stages:
    """A pipeline of stages. An item has room from the first stage on until `leave` says that it needs it no more."""

    def __init__(self, env: Any, items: Sequence[Any], stages: Sequence[Stage], room: int) -> None:
        self._room = simpy.Store(env)
        self._room.items.extend([None] * room)
        waiting = simpy.Store(env)
        waiting.items.extend((item, None) for item in items)
        for stage in stages:
            given = simpy.Store(env)
            env.process(self._run(stage, len(items), waiting, given, enters=stage is stages[0]))
            waiting = given
        self._through = waiting

    def through(self) -> simpy.Event:
        """The event that the next item is through all stages: the item, and its last row."""
        return self._through.get()

    def leave(self) -> None:
        """One item has gone, and another may enter."""
        self._room.put(None)

    def _run(self, stage: Stage, count: int, waiting: simpy.Store, given: simpy.Store, enters: bool) -> HostProcess:
        for _ in range(count):
            if enters:
                yield self._room.get()
            item, row = yield waiting.get()
            row = yield from stage(item, row)
            given.put((item, row))
