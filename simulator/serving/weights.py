"""Weights of experts on their way from rank to rank of an engine: flows on the links that keys and values cross too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from math import inf

from simulator.errors import InputError
from simulator.physics.flow import Capacity
from simulator.serving.links import Cargo, Links
from simulator.units import to_ps


class Weights:
    """links: of the service; where no fabric joins all engines, those of each engine."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._own: dict[int, Links] = {}

    def send(self, engine: int, flows: Mapping[tuple[int, int], float], share: float,
             done: Callable[[], None]) -> float:
        """Bytes from rank to rank, with a share of every link's rate at most; done: called at the end. Gives the
        seconds that they take if nothing else is on the wire."""
        links, first = self._stands(engine)
        left, most_s = len(flows), 0.0
        busy_s: defaultdict[Capacity, float] = defaultdict(float)

        def ended(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for (here, there), size in flows.items():
            route = links.fabric.route(first + here, first + there)
            crossed = [links.link(edge) for edge in route.edges]
            crossed += [links.capacity(f"{one.name}, of weights", share * one.rate_bytes_per_s) for one in crossed]
            links.start(Cargo(size, [(one, 1.0) for one in crossed], inf, ended, to_ps(route.latency_s)))
            for one in crossed:
                busy_s[one] += size / one.rate_bytes_per_s
                most_s = max(most_s, route.latency_s + busy_s[one])
        return most_s

    def _stands(self, engine: int) -> tuple[Links, int]:
        """On which links an engine is, and its first rank there."""
        try:
            if self._links.fabric:
                return self._links, self._links.ranks_of(engine, 0).start
        except InputError:  # on several machines
            if engine not in self._own:
                self._own[engine] = Links([(self._links.kind(engine), 1)], self._links.clock)
        return self._own[engine], 0
