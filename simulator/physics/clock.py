"""Lean events on a SimPy clock that counts integer picoseconds.

This module alone touches SimPy's private fields (hot paths read `_now`); everything else goes through it.
Within one instant SimPy runs events in the order of their priority, then of their scheduling:
URGENT (0) < NORMAL (1) < SOLVE (2). Rates are solved at SOLVE, after all that starts and ends in the instant.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from typing import Any

from simpy import Environment
from simpy.events import NORMAL, Event, EventPriority

SOLVE = EventPriority(2)
"""Priority of work that must see everything which happened at NORMAL priority in the same instant."""

NEVER = -1
"""The time of an alarm that is not set."""

Callback = Callable[[Event], Any]


class Call(Event):
    """An event that is triggered from the beginning and calls one function when its time comes.

    It may be in the queue any number of times, one call for each.
    """

    _ok = True
    _value = None

    def __init__(self, env: Environment, callback: Callback) -> None:
        self.env = env
        self.call = callback
        self._calls = [callback]

    @property
    def callbacks(self) -> list[Callback]:
        """As SimPy wants it."""
        return self._calls

    @callbacks.setter
    def callbacks(self, _: object) -> None:
        """SimPy takes an event's callbacks away when it is processed; this one keeps them for its other times."""

    def at(self, at_ps: int, priority: EventPriority = NORMAL) -> None:
        """Call at this time, now or later."""
        env = self.env
        heappush(env._queue, (at_ps, priority, next(env._eid), self))


class Alarm(Call):
    """A call of `ring()` that can be moved at will: it comes at the time `at_ps` for which it was set last.

    Entries of other times stay in the queue; `run` passes them over, and they do not move the clock.
    """

    def __init__(self, env: Environment, ring: Callable[[], Any]) -> None:
        super().__init__(env, self._fire)
        self.ring = ring
        self.at_ps = NEVER

    def set(self, at_ps: int) -> None:
        """Ring at this time, now or later, instead of any other."""
        if at_ps != self.at_ps:
            self.at_ps = at_ps
            env = self.env
            heappush(env._queue, (at_ps, NORMAL, next(env._eid), self))

    def stop(self) -> None:
        """Do not ring."""
        self.at_ps = NEVER

    def _fire(self, _: Event) -> None:
        if self.env._now == self.at_ps:
            self.stop()
            self.ring()


def run(env: Environment) -> None:
    """Run to the end, as `env.run()` does, with less ado about calls."""
    queue = env._queue
    with seldom_collected():
        while queue:
            event: Any = queue[0][3]
            kind = type(event)
            if kind is Alarm:
                at_ps = heappop(queue)[0]
                if event.at_ps == at_ps:
                    env._now = at_ps
                    event.at_ps = NEVER
                    event.ring()
            elif kind is Call:
                env._now = heappop(queue)[0]
                event.call(event)
            else:
                env.step()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """What a run makes dies with its last reference: looking for cycles among all that lives is wasted time."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(500_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def call_later(env: Environment, delay_ps: int, callback: Callback, priority: EventPriority = NORMAL) -> Event:
    """Call `callback(event)` after `delay_ps` picoseconds (an integer, 0 allowed: later in this instant).

    Raises ValueError if the delay is negative.
    """
    if delay_ps < 0:
        raise ValueError(f"a delay cannot be negative: {delay_ps} ps")
    event = Call(env, callback)
    heappush(env._queue, (env._now + delay_ps, priority, next(env._eid), event))
    return event


class Timer:
    """One alarm that can be moved at will: it calls `ring()` at the time for which it was armed last.

    An alarm that is moved leaves its old entry in SimPy's queue, because taking an entry out of a heap costs more than
    letting it pass. Old entries that lie behind the last alarm would carry the clock beyond the end of the simulation:
    they are removed when the timer is disarmed.
    """

    __slots__ = ("_env", "_event", "_priority", "_ring", "_times", "at_ps")

    def __init__(self, env: Environment, ring: Callable[[], Any], priority: EventPriority = NORMAL) -> None:
        self._env = env
        self._ring = ring
        self._priority = priority
        self.at_ps: int | None = None  # when it will ring; None while it is not armed
        self._event = Call(env, self._fire)  # one event, in the queue once for each of these times
        self._times: set[int] = set()

    def arm(self, at_ps: int) -> None:
        """Ring at `at_ps` (now or later) instead of whenever it was armed for before."""
        if at_ps == self.at_ps:
            return
        env = self._env
        if at_ps < env._now:
            raise ValueError(f"a timer cannot ring in the past: {at_ps} ps, now {env._now} ps")
        self.at_ps = at_ps
        if at_ps not in self._times:
            self._times.add(at_ps)
            heappush(env._queue, (at_ps, self._priority, next(env._eid), self._event))

    def disarm(self) -> None:
        """Do not ring, and leave nothing behind in the queue that would move the clock."""
        self.at_ps = None
        if self._times:
            queue = self._env._queue
            queue[:] = [entry for entry in queue if entry[3] is not self._event]
            heapify(queue)
            self._times.clear()

    def skip_to(self, at_ps: int) -> bool:
        """While ringing: move the clock on to where it would ring next, if nothing else happens until then."""
        queue = self._env._queue
        if queue and queue[0][0] <= at_ps:
            return False
        self._env._now = at_ps
        return True

    def _fire(self, _: Event) -> None:
        now_ps = self._env._now
        self._times.remove(now_ps)  # type: ignore[arg-type]
        if now_ps == self.at_ps:
            self.at_ps = None
            self._ring()
