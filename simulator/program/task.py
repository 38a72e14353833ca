"""A recorded rank program: tasks in launch order, the events between them, and where the host blocks.

A program is data: it prints as text and compares with `==` without simulating anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.die.kernels import Work


class ProgramError(Exception):
    """A program that cannot be recorded or replayed; the message names rank, stream and task."""


ALGORITHMS: dict[str, list[str]] = {}
"""How each kind of collective may go about it: the names that the table of `simulator.collective` enters here."""

SizeTable = tuple[tuple[int, ...], ...]  # of what each member sends to each


@dataclass(frozen=True, slots=True)
class Collective:
    """One exchange inside a group of ranks.

    kind: all_to_all, all_gather, reduce_scatter, all_reduce, send, recv, barrier, put or collect. group: its name.
    bytes_per_pair: what one rank sends to each other one (a shard of an all_gather or reduce_scatter, the whole buffer
    of an all_reduce, the message of send and recv). sizes: bytes per (sender, receiver), n x n, instead of it for an
    all_to_all whose pairs differ. via: the driving engine, by its name in the machine file. peer: index in the group
    (send, recv).
    algorithm: direct, or hierarchical (all_gather, reduce_scatter, all_reduce): pipelined over nodes; or ring (the same
    three): from each rank to the next; or pairwise (all_to_all): between nodes one peer after the other; or one_shot
    (all_reduce): each member sends the whole buffer to all and sums what comes; or nvls (all_reduce): the switch sums;
    or auto (all of these): the fastest of the protocols of its engine, direct where it has none.
    sent_bytes, received_bytes: of this rank, over all peers (put); other members have their own. rows: how many the
    engine handles one by one, those that stay at home too: what a put sends, what a collect has got.
    cores: what is held meanwhile, as ((pool, count), ...), instead of the engine's own.
    """

    kind: str
    group: str
    via: str
    bytes_per_pair: int = 0
    sizes: SizeTable = ()
    peer: int = -1
    algorithm: str = "direct"
    sent_bytes: int = 0
    received_bytes: int = 0
    rows: int = 0
    cores: tuple[tuple[str, int], ...] = ()

    def __hash__(self) -> int:
        """Cheap, whatever the number of sizes; they decide when two are compared."""
        row = self.sizes[0][:8] if self.sizes else ()
        put = self.sent_bytes, self.received_bytes, self.rows
        return hash((self.kind, self.group, self.via, self.bytes_per_pair, self.peer, put, row))

    def signature(self) -> tuple[object, ...]:
        """What all members must agree on."""
        kind = "send/recv" if self.kind in ("send", "recv") else self.kind
        return (kind, self.via, self.bytes_per_pair, self.sizes, self.algorithm)

    def as_send(self) -> Collective:
        """A message as its sender sees it, whichever end this is; two equal messages compare equal."""
        return Collective("send", self.group, self.via, self.bytes_per_pair)

    def __str__(self) -> str:
        if self.kind == "put":
            return f"put in {self.group}, {self.sent_bytes} B out, {self.received_bytes} B in, via {self.via}"
        size = "uneven" if self.sizes else f"{self.bytes_per_pair} B per pair"
        return f"{self.kind} in {self.group}, {size}, via {self.via}"


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Weights that a DMA queue copies from HBM into L2, where the kernel that names them then finds them.

    rate_bytes_per_s: the ceiling that the program sets (0: none). kept_bytes: how much of the block lies in L2 when
    this has ended, where it is one of several pieces (0: just this much).
    """

    weights: str
    size_bytes: float
    rate_bytes_per_s: float = 0.0
    kept_bytes: float = 0.0

    def __str__(self) -> str:
        return f"prefetch {self.weights}, {self.size_bytes:.0f} B"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag, set once. kind: "set_flag" (by the stream, for the host) or "wait_flag" (set by the host).

    cores: what a kernel that spins on the flag holds meanwhile, as ((pool, count), ...). watched: the host learns of it
    through its watcher of unified memory, instead of polling a flag over PCIe. request: what the host is asked for by
    this flag, if anything (`live.host.Request`).
    """

    kind: str
    flag: str
    cores: tuple[tuple[str, int], ...] = ()
    watched: bool = False
    request: Any = field(default=None, hash=False, repr=False)

    def __str__(self) -> str:
        held = ", ".join(f"{count} {pool}" for pool, count in self.cores)
        return f"{self.kind} {self.flag}" + (f", holding {held}" if held else "")


@dataclass(frozen=True, slots=True)
class Task:
    """One launch. `after`: indices of the tasks it waits for beside its stream's predecessor.

    partition: the share of the cores that its stream is confined to ("": the whole chip).
    """

    index: int
    stream: str
    name: str
    work: Work | Collective | Prefetch | Flag
    after: tuple[int, ...] = ()
    layer: int = -1
    micro_batch: int = -1
    priority: int = 0
    partition: str = ""

    @property
    def kind(self) -> str:
        """The word that reports sum by."""
        return "prefetch" if isinstance(self.work, Prefetch) else self.work.kind

    @property
    def block(self) -> str:
        """The first word of its name: "attention" of "attention.q_a"."""
        return self.name.partition(".")[0].partition(" ")[0]

    def __str__(self) -> str:
        place = "" if self.layer < 0 else f" L{self.layer}"
        place += "" if self.micro_batch < 0 else f" mb{self.micro_batch}"
        waits = f"  after {', '.join(f'#{index}' for index in self.after)}" if self.after else ""
        return f"#{self.index:<6d}{self.stream:10s}{self.name + place:40s}{_what(self.work)}{waits}"


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host blocks until this task has ended, then reads `reads` values from the device, one after the other."""

    task: int
    reads: int = 1

    def __str__(self) -> str:
        return f"host   blocks until #{self.task} has ended, then {self.reads} device read(s)"


@dataclass(slots=True)
class Program:
    """Launches and host waits of one rank, in the order in which its host issues them.

    programmatic: a kernel's prologue runs beside the end of the launch before it in its stream, unless it also waits
    for another stream (programmatic dependent launch). captured: the whole program is launched as one graph, instead of
    task by task. operators: calls of framework operators that go with an eager launch (0: launched from C++).
    by_rank: where works depend on the rank: by the first of neighbouring tasks what gives their works on any rank. own:
    of a variant for some ranks what those works are for them, by task; `items` are those of the recording that it
    shares with other variants.
    """

    items: list[Task | HostWait] = field(default_factory=list)
    captured: bool = False
    programmatic: bool = False
    operators: float = 0.0
    partitions: dict[str, dict[str, int]] = field(default_factory=dict)
    by_rank: dict[int, Callable[[int], Sequence[tuple[str, Work | Collective]]]] = field(default_factory=dict)
    own: dict[int, Work | Collective] = field(default_factory=dict)
    _exchanges: list[Task] | None = field(default=None, compare=False, repr=False)  # of a recording with variants

    def with_own(self, own: dict[int, Work | Collective]) -> Program:
        """The same launches with other works where they depend on the rank."""
        if self._exchanges is None:
            self._exchanges = [task for task, _ in self.collectives()]
        return Program(self.items, self.captured, self.programmatic, self.operators, self.partitions, {}, own,
                       self._exchanges)

    @property
    def launches(self) -> int:
        """How many tasks it has."""
        return next((item.index + 1 for item in reversed(self.items) if isinstance(item, Task)), 0)

    @property
    def tasks(self) -> list[Task]:
        """The launches alone; a task's index is its place here."""
        own, tasks = self.own, [item for item in self.items if isinstance(item, Task)]
        return [replace(task, work=own[task.index]) if task.index in own else task for task in tasks] if own else tasks

    def works(self) -> Iterator[tuple[Task, Work | Collective | Prefetch | Flag]]:
        """Every launch with its work, in launch order; a variant's launches are those of its recording."""
        own = self.own
        for item in self.items:
            if isinstance(item, Task):
                yield item, own.get(item.index, item.work)

    def collectives(self) -> Iterator[tuple[Task, Collective]]:
        """Every collective with its task, in launch order."""
        if self._exchanges is None:
            return ((task, work) for task, work in self.works() if isinstance(work, Collective))
        own: dict[int, Any] = self.own
        return ((task, own.get(task.index, task.work)) for task in self._exchanges)

    def families(self) -> set[str]:
        """The kernel families that it launches; those of all variants of a recording."""
        return {item.work.family for item in self.items if isinstance(item, Task) and isinstance(item.work, Work)}

    def __str__(self) -> str:
        tasks = self.tasks
        return "\n".join(str(tasks[item.index] if isinstance(item, Task) else item) for item in self.items)


def _what(work: Work | Collective | Prefetch | Flag) -> str:
    if not isinstance(work, Work):
        return str(work)
    if work.rows:
        groups = f"{len(work.rows)} x " if len(work.rows) > 1 else ""
        return f"{work.family} {groups}{max(work.rows)}x{work.k}x{work.n} {work.dtype}->{work.out_dtype}"
    if work.scores:
        return f"{work.family} {work.heads} heads, {len(work.scores)} sequences, {work.flops / 1e9:.1f} GFLOP"
    return f"{work.family} {work.hbm_bytes / 1e6:.1f} MB"
