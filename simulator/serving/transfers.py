"""Keys and values on their way from where a prompt is prefilled to where it is decoded: flows on the machine's fabric.

Every rank of the group that decodes gets what it will hold, from the rank at the same place of the group that
prefilled, or, where several are at this place, from one after the other: each has a part of every prompt. All
transfers under way share the links that they cross. Engines stand on the fabric one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import inf

from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.physics.clock import Clock, call_later
from simulator.physics.flow import Capacity, Flow
from simulator.physics.flows import Network
from simulator.serving.build import Kind
from simulator.serving.settings import Transfer
from simulator.units import to_ps


class Transfers:
    """settings: as of the service. placed: (kind, number of engines of it) in the order of the engines.

    InputError where machines differ and no rate is given, or one has not as many dies.
    """

    def __init__(self, settings: Transfer, placed: Sequence[tuple[Kind, int]], clock: Clock) -> None:
        self._settings, self._clock, self._network = settings, clock, Network(clock)
        self._firsts: list[tuple[Kind, int]] = []
        ranks = 0
        for kind, count in placed:
            for _ in range(count):
                self._firsts.append((kind, ranks))
                ranks += kind.ranks
        self._fabric = None if settings.rate_gb_s else _fabric([kind for kind, _ in placed], ranks)
        self._capacity = cache(self._new_capacity)
        self._turn = 0

    def start(self, source: tuple[int, int], target: tuple[int, int], tokens: float, done: Callable[[], None]) -> None:
        """So many tokens from a group to another one, each (number of the engine, of the group); done: called at the
        end.
        """
        kind, _ = self._firsts[target[0]]
        size, left = tokens * kind.token_bytes, kind.ranks // kind.groups
        self._turn += 1

        def ended(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        limit = self._settings.rate_gb_s * 1e9 / left if self._settings.rate_gb_s else inf
        for place in range(left):
            here, there = self._rank(source, place, left), self._rank(target, place, left)
            route = self._fabric.route(here, there) if self._fabric else None
            latency_ps = to_ps(self._settings.latency_us / 1e6 + (route.latency_s if route else 0.0))
            if not size:
                call_later(self._clock, latency_ps, ended)
                continue
            loads = [(self._capacity(edge), 1.0) for edge in route.edges] if route else []
            self._network.start(Flow(size, loads, limit), ended, latency_ps)

    def _rank(self, group: tuple[int, int], place: int, of: int) -> int:
        """The rank of a group at a place of so many; in turn where it has several at one place."""
        kind, first = self._firsts[group[0]]
        each = kind.ranks // kind.groups
        return first + group[1] * each + place * each // of + self._turn % max(each // of, 1)

    def _new_capacity(self, edge: tuple[str, str]) -> Capacity:
        assert self._fabric is not None
        return Capacity(" to ".join(edge), self._fabric.link_rate(*edge))


def _fabric(kinds: Sequence[Kind], ranks: int) -> Fabric | None:
    """Of the machine on which all engines stand; none is needed where there is one kind of them."""
    if len(kinds) < 2:
        return None
    machines = {kind.settings.step.machine: kind.settings.step.machine_spec() for kind in kinds}
    if len(machines) > 1:
        raise InputError(f"engines stand on {' and '.join(machines)}: no fabric joins them; give transfer.rate_gb_s")
    return Fabric(next(iter(machines.values())), ranks)
