"""The host of one rank as its live program sees it: flags of the GPU, a proxy thread, the transfer engine, counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import simpy

from simulator.live.nic import Nic
from simulator.live.thread import HostProcess, HostThread, Journal, JournalRow, Label
from simulator.live.transfer_engine import TransferEngine
from simulator.physics.clock import call_later
from simulator.program.task import Flag
from simulator.spec.nic import ProxySpec
from simulator.units import to_ps


class Request(Protocol):
    """What a GPU asks its host for by setting a flag."""

    @property
    def flag(self) -> str: ...


class Host:
    """What the generator of a rank's proxy drives. seen: told (rank, flag, row) when the GPU sees a flag from it.
    asked: all that its GPU's program asks for, in launch order."""

    def __init__(self, env: Any, nics: Sequence[Nic], proxy: ProxySpec, rank: int, journal: Journal,
                 seen: Callable[[int, str, JournalRow], object], asked: Sequence[Any] = ()) -> None:
        self.env, self.costs, self.rank, self.journal, self.asked = env, proxy, rank, journal, asked
        self._requests = [env.event() for _ in asked]  # in the order in which they come
        self._come = self._taken = 0
        self.proxy = HostThread(env, rank, "proxy", proxy.poll.si, journal)
        self._seen = seen
        self._to_host_ps, self._to_gpu_ps = to_ps(proxy.flag_to_host.si), to_ps(proxy.flag_to_gpu.si)
        self._flags: dict[str, simpy.Event] = {}
        self.engine = TransferEngine(env, nics, proxy, rank, journal, self.to_gpu)

    # for the proxy: generators and events ---------------------------------------------------------------------------

    def until_flag(self, flag: str) -> HostProcess:
        """Poll for a flag of the GPU; returns the row of its task."""
        return (yield from self.proxy.until(self.flag(flag), f"flag '{flag}' of its GPU"))

    def until(self, event: simpy.Event, what: str) -> HostProcess:
        """Poll for an event of the engine (a count, an acknowledged transfer); returns its row."""
        return (yield from self.proxy.until(event, what))

    def next_request(self) -> simpy.Event:
        """The event that the host sees the next flag by which it is asked for something: (row, request)."""
        self._taken += 1
        return self._requests[self._taken - 1]

    def flag(self, flag: str) -> simpy.Event:
        """The event that the host sees a flag of the GPU."""
        return self._flags.setdefault(flag, self.env.event())

    def set_flag(self, label: Label, flag: str, because: JournalRow | None = None) -> HostProcess:
        """Set a flag that the GPU waits for."""
        row = yield from self.proxy.work("flag", self.costs.flag_write.si, label, "proxy.flag_write", because)
        self.to_gpu(flag, row)

    def seen_by_gpu(self, flag: str, row: JournalRow) -> None:
        """The GPU sees something in its own memory, where a peer's write put it: no host takes part."""
        self._seen(self.rank, flag, row)

    # between the two sides of PCIe ----------------------------------------------------------------------------------

    def to_gpu(self, flag: str, row: JournalRow) -> None:
        """A flag's write is on its way to the GPU."""
        call_later(self.env, self._to_gpu_ps, lambda _: self._seen(self.rank, flag, row))

    def from_gpu(self, flag: Flag, row: JournalRow) -> None:
        """The GPU has set a flag; a watched one is in unified memory, and comes through the watcher's callback."""
        delay_ps = to_ps(self.costs.watcher.si) if flag.watched else self._to_host_ps
        call_later(self.env, delay_ps, lambda _: self._sees(flag, row))

    def _sees(self, flag: Flag, row: JournalRow) -> None:
        self.flag(flag.flag).succeed(row)
        if flag.request is not None:
            self._requests[self._come].succeed((row, flag.request))
            self._come += 1

    def lose(self) -> None:
        """The host is gone: its threads stop and its cards are silent."""
        self.proxy.lost = self.engine.worker.lost = True
        for nic in self.engine.nics:
            nic.struck(self, 0.0)


class Inbox:
    """The requests of a GPU as its proxy thread takes them: in the order in which their flags come, polling for each.

    expect: registers what the host will count for a request, and returns the event that it has come. Of the request
    that is launched next this is done before its flag comes, since peers may be earlier than the own GPU.
    """

    def __init__(self, host: Host, expect: Callable[[Any], Any]) -> None:
        self._host, self._expect = host, expect
        self._left = list(host.asked)
        self._expected: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._left)

    def take(self) -> HostProcess:
        """The next request; returns it with the row of its flag, and what was expected for it."""
        following = self._left[0]
        self._register(following)
        seen, request = yield from self._host.until(self._host.next_request(), f"flag '{following.flag}' of its GPU")
        self._left.remove(request)
        self._register(request)
        return request, seen, self._expected.pop(id(request))

    def _register(self, request: Any) -> None:
        if id(request) not in self._expected:
            self._expected[id(request)] = self._expect(request)
