"""Laws of the clock: order within an instant, integer times, timers that can be moved and leave nothing behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment
from simpy.events import URGENT

from simulator.physics import NORMAL, SOLVE, Timer, call_later


def test_a_call_comes_after_its_delay_with_its_event() -> None:
    env, seen = Environment(), []
    event = call_later(env, 7, lambda e: seen.append((env.now, e)))
    env.run()
    assert seen == [(7, event)]
    assert isinstance(env.now, int)


def test_within_an_instant_priority_then_order_of_scheduling() -> None:
    env, seen = Environment(), []
    for name, priority in [("s1", SOLVE), ("n1", NORMAL), ("s2", SOLVE), ("n2", NORMAL), ("u", URGENT)]:
        call_later(env, 0, lambda _, name=name: seen.append(name), priority)  # type: ignore[misc]
    env.run()
    assert seen == ["u", "n1", "n2", "s1", "s2"]


def test_what_is_scheduled_for_this_instant_still_comes_before_the_solve() -> None:
    env, seen = Environment(), []
    call_later(env, 3, lambda _: seen.append("solve"), SOLVE)
    call_later(env, 3, lambda _: call_later(env, 0, lambda _: seen.append("late")))
    env.run()
    assert seen == ["late", "solve"]


def test_a_process_can_wait_for_a_call() -> None:
    env, seen = Environment(), []

    def waits():  # type: ignore[no-untyped-def]
        yield call_later(env, 5, lambda _: seen.append("call"))
        seen.append(env.now)

    env.process(waits())
    env.run()
    assert seen == ["call", 5]


def test_run_until_a_call() -> None:
    env = Environment()
    event = call_later(env, 5, lambda _: None)
    call_later(env, 9, lambda _: None)
    env.run(until=event)
    assert env.now == 5


def test_no_negative_delay_and_no_alarm_in_the_past() -> None:
    env = Environment()
    with pytest.raises(ValueError, match="negative"):
        call_later(env, -1, lambda _: None)
    call_later(env, 5, lambda _: None)
    env.run()
    with pytest.raises(ValueError, match="past"):
        Timer(env, lambda: None).arm(4)


def test_a_timer_rings_once_at_the_time_of_its_last_arming() -> None:
    env, seen = Environment(), []
    timer = Timer(env, lambda: seen.append(env.now))
    for at in (10, 4, 8):
        timer.arm(at)
    assert timer.at_ps == 8
    env.run()
    assert seen == [8]
    assert timer.at_ps is None


def test_a_timer_can_be_armed_again_while_it_rings() -> None:
    env, seen = Environment(), []

    def ring() -> None:
        seen.append(env.now)
        if len(seen) < 4:
            timer.arm(env.now + len(seen) // 2)  # the first of them for this very instant

    timer = Timer(env, ring)
    timer.arm(2)
    env.run()
    assert seen == [2, 2, 3, 4]


def test_a_disarmed_timer_leaves_nothing_behind() -> None:
    env, seen = Environment(), []
    timer = Timer(env, lambda: seen.append(env.now))
    other = [call_later(env, t, lambda _: None) for t in (1, 30)]
    for at in (50, 10, 40):
        timer.arm(at)
    timer.disarm()
    assert len(env._queue) == len(other)
    env.run()
    assert (env.now, seen) == (30, [])


@given(st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20)), max_size=12))
def test_a_timer_is_an_alarm_clock(moves: list[tuple[int, int | None]]) -> None:
    """Moved at random times, it rings exactly when an alarm clock would."""
    env, rings = Environment(), []
    timer = Timer(env, lambda: rings.append(env.now), priority=SOLVE)

    def move(delay: int | None) -> None:
        if delay is None:
            timer.disarm()
        else:
            timer.arm(env.now + delay)

    for at, delay in moves:
        call_later(env, at, lambda _, delay=delay: move(delay))  # type: ignore[misc]
    env.run()
    expected, alarm = [], None
    for now in range(50):
        for at, delay in moves:
            if at == now:
                alarm = None if delay is None else now + delay
        if alarm == now:
            expected.append(now)
            alarm = None
    assert rings == expected
