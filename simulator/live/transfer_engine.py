"""TransferEngine: one worker thread per GPU that posts writes to several cards and counts what arrives.

Commands come from a proxy thread through a queue. The worker takes one, posts its writes doorbell by doorbell, and in
between takes completions from the cards' queues. Immediates are counted per counter (IMMCOUNTER): nothing depends on
the order in which they arrive. With templates a scatter or barrier is one command with a write per peer; without, every
peer is a command of its own.

A write that a card has given up completes with an error. As published, its transfer ends with the error. With failover
(as Mooncake's engine does it) the worker marks the dead end of its way, its own card or the peer's card of that number,
and posts the write again on another card of the GPU: its receiver knows it by its number and counts it once. Writes
whose way is marked are spread over the cards that are left, until the dead one has been back for `readmit`; where no
way is left they wait for one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import simpy

from simulator.live.nic import Nic
from simulator.live.thread import HostProcess, HostThread, Journal, JournalRow, Label
from simulator.live.write import Write
from simulator.physics.clock import call_later
from simulator.spec.nic import ProxySpec
from simulator.units import to_ps


@dataclass(slots=True)
class Command:
    """Writes to post, each on a card. post_s: time of the worker for one of them."""

    label: Label
    writes: deque[tuple[Nic, Write]]
    post_s: float
    post_name: str
    submitted: JournalRow
    taken: bool = False


@dataclass(slots=True)
class Expectation:
    """A counter that is waited for: at `count` immediates the GPU's flag is set (if any) and the event happens."""

    count: int
    event: simpy.Event
    label: Label
    gpu_flag: str


class TransferEngine:
    """The engine of one rank. raise_flag: sets a flag that the GPU waits for, once its write is on PCIe.

    templates: whether a scatter or barrier is one command; failover: whether writes that failed are posted again on
    another card; a live program may set them. parked: writes that have no way.
    """

    templates = True
    failover = False

    def __init__(self, env: Any, nics: Sequence[Nic], proxy: ProxySpec, rank: int, journal: Journal,
                 raise_flag: Callable[[str, JournalRow], object]) -> None:
        self.env, self.nics, self.costs, self.rank = env, nics, proxy, rank
        self.spec, self.raise_flag = nics[0].spec, raise_flag
        for nic in nics:
            nic.received, nic.completed, nic.returned = self._received, self._completed, self._returned
            nic.failed = partial(self._failed, nic)
        self.worker = HostThread(env, rank, "engine", proxy.poll.si, journal)
        self.counts: Counter[str] = Counter()
        self.expected: dict[str, Expectation] = {}
        self._commands: deque[Command] = deque()
        self._completions: deque[tuple[Write, JournalRow, bool]] = deque()
        self._errors: deque[tuple[Nic, Write]] = deque()
        self.parked: dict[Write, JournalRow] = {}
        self._down: set[tuple[int, int]] = set()  # (card, rank of the end that was dead)
        self._turn = 0
        self._readmit_ps = to_ps(proxy.readmit.si)
        self._wake = env.event()
        env.process(self._run())

    # for the proxy: generators that spend the time of its thread ---------------------------------------------------

    def scatter(self, on: HostThread, label: Label, parts: Sequence[tuple[int, int]], immediate: str,
                because: JournalRow | None = None) -> HostProcess:
        """One write with an immediate to each (peer, bytes); peers are spread over the cards."""
        writes = [[(self.nics[place % len(self.nics)], Write(label, self.rank, peer, size, immediate))]
                  for place, (peer, size) in enumerate(parts)]
        yield from self._scattered(on, label, writes, because)

    def scatter_cut(self, on: HostThread, label: Label, parts: Sequence[tuple[int, int]], immediate: str,
                    because: JournalRow | None = None) -> HostProcess:
        """A write on every card to each (peer, bytes), with an equal part of the bytes and an immediate each."""
        cards = len(self.nics)
        writes = [[(nic, Write(label, self.rank, peer, size // cards + (place < size % cards), immediate))
                   for place, nic in enumerate(self.nics)] for peer, size in parts]  # fmt: skip
        yield from self._scattered(on, label, writes, because)

    def _scattered(self, on: HostThread, label: Label, by_peer: list[list[tuple[Nic, Write]]],
                   because: JournalRow | None) -> HostProcess:
        for group in [[write for writes in by_peer for write in writes]] if self.templates else by_peer:
            yield from self._submit(on, label, group, self.spec.post.si, "nic.post", because)

    def barrier(self, on: HostThread, label: Label, peers: Sequence[int], immediate: str,
                because: JournalRow | None = None) -> HostProcess:
        """An immediate to each peer."""
        yield from self.scatter(on, label, [(peer, 0) for peer in peers], immediate, because)

    def write(self, on: HostThread, label: Label, peer: int, size_bytes: int, immediate: str = "",
              because: JournalRow | None = None) -> HostProcess:
        """One write, cut over all cards where it is large; returns an event: all of it is acknowledged."""
        cards = len(self.nics) if size_bytes >= self.spec.split.si else 1
        sizes = [size_bytes // cards + (place < size_bytes % cards) for place in range(cards)]
        post_s = self.spec.post.si
        return (yield from self._acknowledged(on, label, peer, sizes, immediate, post_s, "nic.post", because))

    def paged(self, on: HostThread, label: Label, peer: int, pages: int, page_bytes: int, immediate: str = "",
              because: JournalRow | None = None) -> HostProcess:
        """Pages that lie apart, a write each, spread over the cards; returns an event: all are acknowledged."""
        sizes, post_s = [page_bytes] * pages, self.spec.post_page.si
        return (yield from self._acknowledged(on, label, peer, sizes, immediate, post_s, "nic.post_page", because))

    def _acknowledged(self, on: HostThread, label: Label, peer: int, sizes: Sequence[int], immediate: str,
                      post_s: float, name: str, because: JournalRow | None) -> HostProcess:
        """A write of each size, spread over the cards; returns an event: all of them are acknowledged."""
        done, left = self.env.event(), len(sizes)

        def finished(row: JournalRow) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.succeed(row)

        writes = [(self.nics[place % len(self.nics)], Write(label, self.rank, peer, size, immediate, finished))
                  for place, size in enumerate(sizes)]
        yield from self._submit(on, label, writes, post_s, name, because)
        return done

    def count(self, label: Label, immediate: str, expected: int, gpu_flag: str = "") -> simpy.Event:
        """An event: so many immediates have been counted; they may come before a process waits for them."""
        wanted = Expectation(expected, self.env.event(), label, gpu_flag)
        self.expected[immediate] = wanted
        if self.counts[immediate] >= expected:
            self._completions.append((Write(label, self.rank, self.rank, 0, immediate), JournalRow(-1, -1), False))
            self._poke()
        return wanted.event

    def _submit(self, on: HostThread, label: Label, writes: list[tuple[Nic, Write]], post_s: float, name: str,
                because: JournalRow | None) -> HostProcess:
        row = yield from on.work("submit", self.costs.submit.si, label, "proxy.submit", because)
        self._commands.append(Command(label, deque(writes), post_s, name, row))
        self._poke()

    # the worker's thread -------------------------------------------------------------------------------------------

    def _run(self) -> HostProcess:
        while True:
            if self._completions:
                yield from self._poll()
            if self._errors:
                yield from self._take_error()
            if self._commands:
                yield from self._post()
            elif not self._completions and not self._errors:
                self._wake = self.env.event()
                yield from self.worker.until(self._wake, "commands and completions")

    def _poke(self) -> None:
        if not self._wake.triggered:
            self._wake.succeed()

    def _post(self) -> HostProcess:
        """Post writes up to the next doorbell."""
        command = self._commands[0]
        if not command.taken:
            command.taken = True
            command.submitted = yield from self.worker.work("dequeue", self.costs.dequeue.si, command.label,
                                                            "proxy.dequeue", command.submitted)
        number = min(self.spec.chain.count, len(command.writes))
        batch = [command.writes.popleft() for _ in range(number)]
        if not command.writes:
            self._commands.popleft()
        row = yield from self.worker.work("post", command.post_s * number, command.label, command.post_name,
                                          command.submitted)
        for nic, write in batch:
            write.posted = row
            way = self._way(nic, write.target)
            if way is None:
                self._park(write, row)
            else:
                way.post(write)

    def _poll(self) -> HostProcess:
        """Take completions: count immediates, tell who waits."""
        number = min(self.costs.poll_batch.count, len(self._completions))
        batch = [self._completions.popleft() for _ in range(number)]
        awaited = (one for one in reversed(batch) if one[2] and one[0].immediate in self.expected)
        write, last, _ = next(awaited, batch[-1])
        row = yield from self.worker.work("poll", self.costs.completion.si * number, write.label,
                                          "proxy.completion", last if last.rank >= 0 else None)
        for write, _, arrived in batch:
            if arrived:
                self.counts[write.immediate] += 1
            elif write.done is not None:
                write.done(row)
            wanted = self.expected.get(write.immediate)
            if wanted is not None and self.counts[write.immediate] >= wanted.count:
                del self.expected[write.immediate]
                yield from self._reached(wanted, row)

    def _reached(self, wanted: Expectation, row: JournalRow) -> HostProcess:
        if wanted.gpu_flag:
            row = yield from self.worker.work("flag", self.costs.flag_write.si, wanted.label, "proxy.flag_write", row)
            self.raise_flag(wanted.gpu_flag, row)
        wanted.event.succeed(row)

    def _received(self, write: Write, row: JournalRow) -> None:
        if write.immediate:
            self._completions.append((write, row, True))
            self._poke()

    def _completed(self, write: Write, row: JournalRow) -> None:
        self._completions.append((write, row, False))
        self._poke()

    # where cards are dead ------------------------------------------------------------------------------------------

    def _failed(self, nic: Nic, write: Write) -> None:
        if self.failover:
            self._down.add((nic.number, self.rank if nic.dead else write.target))
        self._errors.append((nic, write))
        self._poke()

    def _take_error(self) -> HostProcess:
        """Take a completion with an error; with failover its write is posted again before anything else."""
        nic, write = self._errors.popleft()
        row = yield from self.worker.work("error", self.costs.completion.si, write.label, "proxy.completion",
                                          write.posted)
        if self.failover:
            nic.given_up.remove(write)
            self._post_again(write, row)

    def _post_again(self, write: Write, row: JournalRow) -> None:
        again = deque([(self.nics[0], write.again())])
        self._commands.appendleft(Command(write.label, again, self.spec.post.si, "nic.post", row, taken=True))

    def _way(self, nic: Nic, peer: int) -> Nic | None:
        """The card for a write to a peer: the one that was meant, or one of those that are left."""
        if not self._down or self._usable(nic, peer):
            return nic
        left = [one for one in self.nics if self._usable(one, peer)]
        self._turn += 1
        return left[self._turn % len(left)] if left else None

    def _usable(self, nic: Nic, peer: int) -> bool:
        for rank in (self.rank, peer):
            if (nic.number, rank) in self._down:
                end = nic if rank == self.rank else nic.peers[rank]
                if end.dead or self.env.now < end.back_ps + self._readmit_ps:
                    return False
                self._down.discard((nic.number, rank))
        return True

    def _park(self, write: Write, row: JournalRow) -> None:
        """A write has no way: it waits for a card that is back already, or for one to come back."""
        self.parked[write] = row
        for nic in self.nics:
            for end in (nic, nic.peers[write.target]):
                self._returned(end)

    def _returned(self, end: Nic) -> None:
        if self.parked and not end.dead and end.back_ps >= 0:
            ready_ps = max(end.back_ps + self._readmit_ps, self.env.now)
            call_later(self.env, ready_ps - self.env.now, lambda _: self._unpark())

    def _unpark(self) -> None:
        """Try those that have no way once more; those that still have none wait again."""
        waiting = [write for write in self.parked if any(self._usable(nic, write.target) for nic in self.nics)]
        for write in waiting:
            self._post_again(write, self.parked.pop(write))
        if waiting:
            self._poke()
