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
    decodes; come: its keys and values are there."""

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
        self._move(move, 1.0 - 1.0 / self._layers, self._moved)

    def computed(self, request: int) -> None:
        """All of its prompt is."""
        move = self._under_way[request]
        move.computed = True
        if move.moved:
            self._last_layer(move)

    def _moved(self, move: Move) -> None:
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
        assert move.target is not None
        request = move.one.request
        del self._under_way[request]
        self._told(request)
        move.source.groups[move.one.group].finish(move.one)
        group = move.target.groups[move.other.group]
        group.arrived.append(group.coming.pop(request))
        move.source.wake(move.one.group)
        move.target.wake(move.other.group)
