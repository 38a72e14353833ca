"""What is refused of a recording: members of a group that disagree on the order of its collectives, and no end.

Members meet by sequence number, so two ranks that swap two exchanges would exchange the wrong bytes, or wait for each
other for ever as with NCCL. What is put and what is collected is counted by itself; messages go from rank to rank.

A program that is slow to record is shown, and one that launches nothing any more is refused where it is. A timer of the
process interrupts the recording every two seconds: it costs launches nothing, and finds the line of the user's own file
that is running. There is none outside the main thread, nor where the alarm is taken already.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations, takewhile
from shutil import get_terminal_size
from traceback import walk_stack
from types import FrameType

from simulator.die.kernels import Work
from simulator.paths import innermost_own
from simulator.program.rank import Event, Rank
from simulator.program.task import Collective, Flag, Prefetch, Program, ProgramError, Task

PATIENCE_S = 2.0
"""How long a recording may take before it is shown on a terminal, and from one look to the next."""
Issued = dict[tuple[str, str], dict[tuple, Task]]
"""By group and side ("put", "collect", or "" for all others): the exchanges of a rank in the order of their launches,
known by name, layer, micro-batch and how often there was one of these before."""


def check_members(programs: Sequence[Program], some: Mapping[str, Sequence[tuple[int, ...]]],
                  line_of: Callable[[int, int], str]) -> None:
    """ProgramError, with its line, where a rank launches a collective in a group of `some` ranks that it is not in."""
    members = {name: {rank for one in instances for rank in one} for name, instances in some.items()}
    used: dict[int, dict[str, Task]] = {}  # by recording: the first collective in each group
    for rank, program in enumerate(programs if members else ()):
        if id(program) not in used:
            found = used[id(program)] = {}
            for task, work in program.collectives():
                found.setdefault(work.group, task)
        for name, task in used[id(program)].items():
            if rank not in members.get(name, (rank,)):
                raise ProgramError(f"rank {rank} launches '{task.name}' in group '{name}', of which it is no member: "
                                   f"{line_of(rank, task.index)}")


def check_order(programs: Sequence[Program], groups: Mapping[str, Sequence[tuple[int, ...]]],
                line_of: Callable[[int, int], str]) -> None:
    """ProgramError, with both and their lines, where two members of a group issue its collectives in different orders.

    Exchanges are compared by name, layer and micro-batch; those that only one of two ranks issues do not count.
    programs: one per rank, the same object for ranks that share a recording. line_of: where in its file a rank
    launches a task, by its index.
    """
    issued = {id(one): one for one in programs}
    if len(issued) == 1:
        return
    by_recording = {key: _issued(one) for key, one in issued.items()}
    for name, instances in groups.items():
        for side in ("", "put", "collect"):
            orders = {key: its.get((name, side), {}) for key, its in by_recording.items()}
            labels = {key: tuple(order) for key, order in orders.items()}
            for members in instances:
                first: dict[tuple, int] = {}  # the first rank of each order
                for rank in members:
                    first.setdefault(labels[id(programs[rank])], rank)
                for ranks in combinations(first.values(), 2):
                    found = _swapped(*(orders[id(programs[rank])] for rank in ranks))
                    if found is not None:
                        raise ProgramError(_disorder(name, tuple(zip(ranks, found, strict=True)), line_of))


def _issued(program: Program) -> Issued:
    issued: Issued = defaultdict(dict)
    seen: Counter[tuple] = Counter()
    for task, work in program.collectives():
        if work.kind not in ("send", "recv"):
            side = work.kind if work.kind in ("put", "collect") else ""
            label = (task.name, task.layer, task.micro_batch, work.group, side)
            issued[work.group, side][*label, seen[label]] = task
            seen[label] += 1
    return issued


def _swapped(ours: dict[tuple, Task], theirs: dict[tuple, Task]) -> tuple[Task, Task] | None:
    """What each issues next where two orders part, among what is in both."""
    pairs = zip((one for one in ours if one in theirs), (one for one in theirs if one in ours), strict=True)
    return next(((ours[one], theirs[other]) for one, other in pairs if one != other), None)


def _disorder(group: str, first: Sequence[tuple[int, Task]], line_of: Callable[[int, int], str]) -> str:
    (one, _), (other, _) = first
    lines = [f"ranks {one} and {other} issue the collectives of group '{group}' in different orders:"]
    for rank, task in first:
        place = f", layer {task.layer}, micro-batch {task.micro_batch}"
        what = f"task '{task.name}' (#{task.index}{place}) of stream '{task.stream}'"
        lines.append(f"  rank {rank} comes first to {what}: {line_of(rank, task.index)}")
    return "\n".join([*lines, "  all members must issue them in the same order, whatever their streams"])


class Located(Rank):
    """Records a rank again, to find the line of a workload or a user's own file where it launches one of its tasks."""

    def __init__(self, coordinates: Mapping[str, object], groups: Mapping[str, int], wanted: int) -> None:
        super().__init__(coordinates, groups)
        self._wanted, self.line = wanted, "a line that is not found again"

    def launch(self, work: Work | Collective | Prefetch | Flag, name: str) -> Event:
        """As any rank does; `line` is FILE:LINE from then on."""
        if self._tasks == self._wanted:
            self.line = _line_of(takewhile(lambda one: _module(one[0]) != RECORDER, walk_stack(None)))
        return super().launch(work, name)


RECORDER = "simulator.program.world"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _line_of(stack: Iterable[tuple[FrameType, int]]) -> str:
    """The innermost line of a user's own file, or else of a workload."""
    outside = [(frame, line) for frame, line in stack if not _module(frame).startswith("simulator.")]
    return innermost_own(outside) or next(f"{frame.f_code.co_filename}:{line}" for frame, line in outside)


@contextmanager
def watched(npu: Rank) -> Iterator[None]:
    """While a program is recorded in this block; ProgramError: for `npu.max_silence_s` it has launched nothing."""
    if not _alarm_is_free():
        yield
        return
    look = _Look(npu)
    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        look.clear()


def _alarm_is_free() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    )


class _Look:
    """A look at a recording every now and then."""

    def __init__(self, npu: Rank) -> None:
        self._npu, self._items, self._since_s, self._shown = npu, 0, time.monotonic(), False

    def __call__(self, _: int, frame: FrameType | None) -> None:
        items, now_s = len(self._npu.program.items), time.monotonic()
        if items != self._items:
            self._items, self._since_s = items, now_s
        if now_s - self._since_s > self._npu.max_silence_s:
            raise self._npu.endless(f"then none for {self._npu.max_silence_s:g} s", "max_silence_s")
        if sys.stderr.isatty():
            line = innermost_own(walk_stack(frame)) if frame else ""
            self._show(f"recording {self._npu.so_far()}{line and f', at {line}'}")

    def _show(self, text: str) -> None:
        sys.stderr.write(f"\r{text[: get_terminal_size().columns - 1]}\x1b[K")
        sys.stderr.flush()
        self._shown = True

    def clear(self) -> None:
        """Takes what was shown off the terminal."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
