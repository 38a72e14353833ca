"""Which data-parallel group of which engine a request goes to: the service's router, asked about the groups that it
knows to be there.

A router knows of an engine that is lost once that was noticed (`failures.py`); until then it is as good as any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simulator import np
from simulator.serving.board import Board
from simulator.serving.engine import Engine
from simulator.serving.routers import ROUTERS, Engines
from simulator.serving.sequences import Sequence
from simulator.serving.settings import Role


class Routing:
    """name: of the router. boards: of the groups of each role, in the order of `engines`."""

    def __init__(self, name: str, seed: int, engines: Iterable[Engine], boards: Mapping[str, Board]) -> None:
        self._name, self._seed, self._boards = name, seed, boards
        self._all = {role: [(engine, group) for engine in engines if engine.role == role
                            for group in range(len(engine.groups))] for role in boards}  # fmt: skip
        self._known = dict(self._all)
        self._places: dict[str, np.Array | slice] = {role: slice(None) for role in boards}

    def without(self, gone: set[tuple[str, int]]) -> None:
        """From now on nothing goes to these groups, each (name of its engine, number); to all others it does."""
        for role, targets in self._all.items():
            places = [place for place, (engine, group) in enumerate(targets) if (engine.name, group) not in gone]
            self._known[role] = [targets[place] for place in places]
            self._places[role] = np.array(places, np.int64) if len(places) < len(targets) else slice(None)

    def is_there(self, role: Role) -> bool:
        """Whether any group is left."""
        return bool(self._known[role])

    def chosen(self, one: Sequence, role: Role) -> tuple[Engine, int]:
        """For a request that comes now; some group is left."""
        targets = self._known[role]
        if len(targets) == 1:
            return targets[0]
        if self._name == "round_robin":
            return targets[one.request % len(targets)]
        caches = [engine.groups[group].cache for engine, group in targets]
        board, here = self._boards[role], self._places[role]
        cached, free = board.cached_now() + board.begun, board.blocks - board.used_now()
        view = Engines(board.waiting[here], board.running[here], board.queued_tokens[here], cached[here], free[here],
                       lambda number: caches[number].hit_blocks(one.hashes), one.prompt, board.block_tokens,
                       self._seed)  # fmt: skip
        return targets[ROUTERS[self._name](one.request, view)]
