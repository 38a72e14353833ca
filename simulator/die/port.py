"""Capacities that those who move bytes apart, off the network, may use because all who do fit into them together.

A capacity never slows anybody as long as all that cross it fit at full speed. Whoever would not fit has all of them
join the network, which then shares the capacity out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.physics.flows import Capacity, Flow

if TYPE_CHECKING:
    from simulator.die.mover import Mover

ROOM = 1 - 1e-9  # of a capacity: what is nearer to full is shared out, because ties have rules
_FEW = 8  # more flows of the network than this are not added up, they are taken not to fit


def taken(capacity: Capacity, but: Flow | None = None) -> float:
    """The most bytes/s that flows of the network ever move here, one of them left out; inf if there are many."""
    flows = capacity.flows
    if not flows:
        return 0.0
    if len(flows) > _FEW:
        return float("inf")
    return sum(pull * flow.solo_rate for flow, pull in flows.items() if flow is not but)


class Port:
    """The guard of a capacity beyond HBM and L2: who crosses it apart, and what they move there at most."""

    __slots__ = ("_capacity", "_users")

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._users: dict[Mover, float] = {}

    def __call__(self, flow: Flow) -> None:
        """A flow of the network begins here."""
        if self._users and not self._fits(dict(flow.pulls)[self._capacity] * flow.solo_rate, flow):
            self.clear()

    def take(self, mover: Mover, rate: float) -> bool:
        """Whether a mover fits that moves at most so much; if so it is here until it is released."""
        if (self._users or self._capacity.flows) and not self._fits(rate, None):
            return False
        self._users[mover] = rate
        return True

    def release(self, mover: Mover) -> None:
        """It does not cross this port any more, or not apart."""
        self._users.pop(mover, None)

    def clear(self) -> None:
        """Have everybody join the network."""
        for mover in list(self._users):
            mover.onchip.join()

    def _fits(self, rate: float, flow: Flow | None) -> bool:
        others = sum(self._users.values()) + taken(self._capacity, flow)
        return not others or others + rate <= self._capacity.rate_bytes_per_s * ROOM


def take_ports(mover: Mover) -> bool:
    """Whether it fits into all capacities that it crosses beside HBM and L2; where it does not, the others join."""
    for capacity, rate in mover.stage.ports:
        if capacity.guard is None:
            capacity.guard = Port(capacity)
        port = capacity.guard
        if not isinstance(port, Port):  # it belongs to another die
            return False
        if not port.take(mover, rate):
            port.clear()
            return False
    return True


def release_ports(mover: Mover) -> None:
    """It does not cross them any more, or not apart."""
    for capacity, _ in mover.stage.ports:
        if isinstance(capacity.guard, Port):
            capacity.guard.release(mover)
