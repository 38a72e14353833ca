"""Requests that have come to an engine and that its scheduler has not looked at yet.

With steps that are decided one ahead, a request that comes while a step runs is looked at when the next one is decided.
SGLang's scheduler looks less often where it is told to (`scheduler_recv_interval`): behind a step with prompts, and
else when so many steps have passed since it looked; an idle one looks at once (`SchedulerRecvSkipper` of
sgl-project/sglang, srt/managers/scheduler_recv_skipper.py).

Worked example. With an interval of 10 it looks as it decides on step 0. Steps 0 to 3 decode, step 4 has prompts: it
looks as it decides on step 5, and then on step 15. Where steps are decided one ahead, that is as steps 4 and 14 begin.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.serving.sequences import Sequence


class Unseen:
    """interval: steps without prompts from one look to the next."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._passed = interval  # steps since it looked
        self._came: list[Sequence] = []

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._came)

    def __len__(self) -> int:
        return len(self._came)

    @property
    def steps(self) -> int:
        """Until it looks again."""
        return max(self._interval - self._passed, 1)

    def add(self, one: Sequence) -> None:
        """A request has come."""
        self._came.append(one)

    def withdraw(self, one: Sequence) -> bool:
        """A request is taken away; False: it is not here."""
        left = [other for other in self._came if other is not one]
        here, self._came = len(left) < len(self._came), left
        return here

    def passed(self, steps: int, *, prompts: bool) -> None:
        """So many steps have been, the last of them with prompts or without."""
        self._passed = self._interval if prompts else self._passed + steps

    def look(self, *, idle: bool = False) -> list[Sequence]:
        """Those that it sees, if it looks now; an idle scheduler does."""
        if not idle and self._passed < self._interval:
            return []
        self._passed = 0
        seen, self._came = self._came, []
        return seen
