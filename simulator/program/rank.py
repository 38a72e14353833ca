"""The idiom of rank programs: PyTorch's streams and events, recorded as a graph capture records them.

A program is a plain function of a `Rank`. It never sees time. What it may know of its place in the cluster it asks the
`Rank` for, and the `Rank` notes what was asked: ranks for which all answers were the same share one recording, so a
program that never asks who it is costs one recording however many ranks run it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from simulator.die.kernels import Work
from simulator.paths import did_you_mean
from simulator.program.task import ALGORITHMS, Collective, Flag, HostWait, Prefetch, Program, ProgramError, Task

T = TypeVar("T")
DEFAULT_STREAM = "compute"
MAX_TASKS = 500_000
"""Launches and host waits of one rank; a program that needs more says so: `npu.max_tasks = 5_000_000`."""
MAX_SILENCE_S = 300.0
"""Seconds between two launches as a program is recorded; one that thinks longer sets `npu.max_silence_s`."""


@dataclass(slots=True)
class Event:
    """A point in a stream: reached when all `tasks` have ended (none: reached at once, None: never recorded).

    recorder: the rank whose tasks they are, as it was recorded; no other may wait for it.
    """

    name: str
    tasks: tuple[int, ...] | None
    recorder: Rank = field(repr=False, compare=False)


class Rank:
    """Records what one rank does.

    coordinates: what this rank may be asked about itself (`rank`, `role`, ...). groups: size of each of its groups.
    max_tasks, max_silence_s: beyond them a program is taken for one that never ends, and refused.
    """

    max_tasks, max_silence_s = MAX_TASKS, MAX_SILENCE_S

    def __init__(self, coordinates: Mapping[str, object], groups: Mapping[str, int]) -> None:
        self._coordinates, self._groups = coordinates, groups
        self.asked: dict[str, object] = {}
        self.kinds: list[tuple[str, Callable[[Any], object], object]] = []  # as asked, and the answers
        self.program = Program()
        self._tasks = 0
        self._stream, self._layer, self._micro_batch = DEFAULT_STREAM, -1, -1
        self._partition: dict[str, str] = {}
        self._priority: dict[str, int] = {}
        self._waits: dict[str, list[int]] = {}
        self._last: dict[str, int] = {}
        self._given: Counter[str] = Counter()

    # who am I -------------------------------------------------------------------------------------------------------

    def coordinate(self, coordinate: str) -> object:
        """This rank's value of a coordinate ("rank", "role", ...)."""
        value = self._value_of(coordinate)
        self.asked[coordinate] = value
        return value

    def _value_of(self, coordinate: str) -> object:
        if coordinate not in self._coordinates:
            raise ProgramError(f"no coordinate '{coordinate}': there are {', '.join(sorted(self._coordinates))}")
        return self._coordinates[coordinate]

    @property
    def rank(self) -> int:
        """The global rank. Asking makes this rank's program its own."""
        value = self.coordinate("rank")
        assert isinstance(value, int)
        return value

    def kind(self, coordinate: str, kind_of: Callable[[Any], T]) -> T:
        """What kind of rank this is by its value of a coordinate; all of one kind share one recording."""
        kind = kind_of(self._value_of(coordinate))
        self.kinds.append((coordinate, kind_of, kind))
        return kind

    @property
    def first(self) -> int:
        """The first rank of this recording, which serves others too: only for what `launch_by_rank` then replaces."""
        first = self._coordinates["rank"]
        assert isinstance(first, int)
        return first

    def group(self, name: str) -> Group:
        """A group of ranks by its name in the layout, for collectives."""
        if name not in self._groups:
            there = ", ".join(sorted(self._groups)) or "none"
            raise ProgramError(f"no group '{name}' in this layout{did_you_mean(name, self._groups)}: there are {there}")
        return Group(self, name, self._groups[name])

    # where the next tasks go ----------------------------------------------------------------------------------------

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        """Launch into this stream inside the `with` block."""
        before, self._stream = self._stream, name
        try:
            yield
        finally:
            self._stream = before

    @contextmanager
    def scope(self, layer: int | None = None, micro_batch: int | None = None) -> Iterator[None]:
        """Label the tasks of the `with` block with a layer and a micro-batch."""
        before = self._layer, self._micro_batch
        self._layer = self._layer if layer is None else layer
        self._micro_batch = self._micro_batch if micro_batch is None else micro_batch
        try:
            yield
        finally:
            self._layer, self._micro_batch = before

    def confine(self, stream: str, cores: Mapping[str, int]) -> None:
        """Give a stream cores of its own; streams confined to the same name share them."""
        self.program.partitions[stream] = dict(cores)
        self._partition[stream] = stream

    def prioritise(self, stream: str, priority: int) -> None:
        """Kernels of a stream with a lower number get waiting cores first (default 0)."""
        self._priority[stream] = priority

    # launches -------------------------------------------------------------------------------------------------------

    def launch(self, work: Work | Collective | Prefetch | Flag, name: str) -> Event:
        """Put one task into the current stream; the event is reached when it has ended."""
        self._check_length()
        index, stream = self._tasks, self._stream
        self._tasks += 1
        last = self._last.get(stream, -1)
        after = tuple(sorted({task for task in self._waits.pop(stream, ()) if task != last}))
        priority, partition = self._priority.get(stream, 0), self._partition.get(stream, "")
        task = Task(index, stream, name, work, after, self._layer, self._micro_batch, priority, partition)
        self.program.items.append(task)
        self._last[stream] = index
        return Event(name, (index,), self)

    def launch_by_rank(self, work_of: Callable[[int], Work | Collective], name: str) -> Event:
        """As `launch`, for work whose numbers depend on the rank alone, so that all ranks share one recording.

        work_of(rank) is the work of any rank: of one family, or the same kind of exchange in the same group.
        """
        self.program.by_rank[self._tasks] = lambda rank: ((name, work_of(rank)),)
        return self.launch(work_of(self.first), name)

    def launch_all_by_rank(self, works_of: Callable[[int], Sequence[tuple[str, Work | Collective]]]) -> None:
        """As `launch_by_rank` for (name, work) after (name, work); the names are those of every rank."""
        works = works_of(self.first)
        if not works:
            raise ProgramError(f"rank {self.first} has none of the works that depend on the rank ({self._place()})")
        self.program.by_rank[self._tasks] = works_of
        for name, work in works:
            self.launch(work, name)

    def prefetch(self, weights: str, size_bytes: float, rate_bytes_per_s: float = 0.0, pieces: int = 1) -> Event:
        """Copy weights into L2 with a DMA queue, at no more than this rate; kernels find the pieces that are there."""
        for number in range(1, pieces):
            kept = size_bytes * number / pieces
            self.launch(Prefetch(weights, size_bytes / pieces, rate_bytes_per_s, kept), f"prefetch {weights}")
        last = Prefetch(weights, size_bytes / pieces, rate_bytes_per_s, size_bytes)
        return self.launch(last, f"prefetch {weights}")

    def set_flag(self, name: str, flag: str, watched: bool = False, request: object = None) -> Event:
        """The host can see `flag` once everything before it in the current stream has ended, and what it asks for."""
        return self.launch(Flag("set_flag", flag, watched=watched, request=request), name)

    def new_name(self, name: str) -> str:
        """This name, numbered from its second use on: of what a recording has once, as flags."""
        self._given[name] += 1
        return name if self._given[name] == 1 else f"{name} again {self._given[name] - 1}"

    def wait_flag(self, name: str, flag: str, cores: tuple[tuple[str, int], ...] = ()) -> Event:
        """What follows in the current stream starts once the host has set `flag`."""
        return self.launch(Flag("wait_flag", flag, tuple(cores)), name)

    def event(self, name: str) -> Event:
        """An event that is still to be recorded."""
        return Event(name, None, self)

    def record(self, event: Event | None = None) -> Event:
        """Mark the present end of the current stream; ProgramError: the event is that of another rank."""
        event = Event("event", None, self) if event is None else event
        self._check_own(event, f"stream '{self._stream}' records")
        last = (self._last[self._stream],) if self._stream in self._last else ()
        event.tasks = (*last, *self._waits.get(self._stream, ()))  # what the next launch would start after
        return event

    def wait(self, event: Event) -> None:
        """What is launched into the current stream from here on starts after the event; the host goes on."""
        self._waits.setdefault(self._stream, []).extend(self._reached_by(event, f"stream '{self._stream}'"))

    def host_wait(self, event: Event, reads: int = 1) -> None:
        """The host blocks until the event is reached, then reads `reads` values from the device."""
        self._check_length()
        tasks = self._reached_by(event, "the host")
        for task in tasks:
            self.program.items.append(HostWait(task, reads if task == tasks[-1] else 0))

    def _reached_by(self, event: Event, who: str) -> tuple[int, ...]:
        self._check_own(event, f"{who} waits for")
        if event.tasks is None:
            raise ProgramError(f"{who} waits for event '{event.name}', which was never recorded ({self._place()})")
        return event.tasks

    def _check_own(self, event: Event, who: str) -> None:
        """An event orders the work of the rank that has made it, and of no other."""
        if event.recorder is self:
            return
        mine, other = self._coordinates["rank"], event.recorder._coordinates["rank"]
        whose = f"rank {other}" if other != mine else f"an earlier recording of rank {other}"
        raise ProgramError(
            f"rank {mine}: {who} event '{event.name}' of {whose} ({self._place()}): events order the work of one rank; "
            "ranks meet in collectives, or in send and recv"
        )

    # programs that do not end ----------------------------------------------------------------------------------------

    def so_far(self) -> str:
        """Whose recording this is and how far it has come, in a line."""
        last = next((item for item in reversed(self.program.items) if isinstance(item, Task)), None)
        place = last and f", the last one '{last.name}' (layer {last.layer}, stream '{last.stream}')"
        return f"rank {self._coordinates['rank']}: {len(self.program.items):,} launches and host waits{place or ''}"

    def endless(self, how: str, limit: str) -> ProgramError:
        """The error of a program that goes on and on. limit: which attribute of this says for how long it may."""
        return ProgramError(f"{self.so_far()}, {how}: does this program end? If it does, it can set npu.{limit}")

    def _check_length(self) -> None:
        if len(self.program.items) >= self.max_tasks:
            raise self.endless("and no more are allowed", "max_tasks")

    def _place(self) -> str:
        return f"layer {self._layer}, micro-batch {self._micro_batch}"


@dataclass(frozen=True, slots=True)
class Group:
    """A group of ranks as one member sees it. Every method launches one collective and returns its event."""

    npu: Rank
    name: str
    size: int

    def all_to_all(self, name: str, bytes_per_pair: int, via: str, algorithm: str = "direct",
                   cores: tuple[tuple[str, int], ...] = ()) -> Event:
        """Every rank sends `bytes_per_pair` to every other one. cores: held instead of the engine's own."""
        one = Collective("all_to_all", self.name, via, int(bytes_per_pair), algorithm=algorithm, cores=cores)
        return self._launch(one, name)

    def all_to_all_uneven(self, name: str, sizes: tuple[tuple[int, ...], ...], via: str,
                          algorithm: str = "direct", cores: tuple[tuple[str, int], ...] = ()) -> Event:
        """Rank i of the group sends `sizes[i][j]` bytes to rank j (the same n x n table on every rank)."""
        if len(sizes) != self.size or any(len(row) != self.size for row in sizes):
            what = f"all_to_all '{name}' in group '{self.name}' of {self.size}"
            raise ProgramError(f"{what}: sizes must be {self.size} x {self.size}")
        table = sizes if isinstance(sizes, tuple) else tuple(map(tuple, sizes))
        one = Collective("all_to_all", self.name, via, sizes=table, algorithm=algorithm, cores=cores)
        return self._launch(one, name)

    def all_gather(self, name: str, shard_bytes: int, via: str, algorithm: str = "direct") -> Event:
        """Every rank ends with the shards of all."""
        return self._launch(Collective("all_gather", self.name, via, int(shard_bytes), algorithm=algorithm), name)

    def reduce_scatter(self, name: str, shard_bytes: int, via: str, algorithm: str = "direct") -> Event:
        """Every rank ends with the sum of one shard."""
        return self._launch(Collective("reduce_scatter", self.name, via, int(shard_bytes), algorithm=algorithm), name)

    def all_reduce(self, name: str, buffer_bytes: int, via: str, algorithm: str = "direct") -> Event:
        """Every rank ends with the sum of the whole buffer: a ReduceScatter, then an AllGather."""
        return self._launch(Collective("all_reduce", self.name, via, int(buffer_bytes), algorithm=algorithm), name)

    def barrier(self, name: str, via: str) -> Event:
        """No member passes before all have come."""
        return self._launch(Collective("barrier", self.name, via), name)

    def put(self, name: str, sent_bytes: int, received_bytes: int, via: str) -> Event:
        """Write `sent_bytes` into the others' memory, spread evenly, without waiting for them.

        received_bytes: what the others put here in the same exchange.
        """
        sent, received = int(sent_bytes), int(received_bytes)
        return self._launch(Collective("put", self.name, via, sent_bytes=sent, received_bytes=received), name)

    def collect(self, name: str, via: str) -> Event:
        """Wait until what all members put in the same exchange has arrived here."""
        return self._launch(Collective("collect", self.name, via), name)

    def send(self, name: str, peer: int, size_bytes: int, via: str) -> Event:
        """One message to the group's member `peer`, who must receive it."""
        return self._message("send", name, peer, size_bytes, via)

    def recv(self, name: str, peer: int, size_bytes: int, via: str) -> Event:
        """One message from the group's member `peer`."""
        return self._message("recv", name, peer, size_bytes, via)

    def _message(self, kind: str, name: str, peer: int, size_bytes: int, via: str) -> Event:
        if not 0 <= peer < self.size:
            raise ProgramError(f"{kind} '{name}': group '{self.name}' has members 0 to {self.size - 1}, not {peer}")
        return self._launch(Collective(kind, self.name, via, int(size_bytes), peer=int(peer)), name)

    def _launch(self, collective: Collective, name: str) -> Event:
        algorithm, right = collective.algorithm, ALGORITHMS.get(collective.kind, ("direct",))
        if algorithm not in right:
            what = f"{collective.kind} '{name}' in group '{self.name}': no algorithm '{algorithm}'"
            raise ProgramError(f"{what}{did_you_mean(algorithm, right)}; there are {', '.join(right)}")
        return self.npu.launch(collective, name)
