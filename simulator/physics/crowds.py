"""Which flows of a network are moved together as a crowd, and when that pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.physics.flow import Capacity, Flow

if TYPE_CHECKING:
    from simulator.physics.crowd import Crowd

MANY = 96  # flows looked at and solved in one instant, at least
_FEW = 64  # flows left: then the network moves them better one by one
_CHANGES = 8  # capacities on which a flow came or went, and flows that came, at most: the flows end one by one
_TOIL = 4000  # flows looked at and solved in such instants before it pays to work out levels
_FLOWS_PER_CAPACITY = 4  # at least
_MOST_CAPACITIES = 2000
_LATEST_PS = 2**61  # a month: numpy's integers end some time


class Crowds:
    """The crowds in flight. Costs nothing as long as there is none."""

    __slots__ = ("_patience", "_toil", "here")

    def __init__(self) -> None:
        self.here: list[Crowd] = []
        self._toil = 0
        self._patience = _TOIL

    def consider(self, flow: Flow, effort: int, changes: int, now_ps: int) -> None:
        """So much was done for so few changes: perhaps this flow and all who share with it become a crowd."""
        if changes > _CHANGES:
            return
        self._toil += effort
        if self._toil < self._patience:
            return
        self._toil = 0
        self._patience *= 2  # unless it lasts
        component, capacities = _component(flow)
        dense = _FLOWS_PER_CAPACITY * len(capacities) <= len(component) and len(capacities) <= _MOST_CAPACITIES
        if dense and max(one.finish_ps for one in component) < _LATEST_PS:
            from simulator.physics.crowd import Crowd  # numpy is imported only where it is needed

            self.here.append(Crowd(list(component), now_ps))

    def small(self) -> list[Crowd]:
        """Those that have lasted until they are not worth it any more."""
        small = [crowd for crowd in self.here if len(crowd) < _FEW]
        if small:
            self._patience = _TOIL
        return small


def _component(flow: Flow) -> tuple[dict[Flow, None], dict[Capacity, None]]:
    """All flows that share with this one, directly or through others, and where."""
    found = {flow: None}
    capacities: dict[Capacity, None] = {}
    front = [flow]
    while front:
        for capacity, _ in front.pop().pulls:
            if capacity not in capacities:
                capacities[capacity] = None
                front += [other for other in capacity.flows if other not in found]
                found |= dict.fromkeys(capacity.flows)
    return found, capacities
