"""The cache of prompts from a rank that prefills to one that decodes, layer by layer, in pages that lie apart.

A layer's pages leave once the GPU has raised the layer's flag; who receives them counts immediates, one of each page,
and never asks for order.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.live.host import Host
from simulator.live.thread import HostProcess, JournalRow, Label

COMPLETE = "complete"


@dataclass(frozen=True)
class CachePages:
    """Of one rank: so many pages of each layer."""

    layers: int
    pages: int
    page_bytes: int

    def flag(self, layer: int) -> str:
        """The flag that a layer's part is computed, and the immediate of each of its pages."""
        return f"layer {layer}"

    def send(self, host: Host, peer: int) -> HostProcess:
        """To a peer, every layer as soon as its flag is seen."""
        for layer in range(self.layers):
            seen: JournalRow = yield from host.until_flag(self.flag(layer))
            yield from host.engine.paged(host.proxy, Label("kv.pages", layer), peer, self.pages, self.page_bytes,
                                         self.flag(layer), seen)

    def receive(self, host: Host) -> HostProcess:
        """Until all are there; then the GPU gets a flag, COMPLETE."""
        for layer in range(self.layers):
            arrived = host.engine.count(Label("kv.pages", layer), self.flag(layer), self.pages)
            yield from host.until(arrived, f"the pages of layer {layer}")
        yield from host.set_flag(Label("kv.complete", self.layers - 1), COMPLETE)
