"""The order in which ranks issue the collectives of a group: one for all its members, whatever their streams.

Members meet by sequence number, so two ranks that swap two exchanges would exchange the wrong bytes, or wait for each
other for ever as with NCCL. What is put and what is collected is counted by itself; messages go from rank to rank.
"""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, takewhile
from types import FrameType

from simulator.die.kernels import Work
from simulator.paths import innermost_own
from simulator.program.rank import Event, Rank
from simulator.program.task import Collective, Flag, Prefetch, Program, ProgramError, Task

Issued = dict[tuple[str, str], dict[tuple, Task]]
"""By group and side ("put", "collect", or "" for all others): the exchanges of a rank in the order of their launches,
known by name, layer, micro-batch and how often there was one of these before."""


def check_order(
    programs: Sequence[Program], groups: Mapping[str, Sequence[tuple[int, ...]]], line_of: Callable[[int, int], str]
) -> None:
    """Exchanges are compared by name, layer and micro-batch; those that only one of two ranks issues do not count.

    programs: one per rank, the same object for ranks that share a recording. line_of: where in its file a rank
    launches a task, by its index.

    Raises:
        ProgramError: two members of a group issue its collectives in different orders; it names both and their lines.
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
            self.line = _line_of(takewhile(lambda one: _module(one[0]) != RECORDER, traceback.walk_stack(None)))
        return super().launch(work, name)


RECORDER = "simulator.program.world"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _line_of(stack: Iterable[tuple[FrameType, int]]) -> str:
    """The innermost line of a user's own file, or else of a workload."""
    outside = [(frame, line) for frame, line in stack if not _module(frame).startswith("simulator.")]
    return innermost_own(outside) or next(f"{frame.f_code.co_filename}:{line}" for frame, line in outside)
