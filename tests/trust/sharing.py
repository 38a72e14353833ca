"""Bytes that share capacities, to fifty digits: progressive filling of everything whenever anything changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from math import inf
from typing import TypeAlias

Key: TypeAlias = tuple
DIGITS = 50
PS_PER_S = Decimal(10**12)
FORGIVEN_PS = Decimal(2) ** -7
"""What rounding up forgives, as `units.to_ps` does."""


def rounded_up_ps(seconds: Decimal) -> int:
    """A duration on the clock."""
    return max(0, int((seconds * PS_PER_S - FORGIVEN_PS).to_integral_value(ROUND_CEILING)))


@dataclass(eq=False)
class Moving:
    """Bytes of a kernel or a message. loads: bytes on each capacity per byte of its own. number: of its start.

    moving: whether its latency is over. end_ps: when its last byte has come as things stand, None: never.
    """

    number: int
    left: Decimal
    loads: dict[Key, Decimal]
    limit: float
    weight: Decimal
    ended: Callable[[], None]
    moving: bool = False
    rate: Decimal = Decimal(0)
    end_ps: int | None = None


@dataclass
class Shared:
    """All that is in flight. rates: of every capacity, in bytes/s."""

    rate_of: Callable[[Key], float]
    shares: dict[Key, Decimal] = field(default_factory=dict)
    here: list[Moving] = field(default_factory=list)
    changed: bool = False
    _since_ps: int = 0
    _rates: dict[Key, Decimal] = field(default_factory=dict)

    def take_ended(self, now_ps: int) -> list[Moving]:
        """What ends now, in the order of its start."""
        ended = sorted((one for one in self.here if one.end_ps == now_ps), key=lambda one: one.number)
        if ended:
            self.changed = True
            self._pass(now_ps)
            self.here = [one for one in self.here if one not in ended]
        return ended

    def begin(self, one: Moving) -> None:
        """Its first byte moves; what it moves is solved at the end of this instant."""
        one.moving, self.changed = True, True
        self.here.append(one)

    def solve(self, now_ps: int) -> None:
        """New rates and ends of everything."""
        self._pass(now_ps)
        self.changed = False
        _fill(self.here, self._rate)
        for one in self.here:
            one.end_ps = now_ps + rounded_up_ps(one.left / one.rate) if one.rate else None

    def _pass(self, now_ps: int) -> None:
        """What has moved until now."""
        seconds = (now_ps - self._since_ps) / PS_PER_S
        for one in self.here:
            one.left -= one.rate * seconds
        self._since_ps = now_ps

    def _rate(self, key: Key) -> Decimal:
        if key not in self._rates:
            self._rates[key] = Decimal(self.rate_of(key))
        return self._rates[key] * self.shares.get(key, 1)


def _fill(here: list[Moving], rate_of: Callable[[Key], Decimal]) -> None:
    """All levels rise together; who meets a full capacity, or its own limit, stops."""
    rising = {one: Decimal(one.limit) / one.weight for one in here}
    room = {key: rate_of(key) for one in here for key, load in one.loads.items() if load}
    pull: dict[Key, Decimal] = dict.fromkeys(room, Decimal(0))
    crossing: dict[Key, list[Moving]] = {key: [] for key in room}
    for one in here:
        for key, load in one.loads.items():
            if load:
                pull[key] += load * one.weight
                crossing[key].append(one)
    while rising:
        full = {key: max(room[key], Decimal(0)) / pull[key] for key in room if crossing[key]}
        level = min([*full.values(), *rising.values()])
        stopped = [one for key, at in full.items() if at == level for one in crossing[key]]
        stopped += [one for one, at in rising.items() if at == level]
        assert level < inf, "nothing bounds it"
        for one in dict.fromkeys(stopped):
            del rising[one]
            one.rate = level * one.weight
            for key, load in one.loads.items():
                if load:
                    room[key] -= load * one.rate
                    pull[key] -= load * one.weight
                    crossing[key].remove(one)
