"""SimPy's environment in integer picoseconds, with lean events.

This module alone touches SimPy's private fields. Within one instant SimPy runs events in the order of their priority,
then of their scheduling: URGENT (0) < NORMAL (1) < SOLVE (2). Rates are solved at SOLVE, after all that starts and ends
in the instant. A user's own processes, time-outs and interrupts run beside a replay on the same clock.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from typing import Any

from simpy import Environment
from simpy.core import EmptySchedule
from simpy.events import NORMAL, URGENT, Event, EventPriority

__all__ = ["NEVER", "NORMAL", "SOLVE", "URGENT", "Alarm", "Call", "Clock", "call_later", "seldom_collected"]

SOLVE = EventPriority(2)
"""Priority of work that must see everything which happened at NORMAL priority in the same instant."""

NEVER = -1
"""The time of an alarm that is not set."""

Callback = Callable[[Event], Any]


class Clock(Environment):
    """A SimPy environment whose times are whole picoseconds. now_ps: the present time, the same as `now`."""

    def __init__(self) -> None:
        super().__init__(0)
        self.now_ps = 0
        self.alarms: list[Alarm] = []

    def run(self, until: Any = None) -> Any:
        """Run to the end of all events, or as SimPy does until a time or an event."""
        with seldom_collected():
            if until is not None:
                return super().run(until)
            queue, alarms = self._queue, self.alarms
            while _go_on(self, queue, alarms):
                pass
        return None

    def step(self) -> None:
        """Process the next event; EmptySchedule if there is none."""
        if not _go_on(self, self._queue, self.alarms):
            raise EmptySchedule

    def peek(self) -> Any:
        """The time of the next event, infinity if there is none."""
        alarm = _first_of(self.alarms)
        at_ps = super().peek()
        return at_ps if alarm is None or at_ps <= alarm.at_ps else alarm.at_ps

    def withdraw(self, events: Iterable[Event]) -> None:
        """Take events that have not come yet out of the queue: they never come."""
        never = set(events)
        self._queue[:] = [entry for entry in self._queue if entry[3] not in never]
        heapify(self._queue)

    def skip_to(self, at_ps: int) -> bool:
        """Move the clock on to this time if no event comes before it or at it; whether that was so."""
        if self.peek() <= at_ps:
            return False
        self._now = self.now_ps = at_ps
        return True


def _go_on(env: Any, queue: Any, alarms: list[Alarm]) -> bool:
    """Process the next event of a clock; whether there is one."""
    alarm = _first_of(alarms)
    if alarm is not None and (not queue or alarm.comes_before(queue[0])):
        env._now = env.now_ps = alarm.at_ps
        alarm.fire()
    elif queue:
        at_ps, _, _, event = heappop(queue)
        env._now = env.now_ps = at_ps
        if type(event) is Call:
            event.call_all()
        else:
            _process(event)
    else:
        return False
    return True


def _process(event: Any) -> None:
    """An event of SimPy's own."""
    callbacks, event.callbacks = event.callbacks, None
    for callback in callbacks:
        callback(event)
    if not event._ok and not getattr(event, "_defused", False):
        raise event._value


class Call(Event):
    """An event that is triggered from the beginning and calls one function when its time comes.

    It may be in the queue any number of times, one call for each.
    """

    _ok = True
    _value = None

    def __init__(self, env: Clock, callback: Callback) -> None:
        self.env = env
        self.call = callback
        self._calls = [callback]

    @property
    def callbacks(self) -> list[Callback]:  # type: ignore[override]
        """As SimPy wants it."""
        return self._calls

    def call_all(self) -> None:
        """Call the function, and those who wait for this event: they wait for one of its times."""
        calls = self._calls
        if len(calls) == 1:
            self.call(self)
            return
        self._calls = [self.call]
        for call in calls:
            call(self)

    def at(self, at_ps: int, priority: EventPriority = NORMAL) -> None:
        """Call at this time, now or later."""
        env: Any = self.env
        heappush(env._queue, (at_ps, priority, next(env._eid), self))


class Alarm:
    """A call of `ring()` that can be moved at will: it comes at the time `at_ps` for which it was set last.

    It stands beside the queue of its clock, which would keep every time for which it was ever set; at its time it comes
    in turn with the events of NORMAL priority, by when it was set.
    """

    def __init__(self, env: Clock, ring: Callable[[], Any]) -> None:
        self.env = env
        self.ring = ring
        self.at_ps = NEVER
        self._turn = 0
        env.alarms.append(self)

    def set(self, at_ps: int) -> None:
        """Ring at this time, now or later, instead of any other; ValueError for a time in the past."""
        if at_ps != self.at_ps:
            env: Any = self.env
            if at_ps < env.now_ps:
                raise ValueError(f"an alarm cannot ring in the past: {at_ps} ps, now {env.now_ps} ps")
            self.at_ps, self._turn = at_ps, next(env._eid)

    def comes_before(self, entry: tuple[int, int, int, Event]) -> bool:
        """Whether it comes before an entry of the queue."""
        if self.at_ps != entry[0]:
            return self.at_ps < entry[0]
        return (NORMAL, self._turn) < entry[1:3]

    def stop(self) -> None:
        """Do not ring."""
        self.at_ps = NEVER

    def fire(self) -> None:
        """Ring, as the clock does at `at_ps`; it can be set again meanwhile."""
        self.at_ps = NEVER
        self.ring()


def _first_of(alarms: list[Alarm]) -> Alarm | None:
    """The next one that is set."""
    first: Alarm | None = None
    for alarm in alarms:
        if alarm.at_ps != NEVER and (first is None or (alarm.at_ps, alarm._turn) < (first.at_ps, first._turn)):
            first = alarm
    return first


_outermost: list[bool] = []  # one item while a run is under way


@contextmanager
def seldom_collected() -> Iterator[None]:
    """What a run makes dies with its last reference: looking for cycles among all that lives is wasted time."""
    if _outermost:
        yield
        return
    _outermost.append(True)
    before = gc.get_threshold()
    gc.collect(1)  # the few cycles that the run before has left: once frozen they would stay
    gc.freeze()
    gc.set_threshold(500_000, *before[1:])
    try:
        yield
    finally:
        _outermost.clear()
        gc.set_threshold(*before)
        gc.unfreeze()


def call_later(env: Clock, delay_ps: int, callback: Callback, priority: EventPriority = NORMAL) -> Event:
    """Call `callback(event)` after `delay_ps` picoseconds (an integer, 0 allowed: later in this instant).

    Raises ValueError if the delay is negative.
    """
    if delay_ps < 0:
        raise ValueError(f"a delay cannot be negative: {delay_ps} ps")
    event = Call(env, callback)
    heappush(env._queue, (env.now_ps + delay_ps, priority, next(env._eid), event))
    return event
