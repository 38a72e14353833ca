"""Dispatch and combine by generic proxies: one command in a queue, and one write, for every row (NVSHMEM's IBRC, UCCL).

The GPU side is that of `rows`; a GPU has some threads that each take a command and post its write, one after the other.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from simulator.live.host import Host, Inbox
from simulator.live.thread import HostProcess, HostThread, Label
from simulator.live.write import Write
from simulator.parallel.exchange.proxy import ProxySettings
from simulator.parallel.exchange.rows import Asked, RowKernels


class GenericSettings(ProxySettings):
    """Generic proxies."""

    threads: int = Field(1, gt=0, description="proxy threads of a GPU: 1 as NVSHMEM's IBRC, 4 as UCCL-EP")


class GenericProxy(RowKernels):
    """Rows by generic proxies."""

    settings = GenericSettings


def generic_proxies(host: Host) -> HostProcess:
    """The threads of one rank: the rows of a dispatch or combine are dealt to them, then those of the next one."""
    threads: list[HostThread] = []
    inbox = Inbox(host, lambda asked: _expect(host, asked))
    while inbox:
        asked, seen, _ = yield from inbox.take()
        x, leg = asked.crossing, asked.crossing.leg(asked.block)
        threads += [HostThread(host.env, host.rank, f"proxy {number}", host.costs.poll.si, host.journal)
                    for number in range(len(threads), x.settings.threads)]
        yield host.env.timeout(int(host.costs.command_fifo.si * 1e12))
        ranks = [x.rank(peer) for peer in x.in_turn(leg)]
        yield host.env.all_of([
            host.env.process(_serve(host, thread, leg.label, ranks[first :: len(threads)], leg.row_bytes,
                                    x.on(leg.label.name), seen))
            for first, thread in enumerate(threads)
        ])  # fmt: skip


def _expect(host: Host, asked: Asked) -> Any:
    """All rows that come over the cards."""
    leg = asked.crossing.leg(asked.block)
    return host.engine.count(leg.label, asked.crossing.on(leg.label.name), leg.arriving, gpu_flag=leg.answer)


def _serve(host: Host, thread: HostThread, label: Label, ranks: list[int], row_bytes: int, counter: str,
           seen: Any) -> HostProcess:
    cards = host.engine.nics
    each_s = host.costs.command.si + host.engine.spec.post.si
    for turn, rank in enumerate(ranks):
        row = yield from thread.work("command", each_s, label, "proxy.command", seen)
        cards[turn % len(cards)].post(Write(label, host.rank, rank, row_bytes, counter, posted=row))
