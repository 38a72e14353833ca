"""Keys and values on their way from where a prompt is prefilled to where it is decoded: flows on the machine's fabric.

Every rank of the group that decodes gets what it will hold, from the rank at the same place of the group that
prefilled, or, where several are at this place, from one after the other: each has a part of every prompt. All
transfers under way share the links that they cross.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from simulator.errors import InputError
from simulator.physics.clock import call_later
from simulator.serving.links import Cargo, Links
from simulator.serving.settings import Transfer
from simulator.units import to_ps


class Transfers:
    """settings: as of the service; apart: whether there are engines that prefill and others that decode.

    InputError where machines differ and no rate is given, or one has not as many dies.
    """

    def __init__(self, settings: Transfer, links: Links, apart: bool) -> None:
        self._settings, self._links = settings, links
        self._turn = 0
        try:
            self._fabric = links.fabric if apart and not settings.rate_gb_s else None
        except InputError as error:
            raise InputError(f"{error}; give transfer.rate_gb_s") from None

    def start(self, source: tuple[int, int], target: tuple[int, int], tokens: float, done: Callable[[], None]) -> None:
        """So many tokens from a group to another one, each (number of the engine, of the group); done: called at the
        end.
        """
        kind = self._links.kind(target[0])
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
                call_later(self._links.clock, latency_ps, ended)
                continue
            loads = [(self._links.link(edge), 1.0) for edge in route.edges] if route else []
            self._links.start(Cargo(size, loads, limit, ended, latency_ps))

    def _rank(self, group: tuple[int, int], place: int, of: int) -> int:
        """The rank of a group at a place of so many; in turn where it has several at one place."""
        ranks = self._links.ranks_of(*group)
        return ranks[place * len(ranks) // of + self._turn % max(len(ranks) // of, 1)]
