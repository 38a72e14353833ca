"""The cache of prompts from a rank that prefills to one that decodes, part by part, in pages that lie apart.

A part is what a layer adds to the cache in one pass. It leaves once the GPU has raised its flag, a paged write for each
tensor (keys, values, or latents); who receives it counts immediates, one of each page, and never asks for order. A
last write, the tail, has what the first decode step needs beside the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.live.host import Host
from simulator.live.thread import HostProcess, JournalRow, Label

PREFILLED, COMPLETE = "prefilled", "complete"  # flags of the GPU that prefills, and for the one that decodes
TAIL = Label("kv.tail")


class CachePart(NamedTuple):
    """Of a layer in a pass. flag: that it is computed, and the immediate of its pages. pages: of each tensor."""

    flag: str
    layer: int
    pages: int


@dataclass(frozen=True)
class CachePages:
    """Of one rank: parts in the order in which they are computed, each with so many tensors, and the tail."""

    parts: Sequence[CachePart]
    tensors: int
    page_bytes: int
    tail_bytes: int

    def send(self, host: Host, peer: int) -> HostProcess:
        """To a peer, every part as soon as its flag is seen, and the tail at the end."""
        for part in self.parts:
            seen: JournalRow = yield from host.until_flag(part.flag)
            for _ in range(self.tensors):
                yield from host.engine.paged(host.proxy, Label("kv.pages", part.layer), peer, part.pages,
                                             self.page_bytes, part.flag, seen)
        seen = yield from host.until_flag(PREFILLED)
        yield from host.engine.scatter(host.proxy, TAIL, [(peer, self.tail_bytes)], TAIL.name, seen)

    def receive(self, host: Host) -> HostProcess:
        """Until all are there; then the GPU gets a flag, COMPLETE."""
        for part in self.parts:
            pages = part.pages * self.tensors
            arrived = host.engine.count(Label("kv.pages", part.layer), part.flag, pages)
            yield from host.until(arrived, f"the pages of {part.flag}")
        row = yield from host.until(host.engine.count(TAIL, TAIL.name, 1), "the tail")
        yield from host.set_flag(Label("kv.complete"), COMPLETE, row)
