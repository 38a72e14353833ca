"""Laws of the clock: order within an instant, integer times, timers that can be moved and leave nothing behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Interrupt
from simpy.events import URGENT

from simulator.physics.clock import NEVER, NORMAL, SOLVE, Alarm, Clock, call_later
from simulator.physics.flows import Capacity, Flow, Network


def test_a_call_comes_after_its_delay_with_its_event() -> None:
    env, seen = Clock(), []
    event = call_later(env, 7, lambda e: seen.append((env.now, e)))
    env.run()
    assert seen == [(7, event)]
    assert isinstance(env.now, int)


def test_within_an_instant_priority_then_order_of_scheduling() -> None:
    env, seen = Clock(), []
    for name, priority in [("s1", SOLVE), ("n1", NORMAL), ("s2", SOLVE), ("n2", NORMAL), ("u", URGENT)]:
        call_later(env, 0, lambda _, name=name: seen.append(name), priority)  # type: ignore[misc]
    env.run()
    assert seen == ["u", "n1", "n2", "s1", "s2"]


def test_what_is_scheduled_for_this_instant_still_comes_before_the_solve() -> None:
    env, seen = Clock(), []
    call_later(env, 3, lambda _: seen.append("solve"), SOLVE)
    call_later(env, 3, lambda _: call_later(env, 0, lambda _: seen.append("late")))
    env.run()
    assert seen == ["late", "solve"]


def test_a_process_can_wait_for_a_call() -> None:
    env, seen = Clock(), []

    def waits():  # type: ignore[no-untyped-def]
        yield call_later(env, 5, lambda _: seen.append("call"))
        seen.append(env.now)

    env.process(waits())
    env.run()
    assert seen == ["call", 5]


def test_run_until_a_call() -> None:
    env = Clock()
    event = call_later(env, 5, lambda _: None)
    call_later(env, 9, lambda _: None)
    env.run(until=event)
    assert env.now == 5


def test_no_negative_delay_and_no_alarm_in_the_past() -> None:
    env = Clock()
    with pytest.raises(ValueError, match="negative"):
        call_later(env, -1, lambda _: None)
    call_later(env, 5, lambda _: None)
    env.run()
    with pytest.raises(ValueError, match="past"):
        Alarm(env, lambda: None).set(4)


def test_an_alarm_rings_once_at_the_time_for_which_it_was_set_last() -> None:
    env, seen = Clock(), []
    alarm = Alarm(env, lambda: seen.append(env.now))
    for at in (10, 4, 8):
        alarm.set(at)
    assert alarm.at_ps == 8
    assert env.peek() == 8
    env.run()
    assert seen == [8]
    assert alarm.at_ps == NEVER


def test_an_alarm_can_be_set_again_while_it_rings() -> None:
    env, seen = Clock(), []

    def ring() -> None:
        seen.append(env.now)
        if len(seen) < 4:
            alarm.set(env.now + len(seen) // 2)  # the first of them for this very instant

    alarm = Alarm(env, ring)
    alarm.set(2)
    env.run()
    assert seen == [2, 2, 3, 4]


@pytest.mark.parametrize("until", [None, 45])
def test_a_stopped_alarm_does_not_move_the_clock(until: int | None) -> None:
    env, seen = Clock(), []
    alarm = Alarm(env, lambda: seen.append(env.now))
    for t in (1, 30):
        call_later(env, t, lambda _: None)
    for at in (50, 10, 40):
        alarm.set(at)
    alarm.stop()
    env.run(until)
    assert (env.now, env.now_ps, seen) == (until or 30, until or 30, [])


@pytest.mark.parametrize("step", [False, True])
@given(st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20)), max_size=12))
def test_an_alarm_is_an_alarm_clock(step: bool, moves: list[tuple[int, int | None]]) -> None:
    """Moved at random times, it rings exactly when an alarm clock would, whether the clock runs or steps."""
    env, rings = Clock(), []
    alarm = Alarm(env, lambda: rings.append(env.now))

    def move(delay: int | None) -> None:
        if delay is None:
            alarm.stop()
        else:
            alarm.set(env.now + delay)

    for at, delay in moves:
        call_later(env, at, lambda _, delay=delay: move(delay), URGENT)  # type: ignore[misc]
    env.run(50 if step else None)
    expected, alarmed = [], None
    for now in range(50):
        for at, delay in moves:
            if at == now:
                alarmed = None if delay is None else now + delay
        while alarmed == now:
            expected.append(now)
            alarmed = None
    assert rings == expected


def test_processes_timeouts_and_interrupts_run_on_it() -> None:
    env, seen = Clock(), []

    def worker():  # type: ignore[no-untyped-def]
        try:
            yield env.timeout(100)
        except Interrupt as interrupt:
            seen.append((env.now, interrupt.cause))
        yield env.timeout(5)
        return "done"

    def boss(process):  # type: ignore[no-untyped-def]
        yield env.timeout(7)
        process.interrupt("enough")

    process = env.process(worker())
    env.process(boss(process))
    assert env.run(until=process) == "done"
    assert (env.now, seen) == (12, [(7, "enough")])
    env.run()
    assert env.now == 100  # the time-out that was left is still an event


def test_an_error_in_a_process_stops_the_run() -> None:
    env = Clock()

    def fails():  # type: ignore[no-untyped-def]
        yield env.timeout(3)
        raise RuntimeError("as it was raised")

    env.process(fails())
    with pytest.raises(RuntimeError, match="as it was raised"):
        env.run()


@pytest.mark.parametrize("step", [False, True])
def test_others_wait_for_a_call_in_a_whole_run(step: bool) -> None:
    env, seen = Clock(), []

    def waits(event):  # type: ignore[no-untyped-def]
        yield event
        seen.append(env.now)

    event = call_later(env, 5, lambda _: seen.append("call"))
    for _ in range(2):
        env.process(waits(event))
    env.run(9 if step else None)
    assert seen == ["call", 5, 5]


def test_a_process_runs_beside_flows() -> None:
    """It sees the rates of the network change at its own times, and moves nothing."""
    env = Clock()
    network, shared, seen = Network(env), Capacity("shared", 1e9), []

    def sampler():  # type: ignore[no-untyped-def]
        yield env.timeout(5 * 10**11)
        for _ in range(5):
            yield env.timeout(10**12)
            seen.append(round(shared.used_bytes_per_s() / 1e9, 6))

    env.process(sampler())
    ends: list[int] = []
    for size in (1e9, 2e9):
        network.start(Flow(size, [(shared, 1.0)], 6e8), lambda _: ends.append(env.now_ps))
    env.run(until=15 * 10**11)
    assert env.now == 15 * 10**11
    env.run()
    alone = 2 * 10**12 + round((2e9 - 1e9) / 6e8 * 1e12)
    assert ends == [2 * 10**12, alone]
    assert seen == [1.0, 0.6, 0.6, 0.0, 0.0]


def test_alarms_come_in_turn_with_events_of_their_instant() -> None:
    """By when each was set last; SOLVE comes after all of them."""
    env, seen = Clock(), []
    call_later(env, 5, lambda _: seen.append("solve"), SOLVE)
    first, second = Alarm(env, lambda: seen.append("first")), Alarm(env, lambda: seen.append("second"))
    second.set(5)
    call_later(env, 5, lambda _: seen.append("call"))
    first.set(3)
    first.set(5)
    assert env.peek() == 5
    env.run(until=4)
    assert (env.now, seen) == (4, [])
    env.run()
    assert seen == ["second", "call", "first", "solve"]


def test_the_clock_does_not_skip_over_an_alarm() -> None:
    env = Clock()
    alarm = Alarm(env, lambda: None)
    alarm.set(7)
    assert (env.skip_to(7), env.skip_to(6), env.now) == (False, True, 6)
    alarm.stop()
    assert (env.peek(), env.skip_to(9)) == (float("inf"), True)
