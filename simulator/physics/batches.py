"""Which flows of a network are moved together by the compiled solver, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter
from typing import TypeAlias

from simulator.physics.batch import Batch, Reached
from simulator.physics.clock import Clock
from simulator.physics.flow import NEVER, Capacity, Flow
from simulator.physics.ranked import library

Move: TypeAlias = "Callable[[Iterable[Flow]], None]"

MANY = 48  # flows that share with each other: from then on they are a batch
FEW = 16  # flows left of a batch: then the network moves them one by one


class Batches:
    """The batches of a network that are in flight: `here`.

    leave, come_back: how the network gives up flows, and takes back those that are on their capacities again; begin:
    how it lets those begin that have not yet. displace: how it keeps flows off a capacity whose ends it foresaw before
    they begin.
    """

    __slots__ = ("_begin", "_changed", "_come_back", "_displace", "_ends", "_entering", "_env", "_leave", "_serials",
                 "here")  # fmt: skip

    def __init__(self, env: Clock, leave: Move, come_back: Move, begin: Move,
                 displace: Callable[[Capacity], None]) -> None:
        self._env, self._leave, self._come_back, self._begin, self._displace = env, leave, come_back, begin, displace
        self._entering: dict[Batch, list[Flow]] = {}  # those that begin in a batch at this instant
        self.here: dict[Batch, int] = {}  # and the order in which they were made
        self._changed: list[Batch] = []  # those whose next end must be looked at
        self._ends: list[tuple[int, int, Batch]] = []  # a heap of next ends; one that has moved has another entry
        self._serials = count()

    def gather(self, flows: list[Flow]) -> list[Flow]:
        """Make batches of those that share with many; the others of these that are still to be solved."""
        if len(flows) < MANY or library() is None:
            return flows
        seen: dict[Flow, None] = {}
        rest = []
        for flow in flows:
            if flow in seen:
                continue
            component = self._component(flow)
            seen |= component
            if len(component) >= MANY:
                self._make(component)
            else:
                rest += [one for one in component if one.chosen]
        return rest

    def _make(self, flows: Iterable[Flow]) -> None:
        self.here[batch := Batch(self._env.now_ps, self._changed)] = next(self._serials)
        self._hand_over(flows, batch)

    def _hand_over(self, flows: Iterable[Flow], batch: Batch) -> None:
        flows = sorted(flows, key=attrgetter("serial"))
        self._leave(flows)
        batch.add(flows, self._env.now_ps)

    def enter(self, flow: Flow) -> bool:
        """Let a flow begin in the batch that moves all flows on its capacities; whether there is one."""
        batch = flow.pulls[0][0].batch if flow.pulls else None
        if batch is None or any(capacity.batch is not batch for capacity, _ in flow.pulls):
            return False
        self._entering.setdefault(batch, []).append(flow)
        return True

    def join(self, flows: list[Flow]) -> list[Flow]:
        """Hand over those that entered one, or begin where one is, with all that share with them; the others."""
        entering, self._entering = self._entering, {}
        for batch, entered in entering.items():
            batch.add(entered, self._env.now_ps)
        for flow in flows:
            if not flow.chosen:
                continue  # handed over with one before
            if met := _batches_of(component := self._component(flow)):
                while met[1:]:  # what comes back may share with other batches
                    for other in met[1:]:
                        self.dissolve(other)
                    met = _batches_of(component := self._component(flow))
                self._hand_over(component, met[0])
        return [flow for flow in flows if flow.chosen]

    def _component(self, flow: Flow) -> dict[Flow, None]:
        """All flows in flight that share with this one, directly or through others."""
        found = {flow: None}
        seen: set[Capacity] = set()
        front = [flow]
        while front:
            for capacity, _ in front.pop().pulls:
                if capacity not in seen:
                    seen.add(capacity)
                    self._displace(capacity)
                    front += [other for other in capacity.flows if other not in found]
                    found |= dict.fromkeys(capacity.flows)
        return found

    def dissolve(self, batch: Batch) -> None:
        """Have the flows of a batch back."""
        del self.here[batch]
        self._come_back(batch.dissolve(self._env.now_ps))
        self._begin(self._entering.pop(batch, ()))

    def _renew(self, batch: Batch) -> None:
        """Make a batch anew."""
        del self.here[batch]
        self._make(list(batch.dissolve(self._env.now_ps)))
        self._begin(self._entering.pop(batch, ()))

    def dissolve_all(self) -> None:
        """Have all flows back."""
        for batch in list(self.here):
            self.dissolve(batch)

    def next_ps(self) -> int:
        """When the first flow of all batches ends; NEVER if none does.

        Those with few flows left go back to the network, those that mostly hold what has ended are made anew.
        """
        while self._changed:
            batch = self._changed.pop()
            if batch not in self.here:
                continue
            if len(batch) < FEW:
                self.dissolve(batch)
            elif batch.worn:
                self._renew(batch)
            elif (at_ps := batch.next_ps()) != NEVER:
                heappush(self._ends, (at_ps, self.here[batch], batch))
        ends = self._ends
        while ends and (ends[0][2] not in self.here or ends[0][2].next_ps() != ends[0][0]):
            heappop(ends)
        return ends[0][0] if ends else NEVER

    def end_now(self) -> Iterator[tuple[list[Flow], list[Reached]]]:
        """Let those go on of which a flow ends now, no further than this instant: flows that have ended, and what is
        reached (see `Batch.run`)."""
        now_ps = self._env.now_ps
        while self.next_ps() == now_ps:
            _, ended, reached = heappop(self._ends)[2].run(now_ps + 1)
            yield ended, reached

    def run(self, outside_ps: Callable[[], int]) -> tuple[int, list[Flow], list[Reached]]:
        """Let the one with the next end go on from end to end (see `Batch.run`), before another one has an end or
        anything happens outside, at `outside_ps()`: what one brings about may concern the others."""
        at_ps = self.next_ps()
        if at_ps == NEVER or at_ps >= outside_ps():
            return NEVER, [], []
        batch = heappop(self._ends)[2]
        other_ps = self.next_ps()
        until_ps = outside_ps()
        return batch.run(until_ps if other_ps == NEVER else min(until_ps, other_ps))


def _batches_of(flows: Iterable[Flow]) -> list[Batch]:
    """The batches whose capacities these cross, the largest first."""
    met = dict.fromkeys(capacity.batch for flow in flows for capacity, _ in flow.pulls if capacity.batch is not None)
    return sorted(met, key=len, reverse=True)
