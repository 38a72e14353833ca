"""Hosts on a wire with round numbers, without GPUs: what a test of cards, threads and engines needs."""

from __future__ import annotations

from functools import partial
from typing import Any

from simulator.fabric.graph import Fabric
from simulator.live.faults import strike
from simulator.live.host import Host
from simulator.live.live import cards
from simulator.live.thread import Journal, JournalRow, Label
from simulator.physics.clock import URGENT, Clock, call_later
from simulator.physics.flows import Network
from simulator.replay.replay import Capacities, rate_of
from simulator.spec.faults import faults_of
from simulator.spec.load import load_machine, override

US = 10**6
ROUND = {
    "nic.goodput": "1 GB/s", "nic.message_rate": "0.01 GHz", "nic.latency": "10 us", "nic.acknowledge": "5 us",
    "nic.standing_queue": "0 kB", "nic.post": "1 us", "nic.post_page": "1 us", "nic.split": "64 kB",
    "proxy.poll": "0 us", "proxy.submit": "0 us", "proxy.dequeue": "0 us", "proxy.completion": "0 us",
    "proxy.flag_write": "0 us", "proxy.flag_to_host": "1 us", "proxy.flag_to_gpu": "1 us",
    "nic.retransmit": "50 us", "nic.give_up": "200 us", "proxy.readmit": "100 us",
}  # fmt: skip


class Rows(Journal):
    """A journal that keeps its rows as tuples: (rank, stream, kind, name, start us, end us)."""

    def __init__(self) -> None:
        super().__init__(None)
        self.rows: list[tuple[int, str, str, str, float, float]] = []
        self.causes: dict[JournalRow, JournalRow | None] = {}
        self.sent_bytes = 0.0

    def write(self, rank: int, stream: str, kind: str, label: Label, start_ps: int, end_ps: int, bound_by: str,
              size_bytes: float = 0.0, because: JournalRow | None = None) -> JournalRow:
        self.rows.append((rank, stream, kind, label.name, start_ps / US, end_ps / US))
        self.sent_bytes += size_bytes
        key = JournalRow(rank, len(self.rows) - 1)
        self.causes[key] = because
        return key

    def follow(self, row: JournalRow, because: JournalRow) -> None:
        self.causes[row] = because

    def fly(self, label: Label, rank: int, start_ps: int, end_ps: int) -> None:
        pass

    def of(self, rank: int, stream: str) -> list[tuple[str, float, float]]:
        """(name, start, end) of a stream."""
        return [row[3:] for row in self.rows if row[:2] == (rank, stream)]


class Wire:
    """`hosts` hosts; `seen`: flags that GPUs got, as (rank, flag, us)."""

    def __init__(self, hosts: int, machine: str = "p5en_h200", templates: bool = True, **changes: str) -> None:
        spec = override(load_machine(machine), ROUND | {key.replace("__", "."): one for key, one in changes.items()})
        assert spec.nic is not None
        assert spec.proxy is not None
        self.env = Clock()
        self.network, self.fabric = Network(self.env), Fabric(spec, hosts)
        self.capacities = Capacities(self.fabric, partial(rate_of, machine=spec, fabric=self.fabric))
        self.rows = Rows()
        self.seen: list[tuple[int, str, float]] = []
        nics = cards(self.network, spec.nic, self.fabric, self.capacities, range(hosts), self.rows)
        self.hosts = [Host(self.env, nics[rank], spec.proxy, rank, self.rows, self._see) for rank in range(hosts)]
        for host in self.hosts:
            host.engine.templates = templates

    def strike(self, *texts: str) -> None:
        """Let faults happen."""
        strike({host.rank: host for host in self.hosts}, faults_of(texts), self.fabric,
               lambda at_ps, act: call_later(self.env, at_ps, act, URGENT))

    def _see(self, rank: int, flag: str, row: JournalRow) -> None:
        self.seen.append((rank, flag, self.env.now / US))

    def run(self, *programs: Any) -> float:
        """Run generators to the end; the time in us at which the last of them ended."""
        ended = []

        def one(program: Any) -> Any:
            yield from program
            ended.append(self.env.now / US)

        for program in programs:
            self.env.process(one(program))
        self.env.run()
        assert len(ended) == len(programs), "a program waits for ever"
        return max(ended)
