"""Requests on their way from an engine that prefills to one that decodes.

A place is looked for where a request decodes, as soon as its prompt is begun (layer by layer) or once it is computed;
the blocks where it was prefilled are held until they were read. All layers but the last come first, those that are
computed and those that will be; the last one once the prompt is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from simulator.serving.engine import Engine
from simulator.serving.sequences import Sequence
from simulator.serving.transfers import Transfers


@dataclass(eq=False)
class Move:
    """Of a request. one, other: what it is where it is prefilled, and where it decodes. moved: layers but the last;
    computed: all of its prompt."""

    source: Engine
    one: Sequence
    other: Sequence
    target: Engine | None = None
    moved: bool = False
    computed: bool = False


class Moves:
    """transfers: between groups, each (number of its engine, of the group). layers: of the model; beside: tokens that
    take as many bytes as what moves with a prompt beside its tokens. send: a request looks for a place where it
    decodes; come: its keys and values are there. Bytes that are under way to or from an engine that is lost still cross
    the links, and are waited for by none."""

    def __init__(self, transfers: Transfers, numbers: dict[str, int], layers: int, beside: float,
                 send: Callable[[Sequence], None], come: Callable[[int], None]) -> None:  # fmt: skip
        self._transfers, self._numbers, self._layers, self._beside = transfers, numbers, layers, beside
        self._send, self._told = send, come
        self._under_way: dict[int, Move] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, request: int) -> bool:
        return request in self._under_way

    def begin(self, engine: Engine, one: Sequence, output: int) -> None:
        """A request that is, or will be, prefilled here, and has so many tokens in the end, looks for a place."""
        other = Sequence(one.request, one.input, output, [], prompt=one.prompt, emitted=one.prompt - one.input + 1,
                         computed=one.prompt, priority=one.priority)  # fmt: skip
        self._under_way[one.request] = Move(engine, one, other)
        self._send(other)

    def fetch(self, engine: Engine, other: Sequence) -> None:
        """There is room where it decodes: all layers but the last come."""
        move = self._under_way[other.request]
        move.target = engine
        if move.source.down:
            return
        self._move(move, 1.0 - 1.0 / self._layers, self._moved)

    def computed(self, request: int) -> None:
        """All of its prompt is."""
        move = self._under_way[request]
        move.computed = True
        if move.moved:
            self._last_layer(move)

    # --- where an engine is lost ------------------------------------------------------------------------------------

    def source_lost(self, engine: Engine) -> list[tuple[Sequence, int]]:
        """Blocks that were held here are gone: prompts that were computed, each with the tokens cached. Nothing of what
        is under way from here will come."""
        found = []
        for request, move in list(self._under_way.items()):
            if move.source is engine:
                if move.computed:
                    engine.groups[move.one.group].finish(move.one)
                    move.one.gone = True
                    found.append((move.one, move.one.prompt))
                self._under_way[request] = Move(engine, move.one, move.other, move.target)
        return found

    def target_lost(self, request: int) -> None:
        """Nothing of what is under way comes; what was computed is still where it was."""
        move = self._under_way[request]
        self._under_way[request] = Move(move.source, move.one, move.other, computed=move.computed)

    def again(self, request: int) -> Callable[[], None]:
        """What looks for another place, where its keys and values are still there then."""
        move = self._under_way[request]

        def look() -> None:
            if self._under_way.get(request) is move and not move.source.down:
                self.begin(move.source, move.one, move.other.output)
                self._under_way[request].computed = move.computed

        return look

    def given_up(self, request: int) -> tuple[Engine, Sequence]:
        """It is not moved any more: where it is prefilled, or was, and what it is there."""
        move = self._under_way.pop(request)
        return move.source, move.one

    def drop(self, request: int) -> Sequence:
        """It is not moved any more: what it is where it was to decode."""
        return self._under_way.pop(request).other

    def _moved(self, move: Move) -> None:
        if self._under_way.get(move.one.request) is not move:
            return
        move.moved = True
        if move.computed:
            self._last_layer(move)

    def _last_layer(self, move: Move) -> None:
        self._move(move, 1.0 / self._layers, self._come)

    def _move(self, move: Move, share: float, done: Callable[[Move], None]) -> None:
        assert move.target is not None
        source, target = self._numbers[move.source.name], self._numbers[move.target.name]
        tokens = share * (move.one.prompt + self._beside)
        self._transfers.start((source, move.one.group), (target, move.other.group), tokens, partial(done, move))

    def _come(self, move: Move) -> None:
        """Its keys and values are where it decodes."""
        request = move.one.request
        if self._under_way.get(request) is not move:
            return
        assert move.target is not None
        del self._under_way[request]
        self._told(request)
        move.source.groups[move.one.group].finish(move.one)
        group = move.target.groups[move.other.group]
        group.arrived.append(group.coming.pop(request))
        move.source.wake(move.one.group)
        move.target.wake(move.other.group)
