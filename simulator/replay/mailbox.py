"""One-sided exchanges at run time: puts leave, bytes land, collects open (see `one_sided`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from math import inf
from typing import TypeVar

import simpy

from simulator.collective.lowering import Lowering
from simulator.collective.one_sided import IN, OUT, costs_of, keys_of, latency_s, own_transfer, startup_s
from simulator.collective.transfer import Key, Transfer
from simulator.die.mover import Mover
from simulator.die.npu import Npu
from simulator.die.shape import Shape, Stage, stage_of
from simulator.physics.clock import call_later
from simulator.physics.cores import Need
from simulator.physics.flows import Capacity, Flow
from simulator.program.task import Collective
from simulator.units import to_ps

_WORDS = "engine", "latency"  # what limits a put that no capacity does: its engine's rate, its start-up
RECENT = 8  # ends of a rank's puts that are remembered: one end of many is the same in every layer
_WHOLE = 1 << 40  # bytes of the put that stands for those of all sizes: what they load, they load in proportion
Made = TypeVar("Made")


@dataclass(slots=True, eq=False)
class Mailbox:
    """One exchange: whose puts are expected, whose have left, who still drains, who is there to collect.

    key: what it is known by. collected: how many ranks have everything that is meant for them.
    """

    key: object
    expected: frozenset[int]
    latency_ps: int
    landed: set[int] = field(default_factory=set)
    draining: set[int] = field(default_factory=set)
    waiting: dict[int, tuple[Npu, int]] = field(default_factory=dict)
    collected: int = 0

    def absent(self) -> list[int]:
        """Ranks whose bytes have not left yet."""
        return sorted(self.expected - self.landed)

    def ready(self, rank: int) -> bool:
        """Whether a rank is there to collect and everything for it has come."""
        return rank in self.waiting and rank not in self.draining and len(self.landed) == len(self.expected)


class Mailboxes:
    """The one-sided exchanges of a run that are under way. capacity: finds or makes the capacity of a key."""

    def __init__(self, env: simpy.Environment, capacity: Callable[[Key], Capacity], lowering: Lowering) -> None:
        self.env, self.capacity, self.lowering = env, capacity, lowering
        self._boxes: dict[object, Mailbox] = {}
        self._idle: dict[int, list[Mover]] = {}  # by rank
        self._shapes: dict[int, dict[tuple, Shape]] = {}  # by rank
        self._stages: dict[int, dict[tuple, Stage]] = {}  # by rank: of _WHOLE bytes
        self._costs = cache(lambda via: costs_of(lowering.engines[via]))
        self._startup_ps = cache(lambda via, members: to_ps(startup_s(lowering.engines[via], members)))

    def own(self, via: str, members: tuple[int, ...], rank: int, side: int) -> Transfer | None:
        """What leaves a rank or what arrives at it when _WHOLE bytes are put, where ranks are not folded."""
        keys = keys_of(self.lowering.fabric, members, rank)
        return own_transfer(keys[side], self._costs(via), len(members) - 1, rank, _WHOLE)

    def __len__(self) -> int:
        return len(self._boxes)

    def box(self, key: object, expected: frozenset[int], members: tuple[int, ...]) -> Mailbox:
        """The mailbox of one exchange, made when it is first asked for and kept until all have collected."""
        if key not in self._boxes:
            self._boxes[key] = Mailbox(key, expected, to_ps(latency_s(self.lowering.fabric, members)))
        return self._boxes[key]

    def collect(self, box: Mailbox, npu: Npu, index: int) -> None:
        """A rank is there to collect, and holds its cores."""
        box.waiting[npu.rank] = (npu, index)
        self._open(box, npu.rank)

    def put(
        self, box: Mailbox, npu: Npu, index: int, collective: Collective, members: int, alike: object,
        own: Callable[[int], Transfer | None],
    ) -> None:  # fmt: skip
        """A rank's own bytes leave, and what is meant for it starts to drain, on the cores that it holds.

        own: the transfer of each side for _WHOLE bytes; the same for all puts of this rank that are `alike`.
        """
        need, start_ps = npu.steps[index].need, npu.env._now
        shape = partial(self._shape, npu, need, collective.via, members, alike, own)
        leaving = shape(OUT, collective.sent_bytes)

        def left(bound: str) -> None:
            npu.finish(index, start_ps, leaving.solo_ps, bound, need, 1)
            self._landed(box, npu.rank)

        if collective.received_bytes and members > 1:
            box.draining.add(npu.rank)
            self._send(npu, shape(IN, collective.received_bytes), lambda _: self._drained(box, npu.rank))
        self._send(npu, leaving, left)

    def _send(self, npu: Npu, shape: Shape, ended: Callable[[str], object]) -> None:
        """Move one end's bytes; who moved those of an earlier one does it."""
        idle = self._idle.setdefault(npu.rank, [])
        mover = idle.pop() if idle else Mover(npu.onchip, ended)

        def rest(bound: str) -> None:
            idle.append(mover)
            ended(bound)

        mover.ended = rest
        mover.start(shape, npu.env._now)

    def _shape(
        self, npu: Npu, need: Need, via: str, members: int, alike: object, own: Callable[[int], Transfer | None],
        side: int, size: int,
    ) -> Shape:  # fmt: skip
        """One end of a put on a die, which is remembered for some time: its start-up, then its bytes, if any."""
        def make() -> Shape:
            startup_ps = self._startup_ps(via, members) if members > 1 else 0
            if not size or members == 1:
                return Shape((), startup_ps, startup_ps, startup_ps, *_WORDS)
            limit = self._rate(via, need, size / (members - 1)) if side == OUT else inf
            whole = partial(self._stage, npu, own, side, limit, startup_ps)
            stages = self._stages.setdefault(npu.rank, {})
            stage = _recent(stages, (alike, via, need, side, limit), whole).of_size(size)
            alone_ps = startup_ps + stage.length_ps
            return Shape((stage,), startup_ps, alone_ps, alone_ps, *_WORDS)

        return _recent(self._shapes.setdefault(npu.rank, {}), (alike, via, need, side, size), make)

    def _rate(self, via: str, need: Need, per_peer: float) -> float:
        """Bytes/s of an engine on the cores that it got."""
        engine = self.lowering.engines[via]
        cores = sum(count.count for count in engine.cores.values())
        share = sum(count for _, count in need) / cores if cores else 1.0
        return engine.rate_bytes_per_s("all_to_all", per_peer) * share

    def _stage(
        self, npu: Npu, own: Callable[[int], Transfer | None], side: int, limit: float, startup_ps: int
    ) -> Stage:
        """One end of a put of _WHOLE bytes."""
        transfer = own(side)
        assert transfer is not None  # who is not alone has ports
        loads = [(self.capacity(key), load / _WHOLE) for key, load in transfer.loads]
        return stage_of(startup_ps, Flow(_WHOLE, loads, limit, transfer.weight), npu.onchip.hbm, npu.onchip.l2)

    def _landed(self, box: Mailbox, rank: int) -> None:
        box.landed.add(rank)
        if len(box.landed) == len(box.expected):
            for waiting in list(box.waiting):
                self._open(box, waiting)

    def _drained(self, box: Mailbox, rank: int) -> None:
        box.draining.discard(rank)
        self._open(box, rank)

    def _open(self, box: Mailbox, rank: int) -> None:
        """Once everything for a rank that collects is there, it goes on when the last message has crossed."""
        if not box.ready(rank):
            return
        npu, index = box.waiting.pop(rank)
        box.collected += 1
        if box.collected == len(box.expected):
            del self._boxes[box.key]
        start_ps, need = int(self.env.now), npu.tape.steps[index].need
        call_later(
            self.env,
            box.latency_ps,
            lambda _: npu.finish(index, start_ps, box.latency_ps, "latency", need, 1),
        )


def _recent(known: dict[tuple, Made], key: tuple, make: Callable[[], Made]) -> Made:
    """What was made for this key, if that is not long ago."""
    found = known.pop(key, None)
    if found is None:
        found = make()
        if len(known) == RECENT:
            del known[next(iter(known))]
    known[key] = found
    return found
