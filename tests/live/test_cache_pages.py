"""Pages of two layers by hand: they leave as their layer is ready, and are complete when the last one is there."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.live.cache_pages import COMPLETE, CachePages
from simulator.live.thread import JournalRow
from tests.live.live_hosts import US, Wire


@pytest.mark.parametrize(("ready_us", "complete_us"), [
    ((0, 100), 100 + 2 + 40 + 10 + 1),  # first doorbell, four pages of each card, latency, flag to the GPU
    ((0, 1), 2 + 40 + 40 + 10 + 1),  # behind the first layer's
], ids=["apart", "together"])  # fmt: skip
def test_a_layer_leaves_when_it_is_ready(ready_us: tuple[int, int], complete_us: int) -> None:
    wire, cache = Wire(2), CachePages(layers=2, pages=8, page_bytes=10_000)
    sender, receiver = wire.hosts

    def gpu() -> Any:
        for layer, ready in enumerate(ready_us):
            yield wire.env.timeout(ready * US - wire.env.now)
            sender.flag(cache.flag(layer)).succeed(JournalRow(0, 0))

    wire.run(gpu(), cache.send(sender, 1), cache.receive(receiver))
    ((rank, flag, when),) = wire.seen
    assert (rank, flag) == (1, COMPLETE)
    assert when == complete_us
    sent = [row for row in wire.rows.rows if row[2] == "send"]
    assert len(sent) == 2 * 8
    assert all(row[4] >= ready_us[1] for row in sent[8:])
