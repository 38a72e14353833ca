"""What moves through the L2 and HBM of one die, and what of it needs the network.

Bytes move in *stages*, one after the other: a wait, then a flow. As long as all that a die has to move fits into its
HBM and L2 at full speed, nobody slows anybody, every end is known when it starts, and a kernel costs a single event.
Where it does not fit the die is *crowded*: whenever bytes begin or end, the die shares its two capacities out by
max-min fairness. All this is *apart*, off the network. A flow of the network (a collective) that fits beside what runs
apart leaves it alone; if it does not fit, those that run apart join the network where they are (not begun, or so far)
and are shared out there. The result is the same to the picosecond as with everything on the network.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from simulator.die.port import ROOM, release_ports, take_ports, taken
from simulator.die.shape import Stage
from simulator.physics.clock import NEVER, Alarm
from simulator.physics.flows import Capacity, Flow, Network
from simulator.physics.two import OWN, share_two

if TYPE_CHECKING:
    from simulator.die.mover import Mover


class OnChip:
    """The memory of one die. apart: those that move bytes off the network; crowded: they slow each other."""

    __slots__ = ("_clash", "_flows", "_rates", "_room", "_watchers", "apart", "crowded", "env", "hbm", "l2", "network")

    def __init__(self, network: Network, hbm: Capacity, l2: Capacity) -> None:
        self.network, self.hbm, self.l2 = network, hbm, l2
        self.env: Any = network.env
        hbm.guard = l2.guard = self._make_room
        self.apart: list[Mover] = []
        self.crowded = False
        self._clash = Alarm(self.env, self._crowd)  # when those that run apart begin to slow each other
        self._watchers = network.watchers  # who watches the network wants to see everything there
        self._flows: dict[Stage, Flow] = {}
        self._rates = hbm.rate_bytes_per_s, l2.rate_bytes_per_s
        self._room = self._rates[0] * ROOM, self._rates[1] * ROOM

    def flow(self, stage: Stage) -> Flow:
        """A flow for a stage on this die."""
        if stage.ports:
            return stage.flow.again()
        found = self._flows.get(stage)
        if found is None:
            like = stage.flow
            loads = [(at, load) for at, (_, load) in zip((self.l2, self.hbm), like.loads, strict=False)]
            found = self._flows[stage] = Flow(like.size_bytes, loads, like.limit_bytes_per_s)
        return found.again()

    def admit(self, mover: Mover) -> None:
        """Somebody is going to move bytes: apart if that fits, or if nobody of the network is here; if not, there."""
        apart = self.apart
        on_network = self.hbm.flows or self.l2.flows
        if self._watchers or (mover.stage.ports and not take_ports(mover)):
            self._join_with(mover)
        elif self.crowded:
            apart.append(mover)
            self.settle()
        elif not on_network and (not apart or self._fits_anyhow(mover)):
            apart.append(mover)
            mover.alarm.set(mover.end_ps)
        else:
            self._admit_beside(mover, bool(on_network))
        if mover.over:  # it had nothing to wait for
            mover.alarm.set(self.env._now)

    def _fits_anyhow(self, mover: Mover) -> bool:
        """Whether all would fit even if each always moved what it ever moves at most."""
        shape = mover.shape
        hbm, l2 = shape.hbm_rate, shape.l2_rate
        for other in self.apart:
            shape = other.shape
            hbm += shape.hbm_rate
            l2 += shape.l2_rate
        return hbm <= self._room[0] and l2 <= self._room[1]

    def _admit_beside(self, mover: Mover, on_network: bool) -> None:
        """Somebody comes to others that are at ease."""
        clash_ps = self._clash_ps(mover, self.apart)
        if on_network and clash_ps != NEVER:
            self._join_with(mover)
            return
        self.apart.append(mover)
        if NEVER < clash_ps <= self.env._now:
            self._crowd()
            return
        if clash_ps == NEVER:
            mover.alarm.set(mover.end_ps)
        elif not NEVER < self._clash.at_ps <= clash_ps:  # it comes before any end
            self._clash.set(clash_ps)

    def _crowd(self) -> None:
        """Those that run apart slow each other from now on."""
        self.crowded = True
        self.settle()

    def end(self, mover: Mover) -> bool:
        """At ease: all that it moves is moved. False if others end in the same instant: then all have been told so, in
        order of start."""
        now_ps, apart = self.env._now, self.apart
        for other in apart:
            if other.alarm.at_ps == now_ps:
                break
        else:
            apart.remove(mover)
            if mover.stage.ports:
                release_ports(mover)
            return True
        over = [one for one in self.apart if one is mover or one.alarm.at_ps == now_ps]
        for one in over:
            one.catch_up(now_ps)
            self.leave(one)
        self._finish(over)
        return False

    def turn(self) -> None:
        """Crowded: somebody's bytes begin or end."""
        self._finish(self.settle())

    def _finish(self, over: list[Mover]) -> None:
        over.sort(key=attrgetter("at_ps"))
        for one in over:
            one.alarm.stop()
        for one in over:
            one.finish()

    def leave(self, mover: Mover) -> None:
        """It moves nothing any more, or not apart."""
        self.apart.remove(mover)
        if mover.stage.ports:
            release_ports(mover)

    def _join_with(self, mover: Mover) -> None:
        self.apart.append(mover)
        self.join()

    def join(self) -> None:
        """Put all that runs apart on the network, where it is."""
        if self.crowded:
            self.settle()  # without those that end in this instant
        now_ps, self.crowded = self.env._now, False
        self._clash.stop()
        joining = self.apart.copy()
        for mover in joining:
            mover.catch_up(now_ps)
            self.leave(mover)
        for mover in joining:  # only now: the first one's bytes may call for room at once
            if not mover.over:
                mover.join(now_ps)

    def settle(self) -> list[Mover]:
        """Share HBM and L2 out among those whose bytes move now; at ease again if all fits from now on.

        Returns those whose bytes are all moved.
        """
        now_ps: int = self.env._now
        moving: list[Mover] = []
        over: list[Mover] = []
        for mover in self.apart:
            if mover.turn_ps() > now_ps:
                if mover.flow is not None:
                    moving.append(mover)
                continue
            mover.catch_up(now_ps)
            if mover.over:
                over.append(mover)
            elif mover.begun(now_ps):
                moving.append(mover)
        for mover in over:
            self.leave(mover)
        at_ease = True
        if len(moving) == 1:
            flow = moving[0].flow
            assert flow is not None
            moving[0].go_on(flow.solo_rate, flow.solo_bound, now_ps)
        elif moving:
            shares = share_two(*self._rates, tuple([mover.stage.ask for mover in moving]))
            for mover, (rate, stop) in zip(moving, shares, strict=True):
                bound = mover.stage.own if stop == OWN else (self.hbm, self.l2)[stop]
                at_ease &= mover.go_on(rate, bound, now_ps)
        clash_ps = self._first_clash_ps() if at_ease else now_ps
        self.crowded = NEVER < clash_ps <= now_ps
        if not self.crowded and clash_ps != NEVER:
            self._clash.set(clash_ps)
        for mover in self.apart:
            if self.crowded:
                mover.alarm.set(mover.turn_ps())
            else:
                mover.end_ps = mover.spans()[-1][1]
                mover.alarm.set(mover.end_ps)
        return over

    def _first_clash_ps(self) -> int:
        """When those that run apart begin to slow each other, as things stand; NEVER if they do not."""
        apart = self.apart
        clashes = [self._clash_ps(mover, apart[:place]) for place, mover in enumerate(apart) if place]
        return min((at_ps for at_ps in clashes if at_ps != NEVER), default=NEVER)

    def _clash_ps(self, mover: Mover, others: list[Mover]) -> int:
        """When something that it moves would no longer fit beside what others move, everybody at full speed, or before.

        NEVER if all of it fits.
        """
        network = taken(self.hbm), taken(self.l2)
        their_spans = [other.spans() for other in others]
        for begin_ps, end_ps, stage in mover.spans():
            (hbm, l2), first_ps = network, end_ps
            for spans in their_spans:
                most_hbm = most_l2 = 0.0
                for their_begin_ps, their_end_ps, other in spans:
                    if their_begin_ps < end_ps and begin_ps < their_end_ps:
                        most_hbm, most_l2 = max(most_hbm, other.hbm_rate), max(most_l2, other.l2_rate)
                        first_ps = min(first_ps, their_begin_ps)
                hbm += most_hbm
                l2 += most_l2
            if not self._have_room(hbm, stage.hbm_rate, l2, stage.l2_rate):
                return max(begin_ps, first_ps)
        return NEVER

    def _have_room(self, hbm: float, more_hbm: float, l2: float, more_l2: float) -> bool:
        """Whether HBM and L2 can move more than they do; one alone may fill them."""
        full = hbm and more_hbm and hbm + more_hbm > self._room[0]
        return not (full or (l2 and more_l2 and l2 + more_l2 > self._room[1]))

    def _make_room(self, flow: Flow) -> None:
        """A flow of the network begins here: all that runs apart joins it, unless everything fits whatever comes."""
        if self.apart and (self.crowded or not self._fits_beside(flow)):
            self.join()

    def _fits_beside(self, flow: Flow) -> bool:
        hbm, l2 = taken(self.hbm, flow), taken(self.l2, flow)
        for mover in self.apart:
            stages = mover.shape.stages[mover.number :]
            hbm += max(stage.hbm_rate for stage in stages)
            l2 += max(stage.l2_rate for stage in stages)
        pulls = dict(flow.pulls)
        rate = flow.solo_rate
        return self._have_room(hbm, pulls.get(self.hbm, 0.0) * rate, l2, pulls.get(self.l2, 0.0) * rate)
