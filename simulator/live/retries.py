"""What a network card does about writes that are lost: it tries again and again, and gives up in the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from simulator.live.write import Write
from simulator.physics.clock import Alarm, call_later
from simulator.spec.nic import NicSpec
from simulator.units import to_ps


class Retries:
    """Of one card. reaches: whether both ends of a write live. again: sends it once more. fail: it has been given up.

    The time to give up counts from when a write was lost, which is less than a round trip after it was sent.
    """

    def __init__(self, env: Any, spec: NicSpec, reaches: Callable[[Write], bool], again: Callable[[Write], object],
                 fail: Callable[[Write], object]) -> None:
        self.env, self._reaches, self._again, self._fail = env, reaches, again, fail
        self._retransmit_ps, self._give_up_ps = to_ps(spec.retransmit.si), to_ps(spec.give_up.si)
        self._held: deque[tuple[int, Write]] = deque()  # with the time at which each fails
        self._alarm: Alarm | None = None

    def lose(self, write: Write) -> None:
        """A write or its acknowledgement is lost."""
        write.lost = True
        self._wait(write, self.env.now + self._give_up_ps)

    def hold(self, write: Write) -> None:
        """A write cannot be sent, since its card is dead: it fails in time, unless the card returns before."""
        if self._alarm is None:
            self._alarm = Alarm(self.env, self._expire)
        self._held.append((self.env.now + self._give_up_ps, write))
        self._alarm.set(self._held[0][0])

    def release(self) -> None:
        """The card is back: what was held can be sent."""
        self._held.clear()
        if self._alarm is not None:
            self._alarm.stop()

    def _expire(self) -> None:
        while self._held and self._held[0][0] <= self.env.now:
            self._fail(self._held.popleft()[1])
        if self._held and self._alarm is not None:
            self._alarm.set(self._held[0][0])

    def _wait(self, write: Write, until_ps: int) -> None:
        wait_ps = min(self._retransmit_ps, until_ps - self.env.now)
        call_later(self.env, wait_ps, lambda _: self._try(write, until_ps))

    def _try(self, write: Write, until_ps: int) -> None:
        if self._reaches(write):
            self._again(write)
        elif self.env.now >= until_ps:
            self._fail(write)
        else:
            self._wait(write, until_ps)
