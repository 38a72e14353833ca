"""What an NPU replays: a tape of steps in streams, launched in windows by its host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from simulator.die.kernels import Cost


@dataclass(slots=True)
class TapeStep:
    """One task of a tape; ranks that differ in what their kernels cost share it.

    exchange: a collective's index on this tape, -1: a kernel or a flag.
    stream: index of its stream. waits: how many other steps must end first (its stream predecessor not counted).
    followers: the steps that wait for it. window, offset_ps: when the host issues it. read: whether the host waits for
    it. need: cores of an exchange. exclusive: no other stream uses cores of its partition, so that they are all free
    when its turn comes.
    """

    stream: int
    exchange: int = -1
    need: tuple[tuple[str, int], ...] = ()
    waits: int = 0
    followers: list[int] = field(default_factory=list)
    window: int = 0
    read: bool = False
    offset_ps: int = 0
    priority: int = 0
    partition: str = ""
    exclusive: bool = False


@dataclass(slots=True)
class LaunchWindow:
    """Launches between two blocking reads of the host: it opens when `after` has ended (-1: at once)."""

    after: int = -1
    read_ps: int = 0
    length_ps: int = 0


@dataclass(slots=True)
class Tape:
    """What one NPU replays; NPUs with the same program share it.

    costs, weights, units: of every step that is a kernel what it costs, the name under which L2 knows its weights, and
    on how many units it runs where its stream is alone or it needs no cores (0: on what is free then).
    """

    steps: list[TapeStep]
    costs: list[Cost | None]
    weights: list[str]
    units: list[int]
    streams: list[list[int]]
    windows: list[LaunchWindow]


def worked_ps(pauses: tuple[tuple[int, int], ...], start_ps: int, work_ps: int) -> int:
    """When a host has done `work_ps` of work that it began at `start_ps`. pauses: (when, for how long) in ps, in order,
    when it does nothing; a pause that begins when the work ends does not concern it."""
    now_ps, left_ps = start_ps, work_ps
    for at_ps, length_ps in pauses:
        if at_ps <= now_ps:
            now_ps = max(now_ps, at_ps + length_ps)
        elif at_ps < now_ps + left_ps:
            left_ps -= at_ps - now_ps
            now_ps = at_ps + length_ps
        else:
            break
    return now_ps + left_ps


class TaskObserver(Protocol):
    """Who is told of every finished task (the kernel does not know who watches)."""

    def record(self, rank: int, task: int, issued_ps: int, ready_ps: int, start_ps: int, end_ps: int, solo_ps: int,
               bound_by: str, units: int) -> None: ...

    def found(self, rank: int, task: int, in_l2_bytes: float) -> None:
        """A kernel that starts finds so many bytes of its weights in L2."""

    def late(self, rank: int, task: int, late_rank: int, late_task: int) -> None:
        """An exchange of a rank waited for that of another one, or for what that one puts."""
