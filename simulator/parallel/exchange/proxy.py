"""Dispatch and combine over RDMA that a busy-polling host proxy and a transfer engine drive (TransferEngine).

One proxy thread and one engine per GPU. Routes go to all peers first; meanwhile a part of the tokens is written into
private buffers of their receivers, and the rest goes once the routes of all peers are known. Everything comes back in
one write per peer, then a barrier frees the buffers. Routes and private tokens go to a peer over one card; the rest,
and what comes back, is cut over all of them. Perplexity, arXiv 2510.27656 and perplexityai/pplx-garden at 2446003.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from simulator.live.host import Host, Inbox
from simulator.live.thread import HostProcess
from simulator.parallel.exchange.rows import ROUTE_BYTES, Asked, Crossing, RowKernels, RowSettings


class ProxySettings(RowSettings):
    """How the exchange is done."""

    private_tokens: int = Field(32, ge=0, description="tokens per sender that may be written before routes are known")
    templates: bool = Field(True, description="scatter and barrier as one command; without, every peer is one")
    failover: bool = Field(False, description="writes that a dead card gave up go over the other cards of the GPU")


class Proxy(RowKernels):
    """Rows by host proxies: a dispatch begins when routes are counted."""

    begins = ("route_done", "combine_packed")
    settings = ProxySettings


def proxy(host: Host) -> HostProcess:
    """The proxy thread of one rank: dispatches and combines as its GPU asks for them, each to its end."""
    barriers: dict[int, Any] = {}  # of the last combine of each micro-batch
    inbox = Inbox(host, lambda asked: _expect(host, asked))
    while inbox:
        asked, seen, expected = yield from inbox.take()
        x: Crossing = asked.crossing
        host.engine.templates, host.engine.failover = x.settings.templates, x.settings.failover
        if asked.block == "dispatch":
            yield from _dispatch(host, x, seen, expected, barriers.get(x.micro_batch))
        else:
            barriers[x.micro_batch] = yield from _combine(host, x, seen)
    for barrier in barriers.values():
        yield from host.until(barrier, "the last barrier")


def _expect(host: Host, asked: Asked) -> Any:
    """Routes of all peers before a dispatch; tokens of remote ones in a combine, which its GPU waits for."""
    x = asked.crossing
    if asked.block == "dispatch":
        return host.engine.count(x.label("dispatch.routes"), x.on("routes"), len(x.peers))
    writes = len(x.remote) * len(host.engine.nics)
    return host.engine.count(x.label("combine.tokens"), x.on("combine"), writes, gpu_flag=x.on("combined"))


def _dispatch(host: Host, x: Crossing, seen: Any, routed: Any, barrier: Any) -> HostProcess:
    """Routes to all, tokens into private buffers, and what those cannot take once all routes are known."""
    engine, private = host.engine, x.settings.private_tokens
    routes, tokens, mine = x.label("dispatch.routes"), x.label("dispatch.tokens"), x.rows[x.place]
    parts = [(x.rank(peer), ROUTE_BYTES) for peer in x.peers]
    yield from engine.scatter(host.proxy, routes, parts, x.on("routes"), seen)
    seen = yield from host.until_flag(x.on("send_done"))
    if barrier is not None:
        seen = yield from host.until(barrier, "the barrier of the step before")
    if private:
        first = [(x.rank(peer), min(mine[peer], private) * x.slot_bytes) for peer in x.remote]
        yield from engine.scatter(host.proxy, tokens, first, x.on("tokens"), seen)
    known = yield from host.until(routed, "the routes of all peers")
    arrive = len(x.remote) if private else 0
    arrive += len(engine.nics) * sum(x.rows[peer][x.place] > private for peer in x.remote)
    engine.count(tokens, x.on("tokens"), arrive, gpu_flag=x.on("dispatched"))
    rest = [(x.rank(peer), (mine[peer] - private) * x.slot_bytes) for peer in x.remote if mine[peer] > private]
    if rest:
        yield from engine.scatter_cut(host.proxy, x.label("dispatch.overflow"), rest, x.on("tokens"), known)


def _combine(host: Host, x: Crossing, seen: Any) -> HostProcess:
    """Everything back, each peer's in one piece (offsets are known), then a barrier; returns what it ends with."""
    engine, barrier = host.engine, x.label("barrier")
    parts = [(x.rank(peer), x.rows[peer][x.place] * x.combine_bytes) for peer in x.remote]
    yield from engine.scatter_cut(host.proxy, x.label("combine.tokens"), parts, x.on("combine"), seen)
    done = yield from host.until_flag(x.on("combine_done"))
    passed = engine.count(barrier, x.on("barrier"), len(x.peers))
    yield from engine.barrier(host.proxy, barrier, [x.rank(peer) for peer in x.peers], x.on("barrier"), done)
    return passed
